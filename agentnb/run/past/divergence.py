"""Divergence: whether a loop still decides as its recording says (ARCHITECTURE.md, 4. Promises).

What comes from outside is taken as it was recorded: what a person did, what a model answered, what a tool gave. What
the loop decided is asked of it again, from the same state: its next fact (`advance`), what a call runs with, whether a
call fits its tool, whether that tool asks before it runs, and which loop performs it, configured how. A loop is asked
nothing while anything of it is in flight, as when it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from agentnb.core.errors import InvalidArguments, ReplayDiverged
from agentnb.core.events import ApprovalRequest, CallEnd, CallProposed, CallStart, Event, ModelStart, RunEnd, RunStart
from agentnb.core.evolve import evolve, nested
from agentnb.core.loop import ENDED_FROM_OUTSIDE, Design, configured
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.run.approvals.policy import why_it_asks
from agentnb.run.frame import Frame
from agentnb.run.synthetic_results import Refusal, misfit, unfit

_STAMP = {"seq", "time", "run_id", "path", "phase", "inherited"}
_SHOWN = 300
_DECIDED = {"message", "model_start", "call_proposed", "state_update", "phase_change", "run_end"}


class Check:
    """Compares a recording with what a loop would do, event by event."""

    def __init__(self, loop: Design) -> None:
        self._loop = loop
        self._frames: dict[str, Frame] = {}

    def look_at(self, event: Event) -> None:
        """Compare the event that comes next in this state. Raises ReplayDiverged where the loop does otherwise."""
        expected = self._start(event) if isinstance(event, RunStart) else self._expected(event)
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

    def frame(self, path: str) -> Frame | None:
        """The loop that runs at this path; None where no loop is known to."""
        return self._frames.get(path)

    def tools(self, path: str) -> Mapping[str, Tool]:
        """The tools of the loop that runs at this path; none where no loop is known to."""
        frame = self.frame(path)
        return frame.tools if frame is not None else {}

    def _begin(self, event: RunStart, state: State) -> None:
        inside = nested(state, event.path)
        if not event.path:
            self._frames[""] = Frame(self._loop, inside)
        elif (found := self._performed(event)) is not None:
            outer, call = found
            loop = outer.loop_for(call)
            self._frames.pop(event.path, None)
            if loop is not None:
                name = event.path.rpartition("/")[2]
                self._frames[event.path] = Frame(loop, inside, name=name, above=outer, call=event.call)

    def _performed(self, event: RunStart) -> tuple[Frame, CallState] | None:
        """The call that a nested loop performs, in the loop that made it."""
        outer = self._frames.get(event.path.rpartition("/")[0])
        call = outer.state.open.get(event.call) if outer is not None else None
        return (outer, call) if outer is not None and call is not None else None

    def _start(self, event: RunStart) -> Event | None:
        """How the loop that is to run begins now; a call's result, where none performs that call any more."""
        loop: Design | None = self._loop
        if event.path:
            if (found := self._performed(event)) is None:
                return None
            outer, call = found
            if (loop := outer.loop_for(call)) is None:
                return None if outer.is_own(call) else CallEnd(call_id=call.id, name=call.name)
        assert loop is not None
        # Another description of a tool is no other decision of the loop.
        return replace(event, **configured(loop, event.tools))

    def _expected(self, event: Event) -> Event | None:
        """What the loop would do now; None where that is not the loop's to say."""
        frame = self._frames.get(event.path)
        if frame is None:
            return None
        if isinstance(event, (ApprovalRequest, CallStart, CallEnd)):
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

    def _of_call(self, frame: Frame, event: ApprovalRequest | CallStart | CallEnd) -> Event | None:
        """A call starts with what the loop says it runs with, where it fits a tool of the loop's, or another loop."""
        call = frame.state.open.get(event.call_id)
        if call is None or frame.is_own(call):
            return None
        if (loop := frame.loop_for(call)) is not None:
            begun = any(inside.call == call.id for inside in frame.state.children.values())
            instead = isinstance(event, CallEnd) and event.outcome == "returned" and not begun
            return RunStart(name=loop.name, call=call.id, **configured(loop, {})) if instead else None
        made = _ready(frame, call)
        if isinstance(event, CallEnd):
            if event.outcome != "invalid" or isinstance(made, Refusal):
                return None
            return CallStart(call_id=call.id, name=call.name, arguments=made, attempt=call.attempt + 1)
        if isinstance(made, Refusal):
            return made.end
        asks = why_it_asks(tool) if (tool := frame.tools[call.name]).approve is True else None
        if isinstance(event, CallStart) and asks is not None and call.decision is None:
            return ApprovalRequest(call_id=call.id, name=call.name, arguments=made, reason=asks)
        if isinstance(event, ApprovalRequest) and asks is None and event.reason == why_it_asks(tool):
            return CallStart(call_id=call.id, name=call.name, arguments=made, attempt=call.attempt + 1)
        return replace(event, arguments=made)


def frame_at(events: Iterable[Event], path: str, loop: Design) -> Frame | None:
    """The loop at `path` as it stands behind these events; None where none runs there."""
    check, state = Check(loop), State()
    for event in events:
        evolve(state, event)
        check.take(event, state)
    return check.frame(path)


def _ready(frame: Frame, call: CallState) -> dict[str, Any] | Refusal:
    """What the call runs with, or the no that it gets because it fits no tool."""
    tool = frame.tools.get(call.name)
    if tool is None or call.malformed is not None:
        return misfit(call, frame.tools)
    if call.is_as_a_hook_made_it(call.arguments):
        return call.arguments
    try:
        arguments = frame.design.arguments(call, frame.state)
        frame.design.bind(tool, call, arguments, frame.state)
    except InvalidArguments as error:
        return unfit(call, error)
    return arguments


def _said(event: Event) -> str:
    """What an event says, without where and when it was said: as JSON, for to Python NaN would be no other NaN."""
    said = event.model_dump(mode="json", exclude=_STAMP)
    if isinstance(event, ModelStart):  # who is asked is no decision of the loop's
        said = {"turn": event.turn, "attempt": event.attempt, "options": event.set_by_loop}
    return json.dumps({"type": event.type, **said}, sort_keys=True)


def _short(event: Event) -> str:
    fields = {"type": event.type, **asdict(event)}
    text = " ".join(f"{name}={value!r}" for name, value in fields.items() if name not in _STAMP)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
