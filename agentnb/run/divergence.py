"""Divergence: whether a loop decides today what a recording says was decided (DESIGN, promise 6).

What comes from outside is taken as it was recorded: what a person did, what a model answered, what a tool gave. What
the loop decided is asked of it again, from the same state: its next fact (`advance`), what a call runs with, whether a
call fits its tool. A loop is asked nothing while anything of it is in flight, as when it runs.
"""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import InvalidArguments, ReplayDiverged
from agentnb.core.events import CallEnd, CallProposed, CallStart, Event, ModelStart, RunEnd, RunStart
from agentnb.core.evolve import nested
from agentnb.core.loop import ENDED_FROM_OUTSIDE, Design, fingerprint
from agentnb.core.state import CallState, State
from agentnb.run.calling import Refusal, misfit, refusal
from agentnb.run.frame import Frame

_STAMP = {"seq", "time", "run_id", "path", "phase"}
_SHOWN = 300
_DECIDED = {"message", "model_start", "call_proposed", "state_update", "phase_change", "run_end"}


class Check:
    """Compares a recording with what a loop would do, event by event."""

    def __init__(self, loop: Design) -> None:
        self._loop = loop
        self._frames: dict[str, Frame] = {}

    def look_at(self, event: Event, state: State) -> None:
        """Compare the event that comes next in this state. Raises ReplayDiverged where the loop does otherwise."""
        expected = self._start(event) if isinstance(event, RunStart) and not event.path else self._expected(event)
        if expected is not None and _said(expected) != _said(event):
            raise ReplayDiverged(
                f"Event {event.seq} of the recording is not what the loop does now.\n"
                f"  recorded: {_short(event)}\n  expected: {_short(expected)}",
                event,
                expected,
            )

    def take(self, event: Event, state: State) -> None:
        """The event has happened."""
        if isinstance(event, RunStart):
            self._begin(event, state)

    def _begin(self, event: RunStart, state: State) -> None:
        above, _, _ = event.path.rpartition("/")
        outer = self._frames.get(above) if event.path else None
        inside = nested(state, event.path)
        if not event.path:
            self._frames[""] = Frame(self._loop, inside)
        elif outer is not None and (call := outer.state.open.get(event.call)) is not None:
            loop = outer.loop_for(call)
            self._frames.pop(event.path, None)
            if loop is not None:
                self._frames[event.path] = Frame(loop, inside, path=event.path, above=outer, call=event.call)

    def _start(self, event: RunStart) -> Event:
        config = self._loop.config()
        now = {"loop": self._loop.kind(), "config": config, "fingerprint": fingerprint(self._loop.kind(), config)}
        return event.model_copy(update=now)

    def _expected(self, event: Event) -> Event | None:
        """What the loop would do now; None where that is not the loop's to say."""
        frame = self._frames.get(event.path)
        if frame is None:
            return None
        if isinstance(event, (CallStart, CallEnd)):
            return self._of_call(frame, event)
        state = frame.state
        if event.type not in _DECIDED or state.open or state.model == "asked" or state.failure is not None:
            return None
        if isinstance(event, RunEnd) and event.reason in ENDED_FROM_OUTSIDE:
            return None
        if isinstance(event, CallProposed) and not event.hidden:
            return None
        if isinstance(event, ModelStart) and event.attempt > 1:
            return None
        return frame.design.advance(state)

    def _of_call(self, frame: Frame, event: CallStart | CallEnd) -> Event | None:
        """A call starts with what the loop says it runs with, where it fits a tool of the loop's."""
        call = frame.state.open.get(event.call_id)
        if call is None or frame.is_own(call) or frame.loop_for(call) is not None:
            return None
        made = _ready(frame, call)
        if isinstance(event, CallStart):
            return made.end if isinstance(made, Refusal) else event.model_copy(update={"arguments": made})
        if event.outcome == "invalid" and not isinstance(made, Refusal):
            return CallStart(call_id=call.id, name=call.name, arguments=made, attempt=call.attempt + 1)
        return None


def _ready(frame: Frame, call: CallState) -> dict[str, Any] | Refusal:
    """What the call runs with, or the no that it gets because it fits no tool."""
    tool = frame.tools.get(call.name)
    if tool is None or call.malformed is not None:
        return misfit(call, frame.tools)
    try:
        arguments = frame.design.arguments(call, frame.state)
        if call.decision is not None and call.decision.arguments is not None:
            arguments = call.decision.arguments
        frame.design.bind(tool, call, arguments, frame.state)
    except InvalidArguments as error:
        return refusal(call, error)
    return arguments


def _said(event: Event) -> dict[str, Any]:
    """What an event says, without where and when it was said."""
    return {"type": event.type, **event.model_dump(mode="json", exclude=_STAMP)}


def _short(event: Event) -> str:
    text = " ".join(f"{name}={value!r}" for name, value in event if name not in _STAMP)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
