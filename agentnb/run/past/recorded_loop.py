"""The substitute for the loop of a recording if no loop is given: its description in the events, which cannot run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunStart
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.loops import design_of


class RecordedLoop(Design):
    """A loop that can be displayed, but makes no decisions."""

    def __init__(self, start: RunStart, phases: Mapping[str, Sequence[str]]) -> None:
        self.name = start.name
        self.phases = phases  # type: ignore[misc]  # of the recorded design, whose class may be unknown
        self._config = start.config
        self.system_prompt = start.config.get("system_prompt")
        self.kind = lambda: start.loop  # type: ignore[method-assign]

    def advance(self, state: State) -> Event:
        """Raise UsageError, because a recorded loop makes no decisions."""
        raise UsageError(f"This is a recording of a {self.kind()}: give the loop itself to go on with it.")

    def config(self) -> dict[str, Any]:
        """Return the recorded configuration."""
        return dict(self._config)


def recorded_loop(events: Sequence[Event]) -> Design:
    """Return the loop that a recording describes. Raises UsageError if there is no first event.

    Its phases are those of the design, if the design is known; otherwise those in the recorded configuration; otherwise
    those of the events, with the transitions that occurred.
    """
    start = events[0] if events else None
    if not isinstance(start, RunStart):
        raise UsageError("There is nothing recorded yet.")
    if (design := design_of(start.loop)) is not None:
        return RecordedLoop(start, design.phases)
    if isinstance(recorded := start.config.get("phases"), Mapping):
        return RecordedLoop(start, recorded)
    phases: dict[str, list[str]] = {}
    before: str | None = None
    for event in events:
        if event.path or event.phase is None:
            continue
        phases.setdefault(event.phase, [])
        if before is not None and before != event.phase and event.phase not in phases[before]:
            phases[before].append(event.phase)
        before = event.phase
    return RecordedLoop(start, phases or {"running": []})
