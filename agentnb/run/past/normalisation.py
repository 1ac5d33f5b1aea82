"""Normalisation: the content by which events and states of two recordings are compared.

Values that are stamped or measured, and so new in each run, are left out: times, run ids, fingerprints. A provider also
assigns a new id to each call in each run. The id only links a result to its call, so each occurrence of an id is
replaced by the position of its call in the model's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.event import Event
from agentnb.core.events import ModelEnd, RunStart
from agentnb.core.messages import Message

_MESSAGE = {
    "_date": True,
    "event": {"id", "timestamp", "invocation_id"},
    # Only the provider can read these, and it makes new ones for each request.
    "reasoning": {"__all__": {"signature", "redacted", "provider"}},
    "order": {"__all__": {"server", "block", "citations", "item"}},
}
_ERROR = {"traceback"}
_EVENT: dict[str, Any] = {
    **dict.fromkeys(("seq", "time", "run_id", "timing", "deadline", "fingerprint", "response_id"), True),
    **dict.fromkeys(("forked_from", "ancestors", "forks", "inherited", "seen"), True),
    **dict.fromkeys(
        ("question", "seconds", "shown", "tool_fingerprint", "tools", "approve", "limits", "model_options"), True
    ),
    **dict.fromkeys(("on_limit", "tags", "data"), True),
    "message": _MESSAGE,
    "error": _ERROR,
}
"""The fields of an event that are not compared, in the form of pydantic's `exclude=`.

They are stamped or measured, and new in each run. A fingerprint is computed from other fields or from a tool. A policy
and limits are visible in their decisions, options in the requests. Tags and data only describe a run.
"""
_STATE = frozenset({"run_id", "started", "position", "reply"})
"""The values of a state that are not compared. `reply` is left out because it is also a message."""


CallNames = Mapping[str, str]
"""The replacement of each call id of a recording: "call 1" for the first call of an answer."""


def call_names(events: Iterable[Event]) -> CallNames:
    """Return the replacement of each call id in the models' answers and in the history that a run continues."""
    names: dict[str, str] = {}
    for event in events:
        for message in _answers(event):
            for number, call in enumerate(message.tool_calls, 1):
                names.setdefault(call.id, f"call {number}")
    return names


def normalised_event(event: Event, names: CallNames) -> str:
    """Return the content of an event as JSON, by which events are compared.

    names: the replacements for the call ids of the event's recording (`call_names`).
    """
    nothing_queued = isinstance(event, RunStart) and not any(event.queued.values())
    excluded = _EVENT | {"queued": True} if nothing_queued else _EVENT  # empty and missing queues are equal
    text = to_json(_without(event.to_dict(), excluded)).decode()

    # Replace the call ids. The start of a run is parsed; other events have few ids, which are replaced in the text.
    if isinstance(event, RunStart):
        return to_json(_renamed(from_json(text), names)).decode()
    ids = [call.id for message in _answers(event) for call in message.tool_calls]
    if isinstance(call_id := getattr(event, "call_id", None), str):
        ids.insert(0, call_id)
    for id in ids:
        if id in names:
            text = text.replace(to_json(id).decode(), to_json(names[id]).decode())
    return text


def normalised_state(state: dict[str, Any], names: CallNames) -> dict[str, Any]:
    """Return a dumped state without the values that are not compared, and with the call ids replaced.

    names: the replacements for the call ids of the state's recording (`call_names`).
    """
    normalised: dict[str, Any] = _renamed(_state(state), names)
    return normalised


def _state(state: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in state.items() if name not in _STATE}
    kept["children"] = {name: _state(child) for name, child in state["children"].items()}
    kept["messages"] = [_without(message, _MESSAGE) for message in state["messages"]]
    kept["rules"] = [_without(rule, _EVENT) for rule in state["rules"]]
    for name in ("calls", "own_calls"):
        kept[name] = [
            {part: _without(value, _EVENT) if _is_event(value) else value for part, value in call.items()}
            for call in state[name]
        ]
    for name in ("failure", "error"):
        kept[name] = _without(state[name], _ERROR)
    return kept


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and "seq" in value and "type" in value


def _without(value: Any, names: Any) -> Any:
    """Return plain data without the fields in `names`, which have the form of pydantic's `exclude=`."""
    if isinstance(value, list) and isinstance(names, dict) and "__all__" in names:
        return [_without(item, names["__all__"]) for item in value]
    if not isinstance(value, dict):
        return value
    inside = names if isinstance(names, dict) else dict.fromkeys(names, True)
    return {
        name: _without(field, inside.get(name, ())) for name, field in value.items() if inside.get(name) is not True
    }


def _renamed(value: Any, names: CallNames) -> Any:
    """Return plain data with the call ids replaced."""
    if isinstance(value, dict):
        return {name: _renamed(field, names) for name, field in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


def _answers(event: Event) -> Iterable[Message]:
    """Return the messages of an event that may have calls: a model's answer, or the history that a run continues."""
    if isinstance(event, ModelEnd):
        return (event.message,)
    return event.history if isinstance(event, RunStart) else ()
