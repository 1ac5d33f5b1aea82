"""Divergence: compares the decisions of a loop with its recording (ARCHITECTURE.md, 4. Promises).

Input from outside is taken from the recording: actions of a person, answers of a model, results of tools. The decisions
of the loop are requested again, from the same state: its next event (`advance`), the arguments of a call, the check of
these arguments against the tool, the question before the call, and the nested loop that performs the call, with its
configuration. As in a run, a loop is asked for its next event only if it has nothing in flight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict, replace

from agentnb.core.errors import InvalidArguments, ReplayDiverged
from agentnb.core.events import ApprovalRequest, CallEnd, CallProposed, CallStart, Event, ModelStart, RunEnd, RunStart
from agentnb.core.evolve import nested
from agentnb.core.loop import ENDED_FROM_OUTSIDE, Design, configured
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.run.approvals.policy import reason_to_ask
from agentnb.run.frame import Frame
from agentnb.run.past.recorded_loop import frames_at
from agentnb.run.synthetic_results import Refusal, misfit, unfit

_STAMP = {"seq", "time", "run_id", "path", "phase", "inherited"}
_SHOWN = 300
_DECIDED = {"message", "model_start", "call_proposed", "state_update", "phase_change", "run_end"}


class DecisionCheck:
    """The comparison of a recording with the decisions of a loop, event by event."""

    def __init__(self, loop: Design, state: State | None = None) -> None:
        """Begin before the first event, or at a position. state: the state of the whole run there."""
        self._loop = loop
        self._frames: dict[str, Frame] = {}
        if state is not None and state.position:
            self._frames = {frame.path: frame for frame in frames_at(loop, state)}

    def compare(self, event: Event) -> None:
        """Compare the next event of the recording. Raises ReplayDiverged if the loop decides differently."""
        expected = self._start(event) if isinstance(event, RunStart) else self._expected(event)
        if expected is not None and _content(expected) != _content(event):
            raise ReplayDiverged(
                f"Event {event.seq} of the recording is not what the loop does now.\n"
                f"  recorded: {_short(event)}\n  expected: {_short(expected)}",
                event,
                expected,
            )

    def applied(self, event: Event, state: State) -> None:
        """Register an event that has been applied. `state`: the state of the whole run after the event."""
        if isinstance(event, RunStart):
            self._begin(event, state)

    def frame(self, path: str) -> Frame | None:
        """Return the frame of the loop at this path, or None if no loop is known for it."""
        return self._frames.get(path)

    def tools(self, path: str) -> Mapping[str, Tool]:
        """Return the tools of the loop at this path, by name; empty if no loop is known for it."""
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
        """Return the frame of the parent of a nested loop and the call that it performs, or None if unknown."""
        outer = self._frames.get(event.path.rpartition("/")[0])
        call = outer.state.open.get(event.call) if outer is not None else None
        return (outer, call) if outer is not None and call is not None else None

    def _start(self, event: RunStart) -> Event | None:
        """Return the expected first event of a loop, or None if it is not known.

        If a tool now performs the call instead of a nested loop, return the end of that call.
        """
        loop: Design | None = self._loop
        if event.path:
            if (found := self._performed(event)) is None:
                return None
            outer, call = found
            if (loop := outer.loop_for(call)) is None:
                return None if outer.is_own(call) else CallEnd(call_id=call.id, name=call.name)
        assert loop is not None
        # Compare with the recorded fingerprints of the tools: a changed description is not a decision of the loop.
        return replace(event, **configured(loop, event.tools))

    def _expected(self, event: Event) -> Event | None:
        """Return the event that the loop decides on now, or None if the loop does not decide about this event."""
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
        """Return the event expected for a call now, or None if the loop does not decide about this event.

        A call starts with the arguments that the loop resolves, if a tool of the loop accepts them. Otherwise it is
        refused. A call that a nested loop performs starts with that loop.
        """
        call = frame.state.open.get(event.call_id)
        if call is None or frame.is_own(call):
            return None
        # A nested loop performs the call now. The recording diverges if a tool has returned the result.
        if (loop := frame.loop_for(call)) is not None:
            begun = any(inside.call == call.id for inside in frame.state.children.values())
            instead = isinstance(event, CallEnd) and event.outcome == "returned" and not begun
            return RunStart(name=loop.name, call=call.id, **configured(loop, {})) if instead else None
        # A recorded refusal must still be a refusal, and a recorded start or question must not be one.
        made = _ready(frame, call)
        if isinstance(event, CallEnd):
            if event.outcome != "invalid" or isinstance(made, Refusal):
                return None
            return CallStart(call_id=call.id, name=call.name, arguments=made, attempt=call.attempt + 1)
        if isinstance(made, Refusal):
            return made.end
        # A tool that requires approval must have a question before the start; a question of the tool must still apply.
        asks = reason_to_ask(tool) if (tool := frame.tools[call.name]).approve is True else None
        if isinstance(event, CallStart) and asks is not None and call.decision is None:
            return ApprovalRequest(call_id=call.id, name=call.name, arguments=made, reason=asks)
        if isinstance(event, ApprovalRequest) and asks is None and event.reason == reason_to_ask(tool):
            return CallStart(call_id=call.id, name=call.name, arguments=made, attempt=call.attempt + 1)
        return replace(event, arguments=made)


def _ready(frame: Frame, call: CallState) -> dict[str, Any] | Refusal:
    """Return the arguments that the call runs with, or the refusal if no tool accepts the call."""
    tool = frame.tools.get(call.name)
    if tool is None or call.malformed is not None:
        return misfit(call, frame.tools)
    if call.is_as_a_hook_made_it(call.arguments):
        return call.arguments
    try:
        arguments = frame.calls.arguments(call, frame.state)
        frame.calls.bind(tool, call, arguments, frame.state)
    except InvalidArguments as error:
        return unfit(call, error)
    return arguments


def _content(event: Event) -> str:
    """Return the comparable content of an event as JSON text: without its number, time, run, path and phase.

    As JSON, NaN equals NaN; as a Python float, it does not.
    """
    content = event.model_dump(mode="json", exclude=_STAMP)
    if isinstance(event, ModelStart):  # the choice of the model is not a decision of the loop
        content = {"turn": event.turn, "attempt": event.attempt, "options": event.set_by_loop}
    return json.dumps({"type": event.type, **content}, sort_keys=True)


def _short(event: Event) -> str:
    fields = {"type": event.type, **asdict(event)}
    text = " ".join(f"{name}={value!r}" for name, value in fields.items() if name not in _STAMP)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
