"""The loop of a recording that nobody has a loop for: what its events say of it, and nothing that could run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, RunStart
from agentnb.core.loop import Design
from agentnb.core.state import State
from agentnb.loops import design_of


class RecordedLoop(Design):
    """A loop that can be shown, and asked nothing."""

    def __init__(self, start: RunStart, phases: Mapping[str, Sequence[str]]) -> None:
        self.name = start.name
        self.phases = phases  # type: ignore[misc]  # of the design that was recorded, whose class is not at hand
        self._config = start.config
        self.system_prompt = start.config.get("system_prompt")
        self.kind = lambda: start.loop  # type: ignore[method-assign]

    def advance(self, state: State) -> Event:
        """Nothing is decided here. Raises UsageError."""
        raise UsageError(f"This is a recording of a {self.kind()}: give the loop itself to go on with it.")

    def config(self) -> dict[str, Any]:
        """As it was recorded."""
        return dict(self._config)


def recorded_loop(events: Sequence[Event]) -> Design:
    """What a recording says of its loop: its name, and its phases by the design's table or as they came."""
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
