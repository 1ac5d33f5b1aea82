"""The parts of a panel, each a widget of its own, to be placed where it is wanted."""

from __future__ import annotations

from typing import ClassVar

from agentnb.run.recording import Recording
from agentnb.widgets.widget import Panel


class Part(Panel):
    """One part of a run's panel, alone."""

    part: ClassVar[str]

    def __init__(self, run: Recording) -> None:
        super().__init__(run, parts=(self.part,))


class EventStream(Part):
    """A run's events alone."""

    part = "events"


class Timeline(Part):
    """What of a run ran when, and what it waited for, alone."""

    part = "timeline"


class Messages(Part):
    """What a run's models are sent and have said, alone."""

    part = "messages"


class Progress(Part):
    """How far the running calls of a run are, alone."""

    part = "progress"


class Usage(Part):
    """A run's tokens, cost and time, in all and by turn, alone."""

    part = "usage"


class StateDiagram(Part):
    """A run's state diagram alone."""

    part = "diagram"


class CallGraph(Part):
    """A run's call graph alone, for loops that have one."""

    part = "graph"


class Controls(Part):
    """A run's buttons and message box alone."""

    part = "controls"


class Approvals(Part):
    """The calls of a run that wait for a person, alone."""

    part = "approvals"
