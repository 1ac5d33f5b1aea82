"""The messages of a context: data messages, errors and text (SEMANTICS.md, 2. Messages and data).

In the history of a run a data message has the role `data` and the fields it is written with: `type`, `kind`, `data`,
and behind an underscore what the model is not told: the call that wrote it (`_call`, with the id the loop gave it),
when (`_date`), where to (`_outputPath`) and how (`_outputMethod`). `context` gives messages as they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.messages import Message, is_message_object, to_message
from agentnb.core.state import CallState
from agentnb.loops.execution_loop.data import METHODS
from agentnb.loops.execution_loop.references import DAGGER, MISSING, at_path, parse_expression
from agentnb.loops.execution_loop.values import Call, ErrorMessage, said_beside

_KINDS = frozenset({"input", "state", "plan", "meta", "preset"})
"""Types of message that are data of the kind of that name."""

LEVELS = 100
"""Keys that a path to write to may have: a recording with many more levels could not be read again."""

_TEXT = frozenset({"type", "role", "content", "text"})
"""What a message of text says of itself."""

_BESIDE_DATA = frozenset({"type", "kind", "schema", "description"})
"""What a message of data may say beside the data and what begins with an underscore."""


def is_tool_message(given: Any) -> bool:
    """Whether this is `{"type": "tool", "tool": ...}`: it offers tools, and says nothing to the model."""
    return isinstance(given, Mapping) and given.get("type") == "tool" and "role" not in given


def tools_offered(message: Mapping[str, Any]) -> list[Any]:
    """The tools in a message that offers some: one tool, or schemas by the names of their tools. Raises UsageError."""
    offered = message.get("tool")
    if offered is None or isinstance(offered, (str, list)):
        raise UsageError(
            f"A message of the type tool has a tool, or tools by name, in `tool`; this has not: {message}."
        )
    if not isinstance(offered, Mapping) or "_tool" in offered or "properties" in offered:
        return [offered]
    return [{"_tool": name, **schema} if isinstance(schema, Mapping) else schema for name, schema in offered.items()]


def to_context(given: Any) -> Message:
    """A message of the context from whatever may be given as one. Raises UsageError."""
    if isinstance(given, (Message, str)) or is_message_object(given):
        return to_message(given)
    if not isinstance(given, Mapping):
        raise UsageError(f"A message of the context is a mapping or text, not {given!r}.")
    if is_tool_message(given):
        raise UsageError(
            f"A message that offers tools belongs into context=, where the loop is made, not here: {given}."
        )
    given = _with_data(given)
    if (kind := _kind_of(given)) is not None:
        return _data(kind, given)
    if "role" in given or given.get("type") in ("text", "system"):
        return _text(given)
    raise UsageError(
        f"A message of the context has a role and content, or the type data and data; this has not: {given}."
    )


def to_input(given: Any) -> list[Message]:
    """What a run is started with, as messages: nothing, text, a message, several, or the parameters themselves."""
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [message for item in given for message in to_input(item)]
    if isinstance(given, Mapping) and not isinstance(given, Message) and not ({"role", "type"} & set(given)):
        return [_data(kind="input", given={"data": dict(given)})]
    return [to_context(given if isinstance(given, (str, Mapping)) or is_message_object(given) else str(given))]


def _with_data(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of data of its own type, `{"type": "input", "input": {...}}`, as one that has `data`.

    The data may also be the message's own fields: `{"type": "input", "city": "Berlin"}`.
    """
    kind = given.get("type")
    if kind not in _KINDS or "data" in given or "role" in given:
        return given
    beside = {name: value for name, value in given.items() if name in _BESIDE_DATA or name.startswith("_")}
    if kind in given:
        return {**beside, "data": given[kind]}
    fields = {name: value for name, value in given.items() if name not in beside}
    return {**beside, "data": fields} if fields else given


def _kind_of(given: Mapping[str, Any]) -> Any:
    """The kind of a message of data; None for every other."""
    said = given.get("type", "data")
    if "data" not in given or not (said in (None, "data") or said in _KINDS):
        return None
    return given.get("kind", said or "data")


def _text(given: Mapping[str, Any]) -> Message:
    if given.get("role") == "tool" or given.get("tool_calls"):  # providers refuse either without the other
        return to_message(given)
    role = "system" if given.get("type") == "system" else "user"
    words = (given[name] for name in ("content", "text", "system") if given.get(name) is not None)
    return to_message({"role": given.get("role", role), "content": next(words, "")})


def _data(kind: str, given: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in given.items() if name not in ("role", "content")}
    _check_data({**fields, "kind": kind})
    path = fields.get("_outputPath")
    if path is not None and at_path(fields["data"], next(parse_expression(path).paths).keys) is MISSING:
        raise InvalidArguments(f"The data of a message has nothing at its `_outputPath` {path}: {given!r:.200}.")
    if isinstance(wrote := fields.get("_call"), Mapping):  # by another run, whose ids mean nothing here
        fields["_call"] = {name: value for name, value in wrote.items() if name != "_id"}
    return to_message({**fields, "role": "data", "content": "", "type": "data", "kind": kind})


def _check_data(fields: Mapping[str, Any]) -> None:
    """Look at a data message that somebody has made. Raises InvalidArguments where it is none."""
    kind, data = fields["kind"], fields["data"]
    if not isinstance(kind, str):
        raise InvalidArguments(f"The kind of a data message is a text, not {kind!r}.")
    if kind == "error" and not (isinstance(data, Mapping) and "error" in data):
        raise InvalidArguments(f"The data of an error message has `error`; this has not: {data!r:.200}.")
    check_writing(fields)


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


def context(message: Message) -> dict[str, Any]:
    """A message of the context as it is written."""
    if message.role != "data":
        return message
    return {name: value for name, value in message.items() if name not in ("role", "content")}


def told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A data message as the model is told of it, without what is hidden."""
    return {name: value for name, value in message.items() if not name.startswith("_") or name == "_instance"}


# -- what calls write ----------------------------------------------------------------------------------------------


def returned(value: Any) -> dict[str, Any]:
    """What a tool has returned, as fields of its `CallEnd`: it may be a message, of data or of text for the model.

    Raises InvalidArguments for a message that is malformed: it is the tool's mistake.
    """
    if value is None or isinstance(value, (str, int, float, list)):  # the cheap question first: it is asked of each
        return {"result": value}
    if isinstance(value, Message) and value.role in ("user", "system"):
        return {"result": value.content, "details": {"message": value}}
    said = value if isinstance(value, Message) else dict(value) if isinstance(value, ErrorMessage) else value
    if not isinstance(said, Mapping):
        return {"result": value}
    if said.get("type") == "data" and "data" in said:
        message = {name: said[name] for name in said if name not in ("role", "content") and said[name] is not None}
        message["data"] = said["data"]
        _check_data({"kind": "data", **message})
        return {"result": said["data"], "details": {"message": message}}
    if set(said) <= _TEXT and _is_text(said):
        return {"result": dict(said), "details": {"message": _text(said)}}
    return {"result": value}


def _is_text(said: Mapping[str, Any]) -> bool:
    is_told = said.get("role", "user") in ("user", "system") and said.get("type", "text") in ("text", "system")
    return is_told and bool({"role", "type"} & set(said)) and isinstance(said.get("content", said.get("text")), str)


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
