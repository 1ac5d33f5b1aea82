"""The messages of a context: data messages, errors and text, from outside and from calls (SEMANTICS 2b).

In the history of a run a data message has the role `data` and the fields it is written with: `type`, `kind`, `data`,
and behind an underscore what the model is not told: the call that wrote it (`_call`, with the id the loop gave it),
when (`_date`), where to (`_outputPath`) and how (`_outputMethod`). `context` gives messages as they were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.messages import Message, to_message
from agentnb.core.state import CallState
from agentnb.loops.execution_loop.references import Expression, parse_expression
from agentnb.loops.execution_loop.values import Call, said_beside

_KINDS = frozenset({"input", "state", "plan", "meta", "preset"})
"""Types of message that are data of the kind of that name."""


def to_context(given: Any) -> Message:
    """A message of the context from whatever may be given as one. Raises UsageError."""
    if isinstance(given, (Message, str)):
        return to_message(given)
    if not isinstance(given, Mapping):
        raise UsageError(f"A message of the context is a mapping or text, not {given!r}.")
    kind = given.get("type")
    if "data" in given and (kind in _KINDS or kind in (None, "data")):
        return _data(kind=given.get("kind", kind if kind in _KINDS else "data"), given=given)
    if "role" in given or kind in ("text", "system"):
        content = given.get("content", given.get("text", ""))
        return to_message({"role": given.get("role", "system" if kind == "system" else "user"), "content": content})
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
    return [to_context(given if isinstance(given, (str, Mapping)) else str(given))]


def _data(kind: str, given: Mapping[str, Any]) -> Message:
    fields = {name: value for name, value in given.items() if name not in ("role", "content")}
    if isinstance(wrote := fields.get("_call"), Mapping):  # by another run, whose ids mean nothing here
        fields["_call"] = {name: value for name, value in wrote.items() if name != "_id"}
    return to_message({**fields, "role": "data", "content": "", "type": "data", "kind": kind})


def context(message: Message) -> dict[str, Any]:
    """A message of the context as it is written."""
    plain = message.plain
    return {name: plain[name] for name in plain if name not in ("role", "content")} if message.role == "data" else plain


def told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A data message as the model is told of it, without what is hidden."""
    return {name: value for name, value in message.items() if not name.startswith("_") or name == "_instance"}


# -- what calls write ----------------------------------------------------------------------------------------------


def returned(value: Any) -> dict[str, Any]:
    """What a tool has returned, as fields of its `CallEnd`: it may be a message, of data or of text for the model."""
    if isinstance(value, Mapping) and value.get("type") == "data" and "data" in value:
        return {"result": value["data"], "details": {"message": dict(value)}}
    if isinstance(value, Message) and value.role in ("user", "system"):
        return {"result": value.content, "details": {"message": value.plain}}
    return {"result": value}


def writes(call: CallState) -> Iterator[Message]:
    """The data messages that a call which has ended adds to the context (SEMANTICS 2g.8, 2g.9, 2g.14)."""
    end = call.end
    if end is None or end.is_error:
        return
    beside = said_beside(call)
    returned = end.details.get("message") if isinstance(end.details, dict) else None
    chosen = returned.get("_outputPath") if returned is not None else None
    if returned is not None and returned.get("type") != "data":
        yield Message.model_validate(returned)
    elif returned is not None and chosen is None and (returned.get("kind") or not beside.get("_outputPath")):
        yield _written(call, {"kind": "data", **returned}, beside)
    elif path := chosen or beside.get("_outputPath"):
        value = returned["data"] if returned is not None else end.result
        yield from _write_to(call, parse_expression(path), value, beside)


def _write_to(call: CallState, expression: Expression, value: Any, beside: dict[str, Any]) -> Iterator[Message]:
    for path in expression.alternatives[0]:
        data = value
        for key in reversed(path.keys):
            data = {key: data}
        method = beside.get("_outputMethod") or "set"
        fields = {"kind": path.kind, "data": data, "_outputPath": str(path), "_outputMethod": method}
        yield _written(call, fields, beside)


def _written(call: CallState, fields: dict[str, Any], beside: dict[str, Any]) -> Message:
    made = call.replaced or call.proposed
    assert call.end is not None
    if beside.get("_instance") is not None:
        fields = {"_instance": beside["_instance"], **fields}
    hidden = {
        "_call": {**Call.made_of(made.name, made.arguments), "_id": call.id},
        "_date": datetime.fromtimestamp(call.end.time, UTC).isoformat(),
    }
    return Message.model_validate({"role": "data", "content": "", "type": "data", **fields, **hidden})


def error_of(call: CallState) -> Message | None:
    """The error message of a call that failed or was rejected; None where it did neither."""
    end = call.end
    if end is None or not end.is_error:
        return None
    error = rejection(call) if end.outcome == "rejected" else end.result
    made = call.replaced or call.proposed
    return error_message(Call.made_of(made.name, made.arguments), error, call.id, detached=call.let_go)


def rejection(call: CallState) -> str:
    """What the model is told of a call that somebody has rejected (SEMANTICS 2g.11)."""
    reason = call.decision.reason if call.decision is not None else ""
    return f"rejected by user: {reason}" if reason else "rejected by user"


def error_message(call: Call | None, error: Any, call_id: str | None = None, *, detached: bool = False) -> Message:
    """An error message; without a call it is about the answer as a whole."""
    fields: dict[str, Any] = {"role": "data", "content": "", "type": "data", "kind": "error"}
    fields["data"] = {"call": call, "error": error}
    if call_id is not None:
        fields["_call"] = {"_id": call_id, "_detached": True} if detached else {"_id": call_id}
    return Message.model_validate(fields)
