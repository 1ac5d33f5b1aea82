"""The executor of one loop: its model requests and its calls, from the recorded start to the recorded result.

A start is recorded before the effect starts, and is on disk before a tool runs. After a crash, an effect may be
required that was started by a process that has exited. A model request is then sent again. A call runs again only if
its tool is idempotent; otherwise the person is asked (ARCHITECTURE.md, 4. Promises).

The scheduler decides what may start. For its decisions it calls the methods of the first section, which only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agentnb.core.errors import UsageError
from agentnb.core.events import CallStart, CutOff, Event, ModelStart, RunPaused, checked
from agentnb.core.json import same_json
from agentnb.core.loop import Design
from agentnb.core.place import act_for
from agentnb.core.required_effects import MODEL, Effect
from agentnb.core.resume_point import is_suspended
from agentnb.core.state import CallState
from agentnb.run.admission import Finding, apply, questions_for
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.policy import NO_POLICY, Policy
from agentnb.run.event_data import values_as_json
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal
from agentnb.run.model_requests import ModelRequests
from agentnb.run.synthetic_results import cut_off, end_at_limit, end_loops_inside
from agentnb.run.tasks import InFlight
from agentnb.run.tool_calls import ToolCalls
from agentnb.run.validation import shown

ToPerform = tuple[Effect, Coroutine[Any, Any, None]]
"""An effect that the driver performs itself, without a task, and the coroutine that performs it."""


class Checked(Struct, frozen=True):
    """The result of the checks of a call, and the arguments that were checked."""

    arguments: dict[str, Any]
    finding: Finding


class LoopExecutor:
    """The effects of one loop of a run."""

    def __init__(
        self,
        frame: Frame,
        journal: Journal,
        gate: Gate,
        inflight: InFlight,
        policy: Policy | None,
        contexts: LiveContexts,
        *,
        judges_open_questions: bool = False,
    ) -> None:
        """judges_open_questions: the policy is new, so it is also asked about the open questions of a recording."""
        self.frame = frame
        self.asking = ModelRequests(frame, journal, inflight)
        self.calling = ToolCalls(frame, journal, policy, contexts, gate, inflight)
        self._journal = journal
        self._gate = gate
        self._inflight = inflight
        self.requested_here = False
        """Whether this process has recorded a model request that is still to be sent."""
        self.started: dict[str, Effect] = {}
        """The calls whose start is recorded and which are still to be launched, by id, in the order of their starts."""
        self.nested: dict[str, LoopExecutor] = {}
        """The executors of the nested loops that perform calls of this loop, by the ids of the calls."""
        self.names_of_nested: set[str] = set()
        """The names of the nested loops: the last parts of their paths."""
        self.left_open = questions_for(policy, frame) if judges_open_questions else set()
        """The ids of the calls about which a person was asked before this run was restored or forked, and about which
        its policy has not been asked yet."""
        self._verdicts: dict[str, Checked] = {}
        """The results of the checks of calls that have not started, by the ids of the calls."""
        self._stopped_before = _stopped_before(frame, journal)
        """The calls before which a breakpoint has stopped the run, by their ids."""
        tools_ask = any(callable(tool.approve) for tool in frame.tools.values())
        self._checks_cannot_block = policy is None and frame.calls.before_call is None and not tools_ask
        self._model = (Effect(MODEL.kind, MODEL.id, frame.path),)

    # -- what the scheduler reads ----------------------------------------------------------------------------------

    def required_effects(self) -> Sequence[Effect]:
        """Return the effects of this loop that must be in flight, in the order in which they should start."""
        frame = self.frame
        state = frame.state
        if not state.open:  # no calls that a design could hold back
            return self._model if state.model != "idle" else ()
        required = frame.calls.required(state)

        # Checked calls that wait for the concurrency limit of the loop are not required yet.
        if self._verdicts:
            passed = [
                call
                for id, checked in self._verdicts.items()
                if checked.finding is NO_POLICY and (call := state.open.get(id)) is not None
            ]
            waiting = {call.id for call in passed} - {call.id for call in frame.calls.within_limit(passed, state)}
            required = [effect for effect in required if effect.id not in waiting]
        return [Effect(kind, id, frame.path) for kind, id, _ in required] if frame.path else required

    def may_start(self) -> bool:
        """Return True if the gate lets effects of this loop start."""
        gate, state, frame = self._gate, self._journal.state, self.frame
        if gate.is_open(state):
            return True
        # A pause waits for some loops to end, and for calls that were started by a process that has exited.
        return gate.is_open(state, finishing=True) and (frame.finishes_first or self._has_lost_calls())

    def _has_lost_calls(self) -> bool:
        """Return True if a call that a pause waits for was started by an exited process, and has not started again."""
        path = self.frame.path
        return not self.frame.calls.pauses_inside and any(
            call.status == "running"
            and call.id not in self.started
            and call.id not in self.nested
            and Effect("call", call.id, path) not in self._inflight
            for call in self.frame.state.open.values()
        )

    def may_still_start(self) -> bool:
        """Return True unless an event that was just appended has ended the loop or closed the gate."""
        state, journal = self.frame.state, self._journal
        if state.stop_reason is not None or state.cancelled is not None:
            return False
        may_have_closed = self._gate.pausing is not None or journal.observers or journal.watchers
        return not may_have_closed or self.may_start()

    def checks(self, effect: Effect) -> bool:
        """Return True if this effect is the check of a call, and later calls may not start before it has ended."""
        call = self.frame.state.open.get(effect.id) if self.frame.calls.checks_in_order else None
        return call is not None and call.status == "proposed"

    def cut_off(self) -> tuple[CallState, CutOff] | None:
        """Return the first open call of an answer that was cut off, and the reason; None if there is no such call."""
        state = self.frame.state
        if not state.open or state.reply is None or (why := state.reply.cut_off) is None:
            return None
        made = (state.open.get(made.id) for made in state.reply.message.tool_calls)
        return next(((call, why) for call in made if call is not None), None)

    def to_launch_while_closed(self) -> list[str]:
        """Return the started calls that a closed gate does not hold back.

        These are calls of the loop's own code. If a breakpoint before another call has closed the gate, they are also
        calls of tools: they are recorded as running, so after a crash it would be unknown whether they have run.
        """
        gate, state = self._gate, self._journal.state
        if not self.started:
            return []
        calls = [call for id in self.started if (call := self.frame.state.open.get(id)) is not None]
        own = [call for call in calls if self.frame.is_own(call)]
        nested_may_wait = self.frame.calls.pauses_inside or not gate.is_open(state, finishing=True)
        if own and not (nested_may_wait and all(self.frame.loop_for(call) is not None for call in own)):
            return list(self.started)
        if gate.pausing is None or gate.pausing_before is None:
            return []
        return [call.id for call in calls if self.frame.loop_for(call) is None]

    def is_tool(self, call: CallState) -> bool:
        """Return True if a tool performs the call, not a nested loop or the loop itself."""
        return not call.hidden and self.frame.loop_for(call) is None

    def has_stopped_before(self, call: CallState) -> bool:
        """Return True if a breakpoint has stopped the run before this call."""
        return self._stopped_before.get(call.id) is call

    def has_stopped_before_one_of(self, effects: Sequence[Effect]) -> bool:
        """Return True if a breakpoint has stopped the run before one of these calls, and that call has not started."""
        open, stopped = self.frame.state.open, self._stopped_before
        return bool(stopped) and any(
            effect.kind == "call" and effect.id in stopped and open.get(effect.id) is stopped[effect.id]
            for effect in effects
        )

    def verdict(self, call: CallState, arguments: dict[str, Any]) -> Checked | None:
        """Return the verdict about the call with these arguments; None if it has to be checked in a task first."""
        checked = self._verdicts.get(call.id)
        if checked is not None and (checked.arguments is arguments or same_json(checked.arguments, arguments)):
            return checked
        if not (self._checks_cannot_block or self.frame.is_own(call)):
            return None
        checked = self._verdicts[call.id] = Checked(arguments, self.calling.check(call, arguments))
        return checked

    def others_run(self) -> bool:
        """Return True if calls of this loop, or tools of other loops, are running. Detached calls do not count."""
        started = [(self.frame.path, id) for id in (*self.started, *self.nested)]
        started += [(path, id) for kind, id, path in self._inflight if kind == "call"]
        frames = {frame.path: frame for frame in self._journal.frames}
        calls = [frames[path].state.open.get(id) for path, id in started if path in frames]
        return any(call is not None and call.status == "running" and not call.detached for call in calls)

    # -- the next event of the loop --------------------------------------------------------------------------------

    def advance(self) -> None:
        """Append the next event of the loop, as its design decides; nothing if it waits for detached calls, or if its
        model request may not start (now).

        Raises UsageError if the design returns no event, ImpossibleEvent if a field of the event is not valid, and the
        errors of `Journal.append`.
        """
        frame, journal, gate = self.frame, self._journal, self._gate
        design = frame.design
        event = design.advance(frame.state)
        if event is None:
            if frame.state.detached:
                return
            raise UsageError(
                f"{design.name}.advance() returned None, but no detached call is running. Return the next event, or"
                " RunEnd(reason='completed', output=...) to end the run."
            )
        if not isinstance(event, Event):
            raise UsageError(f"{design.name}.advance() must return an event (agentnb.core.events), not {shown(event)}.")
        event = checked(values_as_json(event, design.name))
        if isinstance(event, ModelStart):
            if gate.excludes("model", frame.path, frame.state.turn + 1):
                return
            if gate.limits and (why := gate.limit_reached(journal.state, starting="model")) is not None:
                if gate.stop_at_limit(why):
                    journal.fresh = True  # no event was appended, but the gate has closed
                else:
                    end_at_limit(journal, why)
                return
            if gate.holds_requests():
                return
            self.requested_here = True
            event = self.asking.describe(event)
        elif is_suspended(event):
            frame = journal.root  # the run ends in this process; its nested loops keep their state
        journal.append(event, frame)

    # -- model requests --------------------------------------------------------------------------------------------

    def request(self, effect: Effect, *, alone: bool, pulled: bool) -> ToPerform | None:
        """Send the recorded request. Returns what the driver has to perform itself; None if a task performs it."""
        self.requested_here = False
        if alone:
            return effect, self.asking.ask(pulled=pulled)
        self._inflight.spawn(effect, self.asking.ask)
        return None

    def request_again(self) -> None:
        """Record another attempt of the request, if its answer is still needed."""
        self.requested_here = True
        state = self.frame.state
        if state.model == "asked":
            again = ModelStart(
                turn=state.turn,
                attempt=state.attempt + 1,
                options=state.options,
                continues=self.asking.has_paused,
            )
            self._journal.append(self.asking.describe(again), self.frame)

    # -- calls -----------------------------------------------------------------------------------------------------

    def check(self, call: CallState, effect: Effect, arguments: dict[str, Any]) -> None:
        """Check a call in a task, by the built-in checks, the hook and the policy, and keep the verdict."""
        self._inflight.spawn(effect, partial(self._check_in_task, call, arguments))

    async def _check_in_task(self, call: CallState, arguments: dict[str, Any]) -> None:
        act_for(self._journal, self.frame.path, self.frame.inside, call.id, checks=True)
        self._verdicts[call.id] = Checked(arguments, await self.calling.check_with_hooks(call, arguments))

    def settle(self, call: CallState, finding: Finding, arguments: dict[str, Any]) -> None:
        """Record the result of the checks of a call: a refusal, a decision or a question."""
        self._verdicts.pop(call.id, None)
        apply(finding, self._journal, self.frame, call, arguments)

    def ask_policy(self, question: Effect) -> None:
        """Ask the policy of this run a recorded question. If the policy does not decide, the question stays open."""
        self.left_open.remove(question.id)
        self._inflight.spawn(question, partial(self._answer_by_policy, self.frame.state.open[question.id]))

    async def _answer_by_policy(self, call: CallState) -> None:
        asked = call.approval
        assert asked is not None
        act_for(self._journal, self.frame.path, self.frame.inside, call.id, checks=True)
        verdict = await self.calling.put_to_policy(call, asked.arguments, asked)
        with self._journal.lock:
            if verdict.decision != "ask" and call.status == "asking" and call.approval is asked:
                apply(verdict, self._journal, self.frame, call, asked.arguments)

    def ask_breakpoints(self, call: CallState, arguments: dict[str, Any]) -> None:
        """Test the breakpoints with the start of a call as it would be recorded. Note if the run stops before it."""
        frame, journal = self.frame, self._journal
        start = self._start_of(call, arguments)
        recorded = replace(
            start,
            seq=len(journal.events),
            time=time.time(),
            run_id=journal.run_id,
            path=frame.path,
            phase=frame.opens(start),
        )
        if self._gate.stops_before(recorded, frame.state, journal.state):
            self._stopped_before[call.id] = call
            journal.fresh = True  # no event was appended, but the gate has closed

    def start(self, call: CallState, effect: Effect, arguments: dict[str, Any]) -> None:
        """Record that the call starts with these arguments."""
        start = self._start_of(call, arguments)
        if not start.own:
            self.calling.make_ready(call, arguments)
        self._verdicts.pop(call.id, None)
        self._stopped_before.pop(call.id, None)
        self.started[call.id] = effect
        self._journal.append(start, self.frame, call)

    def _start_of(self, call: CallState, arguments: dict[str, Any]) -> CallStart:
        return CallStart(
            call_id=call.id,
            name=call.name,
            arguments=arguments,
            attempt=call.attempt + 1,
            own=call.hidden and self.frame.is_own(call),
            detached=self.frame.calls.detaches(call),
        )

    def end_cut_off(self, call: CallState, why: CutOff) -> None:
        """End the nested loops that perform a call of an answer that was cut off, then record the call's result."""
        end_loops_inside(self._journal, self.frame, call)
        self._journal.append(cut_off(call, why), self.frame, call)

    def launch(
        self,
        calls: Collection[str],
        enter: Callable[[LoopExecutor, CallState, Design], None],
        *,
        alone: bool,
        pulled: bool,
    ) -> ToPerform | None:
        """Run calls whose start is recorded, once the start is on disk.

        enter: starts the nested loop that performs a call. alone: the driver may perform a call of the loop's own.

        Returns what the driver has to perform itself; None if tasks perform everything.
        """
        if not self._inflight.wakeup.flush():  # the store is locked; the scheduler tries again when it is not
            return None
        frame, state = self.frame, self.frame.state
        for id in calls:
            effect, call = self.started.pop(id), state.open.get(id)
            if call is None:
                continue
            if (loop := frame.loop_for(call)) is not None:
                enter(self, call, loop)
            elif (end := frame.calls.skip(call, state)) is not None:
                self._journal.append(end, frame, call)
            elif alone and not call.detached and (not pulled or frame.is_own(call)):
                return effect, self.calling.perform(call, inline="pull" if pulled else "drain")
            else:
                self._inflight.spawn(effect, partial(self.calling.perform, call))
        return None


def _stopped_before(frame: Frame, journal: Journal) -> dict[str, CallState]:
    """Return the call of this loop before which a breakpoint has stopped a recorded run, by its id, if it is open."""
    if not journal.state.paused:
        return {}
    paused = next(event for event in reversed(journal.events) if isinstance(event, RunPaused))
    path, id = paused.before or ("", "")
    call = frame.state.open.get(id) if path == frame.path else None
    return {id: call} if call is not None else {}
