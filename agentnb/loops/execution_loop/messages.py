"""The messages of a context: data messages, errors and text (SEMANTICS.md, 2. Messages and data).

In the history of a run a data message has the role `data` and the fields it is written with: `type`, `kind`, `data`,
and behind an underscore what the model is not told: the call that wrote it (`_call`, with the id the loop gave it),
when (`_date`), where to (`_outputPath`) and how (`_outputMethod`). `context` gives messages as they were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.messages import Message, is_message_object, to_message
from agentnb.loops.execution_loop.references import MISSING, at_path, parse_expression
from agentnb.loops.execution_loop.types import ErrorMessage
from agentnb.loops.execution_loop.writes import check_writing

_KINDS = frozenset({"input", "state", "plan", "meta", "preset"})
"""Types of message that are data of the kind of that name."""


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
