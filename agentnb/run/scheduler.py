"""The scheduler: decides what a run does next, for the outermost loop and all nested loops.

1. Start required effects that are not in flight; cancel effects in flight that are no longer required.
2. If a loop has no effect required or in flight, ask it for its next event.
3. Otherwise wait for a wakeup.

It only decides: it reads the journal, the gate and the effects in flight, and yields actions, which the executor
performs. The functions are generators, so that each action is performed before the next one is decided. In this way one
pass can start a thousand calls; a new pass after each call would compare all of them again. Every reason that can hold
a run back is a case below, in the order in which the cases apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import CutOff
from agentnb.core.required_effects import Effect
from agentnb.core.state import CallState
from agentnb.run.admission import Finding, confirmed, is_decided
from agentnb.run.approvals.policy import NO_POLICY
from agentnb.run.gate.gate import Gate
from agentnb.run.headless import in_force
from agentnb.run.journal import Journal
from agentnb.run.loop_executor import LoopExecutor
from agentnb.run.synthetic_results import misfit, unfit
from agentnb.run.tasks import InFlight

Pace = Literal["pull", "drain", "step"]
"""How a run is driven.

pull: a consumer takes each event before the next one is recorded. drain: until the run ends. step: until the step's
permit is used up; everything runs in tasks, which continue between two steps.
"""


class Advance(Struct, frozen=True):
    """Ask a loop for its next event."""

    loop: LoopExecutor


class Leave(Struct, frozen=True):
    """Remove a nested loop that has ended; its output is the result of the call that it performed."""

    loop: LoopExecutor


class Request(Struct, frozen=True):
    """Send the recorded model request of a loop. `alone`: nothing else is or will be in flight."""

    loop: LoopExecutor
    effect: Effect
    alone: bool


class RequestAgain(Struct, frozen=True):
    """Record another attempt of a request: the process that made it has exited, or the model failed."""

    loop: LoopExecutor


class Check(Struct, frozen=True):
    """Check a call in a task, because a policy or a hook may block. The loop's executor keeps the verdict."""

    loop: LoopExecutor
    call: CallState
    effect: Effect
    arguments: dict[str, Any]


class Settle(Struct, frozen=True):
    """Record the result of the checks of a call: a refusal, a decision or a question."""

    loop: LoopExecutor
    call: CallState
    finding: Finding
    arguments: dict[str, Any]


class GiveDecidedResult(Struct, frozen=True):
    """Record the result of a call that was rejected or answered."""

    loop: LoopExecutor
    call: CallState


class AskPerson(Struct, frozen=True):
    """Record the question about a call whose outcome only a person can tell, or whose decision was withdrawn."""

    loop: LoopExecutor
    call: CallState


class AskPolicy(Struct, frozen=True):
    """Let the policy answer a recorded question, because the policy is new in this run."""

    loop: LoopExecutor
    effect: Effect


class AskBreakpoints(Struct, frozen=True):
    """Ask the breakpoints whether the run stops before a call."""

    loop: LoopExecutor
    call: CallState
    arguments: dict[str, Any]


class Start(Struct, frozen=True):
    """Record that a call starts. It is launched when all calls of the pass have been recorded."""

    loop: LoopExecutor
    call: CallState
    effect: Effect
    arguments: dict[str, Any]


class StartAgain(Struct, frozen=True):
    """Let a call be launched again: a process recorded its start, but exited before its nested loop started."""

    loop: LoopExecutor
    call: CallState
    effect: Effect


class Launch(Struct, frozen=True):
    """Run recorded calls, once their start is on disk. `alone`: nothing else is or will be in flight."""

    loop: LoopExecutor
    calls: list[str]
    alone: bool


class EndCutOff(Struct, frozen=True):
    """Record the result of a call whose arguments may be incomplete, because the answer that made it was cut off."""

    loop: LoopExecutor
    call: CallState
    why: CutOff


class EndBrokenOff(Struct, frozen=True):
    """Record that a call has failed because its own code has cancelled the task that it ran in."""

    loop: LoopExecutor
    call: CallState
    effect: Effect


class CancelAllBut(Struct, frozen=True):
    """Cancel the effects in flight that are not required; keep a call that has cancelled its own run."""

    required: set[Effect]


