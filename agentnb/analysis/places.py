"""Replacements for call ids, for the comparison of recordings.

A provider assigns a new id to each call in each run. The id only links a result to its call. So each occurrence of an
id is replaced by the position of its call in the model's answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.event import Event
from agentnb.core.events import ModelEnd, RunStart
from agentnb.core.messages import Message

Places = Mapping[str, str]
"""The replacement of each call id."""


def places(events: Iterable[Event]) -> Places:
    """Return the replacement of each call id in the models' answers and in the history that a run continues."""
    found: dict[str, str] = {}
    for event in events:
        for message in _answers(event):
            for number, call in enumerate(message.tool_calls, 1):
                found.setdefault(call.id, f"call {number}")
    return found


def placed(value: Any, at: Places) -> Any:
    """Return plain data with the call ids replaced."""
    if isinstance(value, dict):
        return {name: placed(inside, at) for name, inside in value.items()}
    if isinstance(value, list):
        return [placed(inside, at) for inside in value]
    return at.get(value, value) if isinstance(value, str) else value


def placed_json(event: Event, text: str, at: Places) -> str:
    """Return the JSON of an event with the call ids replaced.

    text: the event's JSON. Only the start of a run is parsed; the few ids of other events are replaced in the text.
    """
    if isinstance(event, RunStart):
        return to_json(placed(from_json(text), at)).decode()
    for id in _named(event):
        if id in at:
            text = text.replace(_quoted(id), _quoted(at[id]))
    return text


def _quoted(text: str) -> str:
    return to_json(text).decode()


def _named(event: Event) -> Iterator[str]:
    if isinstance(id := getattr(event, "call_id", None), str):
        yield id
    for message in _answers(event):
        yield from (call.id for call in message.tool_calls)


def _answers(event: Event) -> Iterable[Message]:
    if isinstance(event, ModelEnd):
        return (event.message,)
    return event.history if isinstance(event, RunStart) else ()
