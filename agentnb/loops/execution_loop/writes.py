"""Writes: how a write changes the data, and which messages a finished call adds (SEMANTICS.md, 6. Writing results).

The data of one kind and instance is a fold: each write is applied at its own path, in the order of the writes, and a
read inspects the result. So a leaf below a value that was overwritten no longer exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.messages import Message
from agentnb.core.state import CallState
from agentnb.loops.execution_loop.references import DAGGER, MISSING, copied_value, parse_expression, step_into
from agentnb.loops.execution_loop.types import Call, loop_fields

METHODS = ("set", "merge", "assign", "push", "concat")
"""The output methods."""

MAX_KEYS = 100
"""Maximal number of keys in an output path. A recording with many more levels could not be read back."""


# -- writing at a path ---------------------------------------------------------------------------------------------


def write_at(root: Any, keys: Sequence[str], value: Any, method: str = "set") -> Any:
    """Write a copy of `value` at the path `keys` of `root`, and return the new root.

    root: the data; it is changed in place. method: one of METHODS.
    """
    value = copied_value(value)
    if not keys:
        return _combined(root, value, method)

    # Go down to the container of the last key. A value that cannot contain the next key is overwritten by an object.
    root = container = root if _can_contain(root, keys[0]) else {}
    for key, below in pairwise(keys):
        child = step_into(container, key)
        if not _can_contain(child, below):
            child = {}
            _put(container, key, child)
        container = child

    _put(container, keys[-1], _combined(step_into(container, keys[-1]), value, method))
    return root


def merged(old: Any, new: Any) -> Any:
    """Merge objects at every depth, and replace everything else. `old` is changed in place."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    for key, value in new.items():
        old[key] = merged(old.get(key, MISSING), value)
    return old


def _combined(old: Any, new: Any, method: str) -> Any:
    """Return the value at a path after a write. `old` is MISSING if there was none; it may be changed in place."""
    if method == "set":
        return new
    if method == "merge":
        return merged(old, new)
    if method == "assign":
        return {**old, **new} if isinstance(old, dict) and isinstance(new, dict) else new
    if method == "concat" and isinstance(new, str) and (isinstance(old, str) or old is MISSING):
        return new if old is MISSING else old + new

    # The other cases append to a list; a value that is not a list becomes the first item.
    if old is MISSING or old is None:
        old = []
    items = old if isinstance(old, list) else [old]
    if method == "concat" and isinstance(new, list):
        items += new
    else:
        items.append(new)
    return items


def _can_contain(container: Any, key: str) -> bool:
    """Return True if a value can be put under this key: any key of an object; an index of a list, or the next one."""
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


def check_writing(fields: Mapping[str, Any]) -> None:
    """Raise InvalidArguments if the output path, the method or the instance of a call or a message is not valid."""
    path, method = fields.get("_outputPath"), fields.get("_outputMethod")
    if path is not None and not (isinstance(path, str) and path.startswith(DAGGER)):
        raise InvalidArguments(f"`_outputPath` must be a path like {DAGGER}state.name, not {path!r}.")
    for target in parse_expression(path).paths if path is not None else ():
        if target.kind == "error":
            raise InvalidArguments(f"`_outputPath` must be a path to data, not {path!r}: only the loop writes errors.")
        if len(target.keys) > MAX_KEYS:
            raise InvalidArguments(f"`_outputPath` has {len(target.keys)} keys; at most {MAX_KEYS} can be recorded.")
    if method is not None and method not in METHODS:
        raise InvalidArguments(f"`_outputMethod` must be one of {', '.join(METHODS)}, not {method!r}.")
    if not isinstance(fields.get("_instance"), (str, type(None))):
        raise InvalidArguments("`_instance` must be text.")


# -- what a finished call writes -----------------------------------------------------------------------------------


def writes(call: CallState) -> Iterator[Message]:
    """Yield the messages that a finished call adds to the context; none for a call that failed or is still open."""
    end = call.end
    if end is None or end.is_error:
        return
    fields = loop_fields(call)
    path, method = fields.get("_outputPath"), fields.get("_outputMethod")
    returned = end.details.get("message") if isinstance(end.details, dict) else None

    # A plain value is written to the call's output path, or dropped. So is an object that only looks like a text
    # message: with an output path it is data.
    is_text = returned is not None and returned.get("type") != "data"
    if returned is None or (path is not None and is_text and isinstance(end.result, dict)):
        if path is not None:
            yield from _write_to(call, path, end.result, method, fields)
        return

    # A text message is appended.
    if is_text:
        yield Message.of(returned)
        return

    # A data message is written to its own path, else to the call's. If it names a kind and no path, it is appended.
    chosen = returned.get("_outputPath") or (None if returned.get("kind") else path)
    if chosen is not None:
        yield from _write_to(call, chosen, returned["data"], returned.get("_outputMethod") or method, fields)
    else:
        yield _data_message(call, {"kind": "data", **returned}, fields)


def _write_to(call: CallState, to: str, value: Any, method: str | None, fields: dict[str, Any]) -> Iterator[Message]:
    """Yield a data message for each path of the first alternative of `to`."""
    for path in parse_expression(to).alternatives[0]:
        data = value
        for key in reversed(path.keys):
            data = {key: data}
        written = {"kind": path.kind, "data": data, "_outputPath": str(path), "_outputMethod": method or "set"}
        yield _data_message(call, written, fields)


def _data_message(call: CallState, written: dict[str, Any], fields: dict[str, Any]) -> Message:
    """Return the message with the instance of the call, and the hidden fields that say which call wrote it and when."""
    assert call.end is not None
    if fields.get("_instance") is not None:
        written = {"_instance": fields["_instance"], **written}
    hidden = {
        "_call": {**Call.as_made(call), "_id": call.id},
        "_date": datetime.fromtimestamp(call.end.time, UTC).isoformat(),
    }
    return Message.of({"role": "data", "content": "", "type": "data", **written, **hidden})


# -- errors --------------------------------------------------------------------------------------------------------


def error_of(call: CallState) -> Message | None:
    """Return the error message of a call that failed or was rejected, else None."""
    end = call.end
    if end is None or not end.is_error:
        return None
    error = rejection(call) if end.outcome == "rejected" else end.result
    return error_message(Call.as_made(call), error, call.id, detached=call.let_go)


def rejection(call: CallState) -> str:
    """Return the text that the model is sent for a rejected call (SEMANTICS.md, 7. Confirmation)."""
    reason = call.decision.reason if call.decision is not None else ""
    return f"rejected by user: {reason}" if reason else "rejected by user"


def error_message(call: Call | None, error: Any, call_id: str | None = None, *, detached: bool = False) -> Message:
    """Return an error message. call: None if the error is about the answer as a whole."""
    fields: dict[str, Any] = {"role": "data", "content": "", "type": "data", "kind": "error"}
    fields["data"] = {"call": call, "error": error}
    if call_id is not None:
        fields["_call"] = {"_id": call_id, "_detached": True} if detached else {"_id": call_id}
    return Message.of(fields)