class CancelChecks(Struct, frozen=True):
    """Cancel the checks in flight. They are repeated when the run continues."""


class LetContinue(Struct, frozen=True):
    """Let effects that rest at the gate continue if they may."""


class EndAtLimit(Struct, frozen=True):
    """End the run because a limit is reached."""

    why: str


class EndCancelled(Struct, frozen=True):
    """End a cancelled run: the tool that cancelled its own run has returned."""


class EndAfterRequest(Struct, frozen=True):
    """Cancel the run: the only request that may start is answered."""

    reason: str


class Expire(Struct, frozen=True):
    """Reject the calls whose deadline for an answer has passed."""


class Suspend(Struct, frozen=True):
    """End the run in this process; a restored run continues with the open questions."""


class EndStep(Struct, frozen=True):
    """Give the permit of the step back: only a person can move the run on."""


class Pause(Struct, frozen=True):
    """Record the requested pause, unless something is still in flight."""


class Wait(Struct, frozen=True):
    """Nothing can happen before a wakeup."""


class Halt(Struct, frozen=True):
    """Stop driving: the step's permit is used up, the model failed, or the run crashed (`error`)."""

    why: Literal["step", "failed", "crashed"]
    error: BaseException | None = None


Action = (
    Advance
    | Leave
    | Request
    | RequestAgain
    | Check
    | Settle
    | GiveDecidedResult
    | AskPerson
    | AskPolicy
    | AskBreakpoints
    | Start
    | StartAgain
    | Launch
    | EndCutOff
    | EndBrokenOff
    | CancelAllBut
    | CancelChecks
    | LetContinue
    | EndAtLimit
    | EndCancelled
    | EndAfterRequest
    | Expire
    | Suspend
    | EndStep
    | Pause
    | Wait
    | Halt
)


