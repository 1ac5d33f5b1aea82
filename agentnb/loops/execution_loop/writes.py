"""Writing to the context's data: the five output methods (SEMANTICS.md, 2. Messages and data).

The data of an identity is a fold: every write changes what stands at its path, in the order of the writes, and a read
is a look at the result. So a leaf below something that was overwritten is gone, and what was merged is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import Message
from agentnb.core.state import CallState
from agentnb.loops.execution_loop.references import DAGGER, MISSING, copied, parse_expression, step_into
from agentnb.loops.execution_loop.types import Call, said_beside


def _set(old: Any, new: Any) -> Any:
    return new


def merged(old: Any, new: Any) -> Any:
    """Objects become one at every depth; everything else is replaced."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    for key, value in new.items():
        old[key] = merged(old.get(key, MISSING), value)
    return old


def _assign(old: Any, new: Any) -> Any:
    return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new


def _push(old: Any, new: Any) -> Any:
    items = _as_list(old)
    items.append(new)
    return items


def _concat(old: Any, new: Any) -> Any:
    if isinstance(new, str) and (isinstance(old, str) or old is MISSING):
        return new if old is MISSING else old + new
    items = _as_list(old)
    items += new if isinstance(new, list) else [new]
    return items


def _as_list(old: Any) -> list[Any]:
    if isinstance(old, list):
        return old
    return [] if old is MISSING or old is None else [old]


METHODS: dict[str, Callable[[Any, Any], Any]] = {
    "set": _set,
    "merge": merged,
    "assign": _assign,
    "push": _push,
    "concat": _concat,
}


def written(root: Any, keys: Sequence[str], value: Any, method: str = "set") -> Any:
    """The data after `value` was written where `keys` lead to; `root` itself is changed. Copies the value."""
    apply, value = METHODS[method], copied(value)
    if not keys:
        return apply(root, value)
    root = container = root if _holds(root, keys[0]) else {}
    for key, below in pairwise(keys):
        child = step_into(container, key)
        if not _holds(child, below):  # what stood there is overwritten
            child = {}
            _put(container, key, child)
        container = child
    _put(container, keys[-1], apply(step_into(container, keys[-1]), value))
    return root


def _holds(container: Any, key: str) -> bool:
    """Whether something may stand under this key: an object takes every key, a list those of its items and the next."""
    if isinstance(container, list):
        return key.isdecimal() and int(key) <= len(container)
    return isinstance(container, dict)


def _put(container: Any, key: str, value: Any) -> None:
    if isinstance(container, dict):
        container[key] = value
    elif int(key) < len(container):
        container[int(key)] = value
    else:
        container.append(value)


LEVELS = 100
"""Keys that a path to write to may have: a recording with many more levels could not be read again."""


def check_writing(fields: Mapping[str, Any]) -> None:
    """Look at what a call or a message says of where data goes, and how. Raises InvalidArguments."""
    path, method = fields.get("_outputPath"), fields.get("_outputMethod")
    if path is not None and not (isinstance(path, str) and path.startswith(DAGGER)):
        raise InvalidArguments(f"`_outputPath` must be a path like {DAGGER}state.name, not {path!r}.")
    for to in parse_expression(path).paths if path is not None else ():
        if to.kind == "error":
            raise InvalidArguments(f"`_outputPath` must be a path to data, not {path!r}: errors are told by the loop.")
        if len(to.keys) > LEVELS:
            raise InvalidArguments(f"`_outputPath` has {len(to.keys)} keys, of which {LEVELS} at most can be recorded.")
    if method is not None and method not in METHODS:
        raise InvalidArguments(f"`_outputMethod` must be one of {', '.join(METHODS)}, not {method!r}.")
    if not isinstance(fields.get("_instance"), (str, type(None))):
        raise InvalidArguments("`_instance` must be text.")


def writes(call: CallState) -> Iterator[Message]:
    """The messages that a call which has ended adds to the context (SEMANTICS.md, 6. Writing results)."""
    end = call.end
    if end is None or end.is_error:
        return
    beside = said_beside(call)
    path, method = beside.get("_outputPath"), beside.get("_outputMethod")
    returned = end.details.get("message") if isinstance(end.details, dict) else None
    if returned is None or (path is not None and _only_looks_like_text(returned, end.result)):
        if path is not None:
            yield from _write_to(call, path, end.result, method, beside)
        return
    if returned.get("type") != "data":
        yield Message.of(returned)
        return
    chosen = returned.get("_outputPath") or (None if returned.get("kind") else path)
    if chosen is not None:
        yield from _write_to(call, chosen, returned["data"], returned.get("_outputMethod") or method, beside)
    else:
        yield _written(call, {"kind": "data", **returned}, beside)


def _only_looks_like_text(returned: Mapping[str, Any], result: Any) -> bool:
    """Whether an object reads as text for the model: where its call says where it goes, it is data all the same."""
    return returned.get("type") != "data" and isinstance(result, dict)


def _write_to(call: CallState, to: str, value: Any, method: str | None, beside: dict[str, Any]) -> Iterator[Message]:
    for path in parse_expression(to).alternatives[0]:
        data = value
        for key in reversed(path.keys):
            data = {key: data}
        fields = {"kind": path.kind, "data": data, "_outputPath": str(path), "_outputMethod": method or "set"}
        yield _written(call, fields, beside)


def _written(call: CallState, fields: dict[str, Any], beside: dict[str, Any]) -> Message:
    assert call.end is not None
    if beside.get("_instance") is not None:
        fields = {"_instance": beside["_instance"], **fields}
    hidden = {
        "_call": {**Call.as_made(call), "_id": call.id},
        "_date": datetime.fromtimestamp(call.end.time, UTC).isoformat(),
    }
    return Message.of({"role": "data", "content": "", "type": "data", **fields, **hidden})


def error_of(call: CallState) -> Message | None:
    """The error message of a call that failed or was rejected; None where it did neither."""
    end = call.end
    if end is None or not end.is_error:
        return None
    error = rejection(call) if end.outcome == "rejected" else end.result
    return error_message(Call.as_made(call), error, call.id, detached=call.let_go)


def rejection(call: CallState) -> str:
    """The text that the model is sent for a rejected call (SEMANTICS.md, 7. Confirmation)."""
    reason = call.decision.reason if call.decision is not None else ""
    return f"rejected by user: {reason}" if reason else "rejected by user"


def error_message(call: Call | None, error: Any, call_id: str | None = None, *, detached: bool = False) -> Message:
    """An error message; without a call it is about the answer as a whole."""
    fields: dict[str, Any] = {"role": "data", "content": "", "type": "data", "kind": "error"}
    fields["data"] = {"call": call, "error": error}
    if call_id is not None:
        fields["_call"] = {"_id": call_id, "_detached": True} if detached else {"_id": call_id}
    return Message.of(fields)
