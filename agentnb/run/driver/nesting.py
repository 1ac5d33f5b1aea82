"""Loops inside loops: the work of each loop that is being run, from when it begins to when it is over.

Where a call is started that a loop performs, that loop begins, with facts of its own under its own path; where it is
over, its output is the call's result.
"""

from __future__ import annotations

from collections.abc import Callable

from agentnb.core.ending import ABORTED
from agentnb.core.errors import LimitReached, RecordingMismatch
from agentnb.core.events import CUT_OFF_REASONS, CallEnd
from agentnb.core.loop import Design
from agentnb.core.state import CallState, State
from agentnb.run.driver.listening import hand_back, hand_on, hear
from agentnb.run.effects.starting import Work
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


class Nesting:
    """The loops of one run, beside `journal.frames`; those that a recording stands inside are taken up at once."""

    def __init__(self, journal: Journal, make: Callable[[Frame], Work]) -> None:
        self._journal = journal
        self._make = make
        self.works: list[Work] = []
        """The work of each loop that is being run; the outermost is the first."""

    def begin(self) -> None:
        """Take up the run's own loop, and those that were running inside it when it was recorded."""
        root = self._make(self._journal.root)
        self.works.append(root)
        self._take_up_nested(root)

    def enter(self, above: Work, call: CallState, loop: Design) -> None:
        """Begin the loop that performs this call."""
        # No two loops that run at the same time have one path, whatever names and ids the model has chosen.
        taken = above.names_inside
        name = loop.name.replace("/", "_") or type(loop).__name__
        if name in taken:
            name = given = f"{name}:{call.id}".replace("/", "_")
            number = 2
            while name in taken:
                name, number = f"{given}:{number}", number + 1
        frame = Frame(loop, State(), name=name, above=above.frame, call=call.id)
        loop.taken_up(frame)
        with self._journal.lock:
            self._journal.append(frame.begin(above.frame.design.input_for(call, above.frame.state)), frame)
            self._take_in(above, frame)
            loop.hears(hear(self._journal, frame))
            hand_on(self._journal, frame)

    def _take_in(self, above: Work, frame: Frame) -> None:
        work = above.inside[frame.call] = self._make(frame)
        above.names_inside.add(frame.path.rpartition("/")[2])
        self.works.append(work)
        self._take_up_nested(work)

    def _take_up_nested(self, work: Work) -> None:
        """Go on with the loops that were running inside this one when it was recorded."""
        frame = work.frame
        for name, state in frame.state.children.items():
            call = frame.state.open.get(state.call)
            if call is None or call.status != "running":
                continue
            loop = frame.loop_for(call)
            if loop.kind() != state.loop if loop is not None else not call.hidden:  # its own, a design sees to itself
                raise RecordingMismatch(
                    f"The recording stands inside {name!r}, a {state.loop} that performs the call {call.name!r} of"
                    f" {frame.design.name!r}; there is {f'a {loop.kind()}' if loop else 'no loop'} for that call now."
                )
            if loop is not None:
                inside = Frame(loop, state, name=name, above=frame, call=call.id)
                loop.taken_up(inside)
                inside.recorded = frame.recorded
                self._journal.frames.append(inside)
                self._take_in(work, inside)
                loop.hears(hear(self._journal, inside))

    def leave(self, work: Work) -> None:
        """A loop inside another is over."""
        with self._journal.lock:
            above = next(other for other in self.works if other.frame is work.frame.above)
            self.works.remove(work)
            self._journal.frames.remove(work.frame)
            del above.inside[work.frame.call]
            above.names_inside.discard(work.frame.path.rpartition("/")[2])
            hand_back(self._journal, work.frame)
            self._give_output(work, above)

    def _give_output(self, work: Work, above: Work) -> None:
        """The output of a loop that is over is the result of the call it has performed, of the loop above."""
        frame, state = work.frame, work.frame.state
        call = above.frame.state.open.get(frame.call)
        if call is None:
            return
        ran_out = state.stop_reason in frame.design.limits_that_raise  # as it would for whoever awaits it
        failed = ran_out or state.stop_reason == "error"
        error = state.error
        words = f"{error.type}: {error.message}" if error is not None else ABORTED  # as of a tool that raises
        if failed:
            reached = LimitReached(error.message if error is not None else None)
            above.calling.failure = (error, reached) if ran_out else work.calling.failure
        end = CallEnd(
            call_id=call.id,
            name=call.name,
            result=words if failed else state.output,
            is_error=failed,
            outcome="raised" if failed else "returned",
            error=error if failed else None,
            details={"stop_reason": state.stop_reason} if state.stop_reason in CUT_OFF_REASONS else None,
        )
        self._journal.append(end, above.frame, call)
