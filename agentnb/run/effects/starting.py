"""Starting effects: what happens between a state that wants something and the thing being in flight, for one loop.

Intent is a fact before an effect starts, and on disk before a tool runs. What is wanted and was started by a process
that is gone is what a crash left behind: a model is asked again, a call runs again only where its tool is idempotent,
and otherwise the person is asked (ARCHITECTURE.md, 4. Promises).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from agentnb.core.events import CallStart, ModelStart, RunPaused
from agentnb.core.loop import Design
from agentnb.core.state import CallState
from agentnb.core.wanted import MODEL, Effect
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.pending import question_to_ask
from agentnb.run.approvals.policy import Policy
from agentnb.run.effects.asking import Asking
from agentnb.run.effects.calling import Calling
from agentnb.run.effects.endings import end_at_limit, end_loops_inside
from agentnb.run.effects.inflight import InFlight
from agentnb.run.effects.verdicts import Verdicts
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal
from agentnb.run.refusals import cut_off

Pace = Literal["pull", "drain", "step"]
"""How a run is driven, and so what the pump does itself instead of making a task for it.

pull: a consumer takes each event before the next thing happens; the model is asked here, at the consumer's pace.
drain: as fast as it goes; the model is asked here too.
step: nothing is done here, so that what is in flight goes on between two steps.
"""


ToPerform = tuple[Effect, Coroutine[Any, Any, None]]
"""An effect that the pump is to perform itself, and how."""


class Work:
    """The effects of one loop of a run."""

    def __init__(
        self,
        frame: Frame,
        journal: Journal,
        gate: Gate,
        inflight: InFlight,
        policy: Policy | None,
        contexts: LiveContexts,
        enter: Callable[[Work, CallState, Design], None],
        *,
        judges_open_questions: bool = False,
    ) -> None:
        self.frame = frame
        self.asking = Asking(frame, journal, inflight)
        self.calling = Calling(frame, journal, policy, contexts, gate, inflight)
        self._verdicts = Verdicts(
            frame, journal, policy, self.calling, inflight, judges_open_questions=judges_open_questions
        )
        self.asked_by_us = False
        """Whether the model's request that is a fact was made by this process, and not by one that is gone."""
        self._journal = journal
        self._gate = gate
        self._inflight = inflight
        self._intents: dict[str, Effect] = {}
        """The calls that are to be launched, in the order they were made."""
        self._model = (MODEL._replace(path=frame.path),)
        self._enter = enter
        self._stopped_before: dict[str, CallState] = _stopped_before(frame, journal)
        """The calls that a breakpoint has stopped before: it does so once for each call."""
        kind = type(frame.design)
        self._has_room_for_all = kind.with_room is Design.with_room
        self._detaches_none = kind.detaches is Design.detaches
        self.inside: dict[str, Work] = {}
        """The loops that perform calls of this one, by the call."""
        self.names_inside: set[str] = set()
        """What those are called in their paths."""

    def wants(self) -> Sequence[Effect]:
        """What of this loop must be in flight."""
        frame = self.frame
        state = frame.state
        if not state.open:  # nothing that a design could hold back
            return self._model if state.model != "idle" else ()
        wants = frame.design.wanted(state)
        if self._verdicts.kept and (waiting := self._verdicts.waiting_for_room()):
            wants = [effect for effect in wants if effect.id not in waiting]
        return [Effect(kind, id, frame.path) for kind, id, _ in wants] if frame.path else wants

    def start(self, wants: Sequence[Effect], pace: Pace, alone: bool) -> ToPerform | None:
        """Start what is wanted and not in flight; gives the one effect that the pump is to perform itself.

        It stops where the gate closes. For a consumer that pulls it stops at each new fact, so that the consumer can
        act on it before the next. `alone`: no other loop has anything in flight or to start.
        """
        state, journal, inflight, inside = self.frame.state, self._journal, self._inflight, self.inside
        if self.end_cut_off(pace):
            return None
        for effect in wants:
            if inflight and effect in inflight:
                if self._holds_back(effect):
                    return None
                continue
            kind, id, _ = effect
            if kind == "question":
                if (asking := state.open.get(id)) is None:  # a limit that is reached ends every call
                    return None
                if asking.approval is None:  # the process ended that had taken a decision back
                    journal.append(question_to_ask(asking), self.frame, asking)
                elif id in self._verdicts.left_open:
                    self._verdicts.put_to_policy(effect)
                continue
            if inside and id in inside:
                continue
            if journal.fresh and not self._may_still_start():
                return None
            if kind == "model":
                if (performed := self._start_model(effect, pace, alone)) is not None:
                    return performed
            elif (call := state.open.get(id)) is not None:
                self._start_call(call, effect)
                if inflight and effect in inflight and self._holds_back(effect):
                    return None
            if pace == "pull" and journal.fresh:
                self._launch_shown(wants)
                return None
        return self._launch(pace, alone and len(wants) == 1) if self._intents else None

    def end_cut_off(self, pace: Pace) -> bool:
        """End the open calls of an answer that was cut off; False where there are none.

        Some loops begin calls while the answer still comes: what runs is broken off, and a result that is there stays.
        A consumer that pulls is given one end after the other.
        """
        frame, ended = self.frame, False
        state = frame.state
        if not state.open or state.reply is None or (why := state.reply.cut_off) is None:
            return False
        for made in state.reply.message.tool_calls:
            if (call := state.open.get(made.id)) is None:
                continue
            end_loops_inside(self._journal, frame, call)
            self._journal.append(cut_off(call, why), frame, call)
            ended = True
            if pace == "pull":
                break
        return ended

    def _may_still_start(self) -> bool:
        """Whether what has just become a fact leaves the way open: the loop's code, or who is told, may pause."""
        state, journal = self.frame.state, self._journal
        if state.stop_reason is not None or state.cancelled is not None:
            return False
        may_have_closed = self._gate.pausing is not None or journal.observers or journal.watchers
        return not may_have_closed or self.is_let_through()

    def is_let_through(self) -> bool:
        """Whether the gate is open for this loop."""
        is_open, run = self._gate.is_open, self._journal.state
        return is_open(run) or (is_open(run, finishing=True) and (self.frame.finishes_first or self._is_broken_off()))

    def _is_broken_off(self) -> bool:
        """Whether a call that a pause waits for was started by a process that is gone, and not again yet."""
        path = self.frame.path
        return not self.frame.design.pauses_inside and any(
            call.status == "running"
            and call.id not in self._intents
            and call.id not in self.inside
            and Effect("call", call.id, path) not in self._inflight
            for call in self.frame.state.open.values()
        )

    def _holds_back(self, effect: Effect) -> bool:
        """Whether the calls behind this one wait until it is checked."""
        call = self.frame.state.open.get(effect.id) if self.frame.design.checks_in_order else None
        return call is not None and call.status == "proposed"

    def _start_model(self, effect: Effect, pace: Pace, alone: bool) -> ToPerform | None:
        """Ask the model, or say that it is asked again; gives what the pump is to perform of it."""
        if not self.asked_by_us:  # whoever asked is gone, or failed: ask again
            self.asked_by_us = True
            state = self.frame.state
            if state.model == "asked":
                # An answer that pauses is one turn, however many requests it takes; what they use is limited.
                if self.asking.has_paused and (
                    why := self._gate.limit_reached(self._journal.state, starting="own", more=self.asking.used)
                ):
                    end_at_limit(self._journal, why)
                    return None
                again = ModelStart(
                    turn=state.turn,
                    attempt=state.attempt + 1,
                    options=state.options,
                    continues=self.asking.has_paused,
                )
                self._journal.append(self.asking.describe(again), self.frame)
            return None
        self.asked_by_us = False
        if pace == "step" or not alone or self.frame.design.answers_overlap:
            self._inflight.spawn(effect, self.asking.ask)
            return None
        return effect, self.asking.ask(pulled=pace == "pull")

    # -- calls -----------------------------------------------------------------------------------------------------

    def _start_call(self, call: CallState, effect: Effect) -> None:
        if call.status in ("proposed", "ready"):
            self._consider(call, effect)
        elif call.status == "running" and call.id not in self._intents:
            self._recover(call, effect)

    def _consider(self, call: CallState, effect: Effect) -> None:
        """Begin a call that nothing objects to; where it is held back, keep that, so that nobody is asked again."""
        arguments = self._verdicts.may_begin_with(call, effect)
        if arguments is None:
            return
        has_room = self._has_room_for_all or self.frame.design.with_room((call,), self.frame.state)
        if not (has_room and self._intend(call, effect, arguments)) and call.status == "proposed":
            self._verdicts.keep(call, arguments)

    def _intend(self, call: CallState, effect: Effect, arguments: dict[str, Any]) -> bool:
        """Say that the call begins; False where a limit is reached, and the run ends or the call is held back."""
        frame = self.frame
        own, limits = call.hidden and frame.is_own(call), self._gate.limits
        if limits:
            starting: Literal["call", "own"] = "own" if own else "call"
            if (why := self._gate.limit_reached(self._journal.state, starting=starting)) is not None:
                if not self._others_run():  # what the limit has let begin comes to its end first
                    end_at_limit(self._journal, why)
                return False
        intent = CallStart(
            call_id=call.id,
            name=call.name,
            arguments=arguments,
            attempt=call.attempt + 1,
            own=own,
            detached=not self._detaches_none and frame.design.detaches(call),
        )
        if self._gate.breakpoints and self._stops_before(call, intent):
            return False
        if not own:
            self.calling.make_ready(call, arguments)
        self._intents[call.id] = effect
        self._journal.append(intent, frame, call)
        return True

    def _stops_before(self, call: CallState, intent: CallStart) -> bool:
        """Whether a breakpoint stops the run before this call, which it does once; `intent` is not recorded yet."""
        if self._stopped_before.pop(call.id, None) is call:
            return False
        frame, journal = self.frame, self._journal
        as_recorded = {
            "seq": len(journal.events),
            "time": time.time(),
            "run_id": journal.run_id,
            "path": frame.path,
            "phase": frame.opens(intent),
        }
        if not self._gate.stops_before(replace(intent, **as_recorded), frame.state, journal.state):
            return False
        self._stopped_before[call.id] = call
        journal.fresh = True  # nothing was recorded, and the pump has to see that the gate is closed
        return True

    def _others_run(self) -> bool:
        """Whether calls have begun that come to an end by themselves: siblings, or tools of other loops."""
        begun = [(self.frame.path, id) for id in (*self._intents, *self.inside)]
        begun += [(path, id) for kind, id, path in self._inflight if kind == "call"]
        frames = {frame.path: frame for frame in self._journal.frames}
        calls = [frames[path].state.open.get(id) for path, id in begun if path in frames]
        return any(call is not None and call.status == "running" and not call.detached for call in calls)

    def _recover(self, call: CallState, effect: Effect) -> None:
        """A call was started, and whoever started it is gone without leaving a result."""
        if self.frame.loop_for(call) is not None:  # that it was to begin is all that has happened
            self._intents[call.id] = effect
            return
        if self.frame.asks_where_it_was_lost(call):
            self._journal.append(question_to_ask(call), self.frame, call)
        else:
            self._intend(call, effect, call.arguments)

    def _launch(self, pace: Pace, alone: bool, only: Collection[str] | None = None) -> ToPerform | None:
        """Run the calls whose intent is a fact, once it is on disk; gives the one that the pump is to run itself.

        `only`: the calls that are run, where these are not all.
        """
        if not self._inflight.news.flush():  # the store is locked; the pump looks again when it is not any more
            return None
        intents, self._intents = self._intents, {}
        if only is not None:
            self._intents = {id: effect for id, effect in intents.items() if id not in only}
            intents = {id: effect for id, effect in intents.items() if id in only}
        open = self.frame.state.open
        for call_id, effect in intents.items():
            call = open.get(call_id)
            if call is None:
                continue
            if self.frame.has_loops_inside and (loop := self.frame.loop_for(call)) is not None:
                self._enter(self, call, loop)
                continue
            if (end := self.frame.design.instead_of(call, self.frame.state)) is not None:
                self._journal.append(end, self.frame, call)
                continue
            if alone and not call.detached and pace != "step" and self.frame.is_own(call):
                return effect, self.calling.perform(call, inline=pace)
            self._inflight.spawn(effect, partial(self.calling.perform, call))
        return None

    def _launch_shown(self, wants: Sequence[Effect]) -> None:
        """Run the tools whose start is about to be shown: whoever is shown it may wait for what they do."""
        calls = self.frame.state.open
        said = [calls[effect.id] for effect in wants if effect.kind == "call" and effect.id in calls]
        if all(call.id in self._intents and self._is_tool(call) for call in said) and self._may_still_start():
            self._launch("pull", False)

    def _is_tool(self, call: CallState) -> bool:
        return not call.hidden and self.frame.loop_for(call) is None

    def finish_starting(self) -> bool:
        """Start what has been said to start: no pause holds back a step of the loop's own any more.

        Nor does a breakpoint before a call hold back the tools whose start is recorded: for the record they run, and
        after a crash nobody could tell whether they had.
        """
        state = self.frame.state
        calls = [call for id in self._intents if (call := state.open.get(id)) is not None]
        begun = [call for call in calls if self.frame.is_own(call)]
        if begun and not (
            self._pauses_before_it_begins() and all(self.frame.loop_for(call) is not None for call in begun)
        ):
            self._launch("step", False)
            return not self._intents
        tools = [call.id for call in calls if self.frame.loop_for(call) is None]
        if not tools or self._gate.pausing is None or self._gate.pausing_before is None:
            return False
        self._launch("step", False, tools)
        return self._intents.keys().isdisjoint(tools)

    def _pauses_before_it_begins(self) -> bool:
        """Whether a loop inside this one that has been said to start can wait before its first step."""
        return self.frame.design.pauses_inside or not self._gate.is_open(self._journal.state, finishing=True)


def _stopped_before(frame: Frame, journal: Journal) -> dict[str, CallState]:
    """The call of this loop that a recorded run was stopped before, where it still stands there."""
    if not journal.state.paused:
        return {}
    paused = next(event for event in reversed(journal.events) if isinstance(event, RunPaused))
    path, id = paused.before or ("", "")
    call = frame.state.open.get(id) if path == frame.path else None
    return {id: call} if call is not None else {}
