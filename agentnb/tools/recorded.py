"""Recorded tools: the tools of a recording, which return the recorded results and do nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentnb.core.errors import ToolError
from agentnb.core.events import CallEnd, CallStart, Event
from agentnb.core.json import same_json
from agentnb.core.tools import Acted, Invocation, ReportProgress

_RAN = frozenset({"returned", "raised", "timed_out"})
"""The outcomes of calls that a tool has performed."""

_SHOWN = 300
"""The number of characters of arguments that an error shows."""


@dataclass(slots=True)
class RecordedTool:
    """Returns the recorded results of calls with the same arguments, in the recorded order.

    The class is for tests. The schema of a tool is not recorded, so this one accepts any object. A call that is not in
    the recording raises AssertionError.
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
        """Return the call with these arguments, ready to run."""

        async def invoke(progress: ReportProgress) -> Any:
            for number, (recorded, end) in enumerate(self.results):
                if same_json(recorded, arguments):
                    del self.results[number]
                    if end.is_error:
                        raise ToolError(str(end.result))
                    actions = end.details.get("actions") if isinstance(end.details, dict) else None
                    return Acted(end.result, actions) if isinstance(actions, dict) else end.result
            shown = str(arguments)
            shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
            raise AssertionError(f"The recording has no (further) call of {self.name} with {shown}.")

        return invoke


def recorded_tools(events: Iterable[Event]) -> list[RecordedTool]:
    """Return the tools of the calls in a recording, including those of nested loops."""
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