def next_actions(
    journal: Journal, gate: Gate, loops: list[LoopExecutor], inflight: InFlight, pace: Pace
) -> Iterator[Action]:
    """Yield the actions of one pass over the loops of a run. The caller holds the journal's lock.

    loops: the executors of the active loops, each nested loop after its parent. The caller has set `journal.fresh` to
    False; each appended event sets it to True. If a pass has appended events, the next pass starts from the new state.
    With a consumer that pulls, a pass ends at its first event, so that the consumer can react to it.
    """
    state = journal.state

    # A model request failed: let running calls finish, cancel pending checks, then report the failure.
    if state.failure is not None:
        yield LetContinue()
        if inflight.is_at_rest:
            yield Halt("failed")
        else:
            yield CancelChecks()
            yield Wait()
        return

    # The gate is closed (a pause, or a used-up permit). Launch the calls that are recorded as started, if the gate does
    # not hold them back. Then run only the loops that a pause has to wait for; once there are none, record the pause.
    is_open = gate.is_open(state)
    if not is_open:
        for loop in loops:
            if calls := loop.to_launch_while_closed():
                yield Launch(loop, calls, alone=False)
                if loop.started.keys().isdisjoint(calls):  # otherwise the store is locked
                    return
        if not any(loop.may_start() for loop in loops):
            yield Pause()
            if not journal.fresh:
                yield Halt("step") if pace == "step" and gate.pausing is None else Wait()
            return

    # A task crashed because of the driver or the store, not because of user code: the run fails.
    if inflight.crash is not None:
        yield Halt("crashed", inflight.crash)
        return

    # Compare what each loop requires with what is in flight, and cancel what is no longer required. A call that is
    # performed by a nested loop needs no effect of its own.
    required: list[tuple[LoopExecutor, Sequence[Effect]]] = []
    effects: list[Effect] = []
    all_require = True
    for loop in loops:
        needed = loop.required_effects()
        required.append((loop, needed))
        effects += [effect for effect in needed if effect.id not in loop.nested] if loop.nested else needed
        all_require = all_require and bool(needed)
    if inflight:
        if not inflight.keys() <= (wanted := set(effects)):
            yield CancelAllBut(wanted)
        if state.cancelled is None and inflight.resting:
            yield LetContinue()

    # Start what is missing. A pause that waits for some loops holds back the others. The call before which a breakpoint
    # has stopped the run starts before the breakpoints are asked about another call.
    alone = all_require and not inflight and len(effects) == 1
    if not is_open:
        required = [(loop, needed) for loop, needed in required if loop.may_start()]
    stopped = bool(gate.breakpoints) and any(loop.has_stopped_before_one_of(needed) for loop, needed in required)
    for loop, needed in required:
        if needed:
            yield from _start_effects(journal, gate, inflight, loop, needed, alone, stopped, pace)
            if pace == "pull" and journal.fresh:
                return
    if journal.fresh:
        return

    # Nothing to start: advance the loops that wait for nothing. Innermost first, because outer loops may be waiting for
    # the results of inner ones. Detached calls do not hold back their loop.
    moved: LoopExecutor | None = None
    for loop, needed in reversed(required):
        # All loops are advanced in one pass, because a new pass for each of a thousand loops would be quadratic.
        if moved is not None and (pace == "pull" or state.stop_reason is not None or not moved.may_start()):
            return

        own, position = loop.frame.state, len(journal.events)
        if own.detached:
            pending = [*needed, *(effect for effect in inflight if effect.path == loop.frame.path)]
            if any((call := own.open.get(effect.id)) is None or not call.detached for effect in pending):
                continue
        elif needed or (inflight and inflight.any_of(loop.frame.path)):
            continue

        if own.stop_reason is not None:
            if loop.nested:  # they are being cancelled, and end first
                continue
            yield Leave(loop)
        elif state.cancelled is not None:
            yield EndCancelled()
        elif (cut_off := loop.cut_off()) is not None:
            yield EndCutOff(loop, *cut_off)
        else:
            yield Advance(loop)
            if len(journal.events) == position:  # it waits for detached calls, or for a limit of its study
                continue
        moved = loop
    if moved is not None:
        return

    # A run that may start one request only ends after it.
    if gate.only_request is not None and not inflight:
        yield EndAfterRequest(gate.only_request.reason)
        return

    # Nothing can happen before a wakeup, unless the run waits only for a person. Then apply the deadlines that have
    # passed. If none has, a run that suspends at questions ends, and a step ends.
    only_questions = not inflight and all(effect.kind == "question" for effect in effects)
    if effects and only_questions and gate.suspends_at_questions and in_force().policy is None:
        yield Expire()
        if not journal.fresh:
            yield Suspend()
    elif only_questions and gate.permit is not None:
        yield Expire()
        if not journal.fresh:
            yield EndStep()
    else:
        yield Wait()


def _start_effects(
    journal: Journal,
    gate: Gate,
    inflight: InFlight,
    loop: LoopExecutor,
    required: Sequence[Effect],
    alone: bool,
    stopped: bool,
    pace: Pace,
) -> Iterator[Action]:
    """Yield the actions that start the required effects of one loop that are not in flight.

    alone: this loop requires one effect, and no other loop requires or has one. stopped: a breakpoint has stopped the
    run before a call that has not started yet.
    """
    frame = loop.frame
    state = frame.state

    # The answer was cut off: its calls get results that say so, also those that run. A consumer that pulls gets one
    # after the other.
    if loop.cut_off() is not None:
        while (cut_off := loop.cut_off()) is not None:
            yield EndCutOff(loop, *cut_off)
            if pace == "pull":
                break
        return

    for effect in required:
        if gate.excludes(effect.kind, effect.path, state.turn):
            continue

        # It is in flight. A loop that checks its calls in order starts none before the calls ahead are checked.
        if effect in inflight:
            if loop.checks(effect):
                return
            continue

        # A person has the question; the calls next to it are not held back. It is asked again if a decision was
        # withdrawn and the process ended, and a new policy may answer it.
        if effect.kind == "question":
            call = state.open.get(effect.id)
            if call is None:  # a limit has ended every call
                return
            if call.approval is None:
                yield AskPerson(loop, call)
            elif effect.id in loop.left_open:
                yield AskPolicy(loop, effect)
            continue

        # A nested loop performs the call.
        if effect.id in loop.nested:
            continue

        # An event of this pass may have closed the gate or ended the run: a watcher, a breakpoint or the loop's code.
        if journal.fresh and not loop.may_still_start():
            return

        # If this process has recorded the request to the model, send it. Otherwise record another attempt first. A turn
        # has several requests if its answer pauses (for the provider's own tools), or breaks off: the limits apply to
        # each of them.
        if effect.kind == "model":
            if gate.holds_requests():
                continue
            if loop.requested_here:
                yield Request(loop, effect, alone and pace != "step" and not frame.requests.answers_overlap)
            elif gate.limits and (why := gate.limit_reached(journal.state, starting="own", more=loop.asking.used)):
                yield EndAtLimit(why)
            else:
                yield RequestAgain(loop)
        elif (call := state.open.get(effect.id)) is not None:
            yield from _start_call(journal, gate, inflight, loop, call, effect, stopped)
            if effect in inflight and loop.checks(effect):
                return

        # The consumer takes the first event before anything else happens. But launch tools whose start the consumer is
        # about to receive: it may wait for what they do.
        if pace == "pull" and journal.fresh:
            shown = [call for one in required if one.kind == "call" and (call := state.open.get(one.id)) is not None]
            if all(call.id in loop.started and loop.is_tool(call) for call in shown) and loop.may_still_start():
                yield Launch(loop, list(loop.started), alone=False)
            return

    # Launch what is recorded as started.
    if loop.started:
        yield Launch(loop, list(loop.started), alone and len(required) == 1 and pace != "step")


