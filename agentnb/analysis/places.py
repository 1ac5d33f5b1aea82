"""Calls by their place in the answer that made them, as recordings are compared.

A provider gives every call an id of its own, anew in each run. It says nothing, but that this result is that call's: so
an id stands for the place its call has in its answer, wherever it is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from agentnb.core.event import Event
from agentnb.core.events import ModelEnd, RunStart
from agentnb.core.messages import Message

Places = Mapping[str, str]
"""What stands for each id."""


def places(events: Iterable[Event]) -> Places:
    """The place of each call that a model made, and of those in the history that a run goes on from."""
    found: dict[str, str] = {}
    for event in events:
        for message in _answers(event):
            for number, call in enumerate(message.tool_calls, 1):
                found.setdefault(call.id, f"call {number}")
    return found


def placed(value: Any, at: Places) -> Any:
    """Plain data with what stands for them in place of ids."""
    if isinstance(value, dict):
        return {name: placed(inside, at) for name, inside in value.items()}
    if isinstance(value, list):
        return [placed(inside, at) for inside in value]
    return at.get(value, value) if isinstance(value, str) else value


def placed_json(event: Event, text: str, at: Places) -> str:
    """The same for an event that is JSON already: all but a run's start name few ids, and are not taken apart."""
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
