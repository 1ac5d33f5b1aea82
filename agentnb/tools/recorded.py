"""The tools of a recording: they give what they gave, and do nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.errors import ToolError
from agentnb.core.events import CallEnd, CallStart, Event
from agentnb.core.json_data import same_json
from agentnb.core.tools import Acted, Invocation, Progress

_RAN = frozenset({"returned", "raised", "timed_out"})
"""Outcomes of calls that a tool has performed."""

_SHOWN = 300
"""Characters of arguments that an error shows."""


@dataclass(slots=True)
class RecordedTool:
    """Gives each call the result that a call with these arguments had, in the order there were such calls.

    What the arguments may be is not recorded: its schema takes any object. A call that was not recorded raises
    AssertionError: it is for tests.
    """

    name: str
    results: list[tuple[dict[str, Any], CallEnd]] = field(default_factory=list, repr=False)
    description: str = "A tool of a recording."
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"}, repr=False)
    approve: bool = False
    idempotent: bool = True
    timeout: float | None = None
    needs: tuple[str, ...] = ()
    sequential: bool = False
    detached: bool = False

    def bind(self, arguments: dict[str, Any]) -> Invocation:
        """The call with these arguments, ready to be answered."""

        async def invoke(progress: Progress) -> Any:
            for number, (recorded, end) in enumerate(self.results):
                if same_json(recorded, arguments):
                    del self.results[number]
                    if end.is_error:
                        raise ToolError(str(end.result))
                    said = end.details.get("actions") if isinstance(end.details, dict) else None
                    return Acted(end.result, said) if isinstance(said, dict) else end.result
            told = str(arguments)
            told = told if len(told) <= _SHOWN else f"{told[:_SHOWN]}…"
            raise AssertionError(f"The recording has no (further) call of {self.name} with {told}.")

        return invoke


def recorded_tools(events: Iterable[Event]) -> list[RecordedTool]:
    """The tools whose calls a recording has, those of loops inside included."""
    tools: dict[str, RecordedTool] = {}
    started: dict[tuple[str, str], CallStart] = {}
    for event in events:
        if isinstance(event, CallStart) and not event.own:
            started[event.path, event.call_id] = event
            tools.setdefault(event.name, RecordedTool(event.name, detached=event.detached))
        elif isinstance(event, CallEnd) and (event.path, event.call_id) in started:
            start = started.pop((event.path, event.call_id))
            if event.outcome in _RAN:
                tools[start.name].results.append((start.arguments, event))
    return list(tools.values())
