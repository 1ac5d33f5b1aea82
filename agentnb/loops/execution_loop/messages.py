"""Messages of the context, made from the values of users and tools (SEMANTICS.md, 2. Messages and data).

In the history of a run a data message has the role `data` and the fields it was written with: `type`, `kind`, `data`.
Fields that start with an underscore are hidden from the model: the call that wrote it (`_call`, with the id that the
loop assigned), when (`_date`), where (`_outputPath`) and how (`_outputMethod`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentnb.core.errors import InvalidArguments, UsageError
from agentnb.core.messages import Message, is_message_object, to_message
from agentnb.loops.execution_loop.references import MISSING, at_path, parse_expression
from agentnb.loops.execution_loop.types import ErrorMessage
from agentnb.loops.execution_loop.writes import check_writing

_DATA_TYPES = frozenset({"input", "state", "plan", "meta", "preset"})
"""Values of `type` that mean a data message of the kind with the same name."""

_TEXT_FIELDS = frozenset({"type", "role", "content", "text"})
"""The only fields that a text message returned by a tool may have."""

_DATA_FIELDS = frozenset({"type", "kind", "schema", "description"})
"""Fields that a data message may have in addition to the data itself and to the hidden fields."""


# -- messages given by users ---------------------------------------------------------------------------------------


def to_input(given: Any) -> list[Message]:
    """Return a run's input as messages.

    given: None, text, a message, a list of these, or a mapping of parameters. Raises UsageError for a message that is
    not valid.
    """
    if given is None:
        return []
    if isinstance(given, (list, tuple)):
        return [message for item in given for message in to_input(item)]
    if isinstance(given, Mapping) and not isinstance(given, Message) and not ({"role", "type"} & set(given)):
        return [_data_message(kind="input", given={"data": dict(given)})]
    return [to_context(given if isinstance(given, (str, Mapping)) or is_message_object(given) else str(given))]


def to_context(given: Any) -> Message:
    """Return a message of the context from any form in which a user may write one.

    Raises UsageError if it is not a message, InvalidArguments if it is a malformed data message.
    """
    if isinstance(given, (Message, str)) or is_message_object(given):
        return to_message(given)
    if not isinstance(given, Mapping):
        raise UsageError(f"A message of the context must be a mapping or a string, not {given!r}.")
    if is_tool_message(given):
        raise UsageError(
            f"A message that offers tools belongs into context=, where the loop is constructed, not here: {given}."
        )

    # A message may name its kind as its type: {"type": "input", "input": {...}}, or the data may be the message's own
    # fields: {"type": "input", "city": "Berlin"}. Put the data under `data`.
    kind = given.get("type")
    if kind in _DATA_TYPES and "data" not in given and "role" not in given:
        beside = {name: value for name, value in given.items() if name in _DATA_FIELDS or name.startswith("_")}
        fields = {name: value for name, value in given.items() if name not in beside}
        if kind in given:
            given = {**beside, "data": given[kind]}
        elif fields:
            given = {**beside, "data": fields}

    type_, kind = given.get("type", "data"), None
    if "data" in given and (type_ in (None, "data") or type_ in _DATA_TYPES):
        kind = given.get("kind", type_ or "data")
    if kind is not None:
        return _data_message(kind, given)
    if "role" in given or given.get("type") in ("text", "system"):
        return _text_message(given)
    raise UsageError(f'A message of the context needs `role` and `content`, or `type: "data"` and `data`; got {given}.')


def is_tool_message(given: Any) -> bool:
    """Return True for a message `{"type": "tool", "tool": ...}`. It offers tools, and is not sent to the model."""
    return isinstance(given, Mapping) and given.get("type") == "tool" and "role" not in given


def tools_offered(message: Mapping[str, Any]) -> list[Any]:
    """Return the tools of a message that offers one tool, or schemas by tool name. Raises UsageError if it has none."""
    offered = message.get("tool")
    if offered is None or isinstance(offered, (str, list)):
        raise UsageError(
            f"A message of the type tool must have a tool, or tools by name, in `tool`; this one does not: {message}."
        )
    if not isinstance(offered, Mapping) or "_tool" in offered or "properties" in offered:
        return [offered]
    return [{"_tool": name, **schema} if isinstance(schema, Mapping) else schema for name, schema in offered.items()]


def _text_message(given: Mapping[str, Any]) -> Message:
    if given.get("role") == "tool" or given.get("tool_calls"):  # providers refuse either without the other
        return to_message(given)
    role = "system" if given.get("type") == "system" else "user"
    texts = (given[name] for name in ("content", "text", "system") if given.get(name) is not None)
    return to_message({"role": given.get("role", role), "content": next(texts, "")})


def _data_message(kind: str, given: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in given.items() if name not in ("role", "content")}
    _check_data({**fields, "kind": kind})
    path = fields.get("_outputPath")
    if path is not None and at_path(fields["data"], next(parse_expression(path).paths).keys) is MISSING:
        raise InvalidArguments(f"The data of a message has nothing at its `_outputPath` {path}: {given!r:.200}.")
    if isinstance(wrote := fields.get("_call"), Mapping):  # the call id of another run means nothing in this one
        fields["_call"] = {name: value for name, value in wrote.items() if name != "_id"}
    return to_message({**fields, "role": "data", "content": "", "type": "data", "kind": kind})


def _check_data(fields: Mapping[str, Any]) -> None:
    """Check a data message that a user or a tool made. Raises InvalidArguments."""
    kind, data = fields["kind"], fields["data"]
    if not isinstance(kind, str):
        raise InvalidArguments(f"The kind of a data message must be a string, not {kind!r}.")
    if kind == "error" and not (isinstance(data, Mapping) and "error" in data):
        raise InvalidArguments(f"The data of an error message must have `error`; this one does not: {data!r:.200}.")
    check_writing(fields)


# -- messages returned by tools ------------------------------------------------------------------------------------


def returned(value: Any) -> dict[str, Any]:
    """Return the fields of the `CallEnd` for the value that a tool returned.

    value: a plain result, or a message: of data, or of text for the model. Raises InvalidArguments if it is a malformed
    message, which is the tool's mistake.
    """
    if isinstance(value, Message) and value.role in ("user", "system"):
        return {"result": value.content, "details": {"message": value}}
    fields = dict(value) if isinstance(value, ErrorMessage) else value
    if not isinstance(fields, Mapping):
        return {"result": value}

    # A data message.
    if fields.get("type") == "data" and "data" in fields:
        names = [name for name in fields if name not in ("role", "content")]
        message = {name: fields[name] for name in names if fields[name] is not None}
        message["data"] = fields["data"]
        _check_data({"kind": "data", **message})
        return {"result": fields["data"], "details": {"message": message}}

    # A text message: it has a role or a type, text, and nothing else.
    if set(fields) <= _TEXT_FIELDS and {"role", "type"} & set(fields):
        is_for_model = fields.get("role", "user") in ("user", "system")
        is_for_model = is_for_model and fields.get("type", "text") in ("text", "system")
        if is_for_model and isinstance(fields.get("content", fields.get("text")), str):
            return {"result": dict(fields), "details": {"message": _text_message(fields)}}
    return {"result": value}


# -- messages as others see them -----------------------------------------------------------------------------------


def as_written(message: Message) -> dict[str, Any]:
    """Return a message as it was written, with its hidden fields: without the role and content of a data message."""
    if message.role != "data":
        return message
    return {name: value for name, value in message.items() if name not in ("role", "content")}


def without_hidden(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data message as the model is sent it. `_instance` is not hidden."""
    return {name: value for name, value in message.items() if not name.startswith("_") or name == "_instance"}
