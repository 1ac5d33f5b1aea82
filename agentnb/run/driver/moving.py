"""Moving: the next thing that a run does, one after the other, for the outermost loop and for those that run inside it.

    start what is wanted and not in flight, cancel what is in flight and no longer wanted;
    where nothing of a loop is wanted and nothing in flight, ask its design for the next fact;
    otherwise there is nothing to do before there is news.

A loop inside another performs one of its calls: where such a call is started, the loop begins, with facts of its own
under its own path; where the loop is over, its output is the call's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentnb.core.events import RunEnd, RunPaused
from agentnb.core.state import State
from agentnb.core.wanted import Effect
from agentnb.run.approvals.headless import in_force
from agentnb.run.approvals.outcomes import expire
from agentnb.run.driver.advancing import advance
from agentnb.run.driver.nesting import Nesting
from agentnb.run.effects.endings import end_run
from agentnb.run.effects.inflight import InFlight
from agentnb.run.effects.starting import Pace, ToPerform, Work
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal

Idle = Literal["wait", "halt", "failed"]
"""wait: until there is news. halt: a step's permit is used up. failed: the model has, and nothing else goes on."""


class Moving:
    """Moves one run on without ever waiting, while nothing else becomes a fact. Belongs to the loop that drives it."""

    def __init__(self, journal: Journal, gate: Gate, inflight: InFlight, nesting: Nesting) -> None:
        self._journal = journal
        self._gate = gate
        self._inflight = inflight
        self._nesting = nesting
        self._works = nesting.works
        self._state: State = journal.state

    def go_on(self, pace: Pace) -> ToPerform | Idle | None:
        """Do the next thing; gives the effect that the pump is to perform itself, or what else it is to do."""
        journal, gate, state = self._journal, self._gate, self._state
        journal.fresh = False
        if state.failure is not None:
            self._inflight.let_go_on()
            if not self._inflight.is_at_rest:  # what runs is finished first; what is looked at will be looked at again
                self._inflight.cancel_all_but((), self._is_no_check)
                return "wait"
            return "failed"
        if not gate.is_open(state):
            if any(work.finish_starting() for work in self._works):
                return None
            if not any(work.is_let_through() for work in self._works):
                if self.settle_pause():
                    return None
                return "halt" if pace == "step" and gate.pausing is None else "wait"
        works, inflight = self._works, self._inflight
        if inflight or len(works) > 1 or state.detached or inflight.crash is not None:
            return self._go_on_with_several(pace)
        work = works[0]
        if not (wants := work.wants()):
            self._advance(work)
            if pace == "pull" or not (wants := work.wants()):
                return None
        todo = work.start(wants, pace, True)  # where a fact has just come, it looks whether that closes the gate
        return todo if todo is not None or journal.fresh else self._stand_still(wants)

    def _go_on_with_several(self, pace: Pace) -> ToPerform | Idle | None:
        """The same where several loops run, or where things are in flight."""
        if (crash := self._inflight.crash) is not None:
            raise crash
        works = list(self._works)
        wants = {work: work.wants() for work in works}
        everything = [effect for work in works for effect in wants[work] if effect.id not in work.inside]
        if self._inflight:
            self._inflight.cancel_all_but(everything, self.may_return)
            if self._state.cancelled is None:
                self._inflight.let_go_on()
        alone = not self._inflight and len(everything) == 1 and all(wants.values())  # the others wait for a loop inside
        works = [work for work in works if work.is_let_through()]  # a pause that waits for some holds back the others
        for work in works:
            todo = work.start(wants[work], pace, alone) if wants[work] else None
            if todo is not None or (pace == "pull" and self._journal.fresh):
                return todo
        if self._journal.fresh:
            return None
        has_moved = False
        for work in reversed(works):  # innermost first: what it comes to, the others may have waited for
            if self._waits(work, wants[work]) or not self._advance(work):
                continue
            if pace == "pull":
                return None
            # To look at all loops anew after each fact would make a thousand of them quadratic.
            has_moved = True
            if self._state.stop_reason is not None or not work.is_let_through():
                return None
        return None if has_moved else self._stand_still(everything)

    def _waits(self, work: Work, wants: Sequence[Effect]) -> bool:
        """Whether something of this loop is wanted or in flight, and is no call that is detached."""
        state, path = work.frame.state, work.frame.path
        if not state.detached:
            return bool(wants) or self._inflight.any_of(path)
        about = [*wants, *(effect for effect in self._inflight if effect.path == path)]
        calls = [state.open.get(effect.id) for effect in about]
        return any(call is None or not call.detached for call in calls)

    def _advance(self, work: Work) -> bool:
        """Let the design of a loop that waits for nothing say what comes next; False where it waits all the same."""
        if work.frame.state.stop_reason is not None:
            if work.inside:  # they are being broken off, and go first
                return False
            self._nesting.leave(work)
        elif self._state.cancelled is not None:
            end_run(self._journal, "cancelled")  # the tool that cancelled its own run is done
        else:
            return advance(work, self._journal, self._gate)
        return True

    def _stand_still(self, wants: Sequence[Effect]) -> Idle | None:
        """Nothing can be started before something happens."""
        waits_for_a_person = not self._inflight and all(effect.kind == "question" for effect in wants)
        if wants and waits_for_a_person and self._gate.suspends_at_questions and in_force().policy is None:
            expire(self._journal)
            if not self._journal.fresh:
                self._journal.append(RunEnd(reason="suspended"))
            return None
        if self._gate.permit is None or not waits_for_a_person:
            return "wait"
        expire(self._journal)
        if not self._journal.fresh:
            self._gate.release_permit()  # only a person can move the run on
        return None

    def settle_pause(self) -> bool:
        """Make a pause a fact once nothing is in flight; gives whether it did."""
        gate = self._gate
        with self._journal.lock:
            if gate.pausing is None or not self._inflight.is_at_rest:
                return False
            reason, gate.pausing = gate.pausing, None
            if self._state.paused:  # a step came to a breakpoint in a run that is paused, and stays so
                return False
            self._journal.append(RunPaused(reason=reason, by=gate.pausing_by, before=gate.pausing_before))
        return True

    def may_return(self, effect: Effect) -> bool:
        """Whether this is the call that has cancelled its own run: it is not cut off by that (see `end_run`)."""
        if self._state.cancelled is None:
            return False
        frame = self._journal.frame_at(effect.path)
        return frame is not None and effect.id in frame.state.open

    def _is_no_check(self, effect: Effect) -> bool:
        """Whether this performs something, and does not only ask whether it may be performed."""
        frame = self._journal.frame_at(effect.path)
        call = frame.state.open.get(effect.id) if frame is not None else None
        return call is None or call.status == "running"