def _start_call(
    journal: Journal,
    gate: Gate,
    inflight: InFlight,
    loop: LoopExecutor,
    call: CallState,
    effect: Effect,
    stopped: bool,
) -> Iterator[Action]:
    """Yield the actions that bring a call closer to its start, or to its result if it does not start."""
    frame, arguments = loop.frame, call.arguments
    is_own = frame.is_own(call)

    # It is recorded as started. Unless this process is about to launch it, or its code has cancelled its own task, the
    # process that started it has exited. A nested loop that had not started can start now. What a tool has done is
    # unknown: ask, unless it may run again.
    if call.status == "running":
        if call.id in loop.started:
            return
        if frame.loop_for(call) is not None:
            yield StartAgain(loop, call, effect)
            return
        if frame.asks_where_it_was_lost(call):
            yield EndBrokenOff(loop, call, effect) if effect in inflight.broken_off else AskPerson(loop, call)
            return

    elif call.status in ("proposed", "ready"):
        # It was rejected or answered, and the process ended before it had its result.
        if call.decision is not None and call.decision.decision in ("reject", "answer"):
            yield GiveDecidedResult(loop, call)
            return

        # Resolve references in the arguments.
        if not is_own:
            try:
                arguments = frame.calls.arguments(call, frame.state)
            except InvalidArguments as error:
                yield Settle(loop, call, unfit(call, error), arguments)
                return

        # Already decided, about exactly these arguments: start. A restored run may have lost the tool meanwhile.
        if call.status == "ready" and is_decided(frame, call, arguments):
            if call.name not in frame.tools and not is_own:
                yield Settle(loop, call, misfit(call, frame.tools), arguments)
                return

        # Otherwise it needs a verdict about these arguments. Checks that may block run in a task.
        else:
            found = loop.verdict(call, arguments)
            if found is None:
                yield Check(loop, call, effect, arguments)
                return
            arguments = found.arguments  # the very object that was checked: the tool is bound to it
            finding = confirmed(found.finding, frame, call)
            if finding is not NO_POLICY:
                yield Settle(loop, call, finding, arguments)
                return

        # The concurrency limit of the loop.
        if not frame.calls.within_limit((call,), frame.state):
            return
    else:
        return

    # A limit ends the run, but only after the calls that were started within the limit have ended.
    if gate.limits:
        starting: Literal["own", "call"] = "own" if call.hidden and is_own else "call"
        if (why := gate.limit_reached(journal.state, starting=starting)) is not None:
            if not loop.others_run():
                yield EndAtLimit(why)
            return

    # A breakpoint stops the run before the call, once for each call.
    if gate.breakpoints and not loop.has_stopped_before(call):
        if stopped:
            return
        yield AskBreakpoints(loop, call, arguments)
        if loop.has_stopped_before(call):
            return

    yield Start(loop, call, effect, arguments)
