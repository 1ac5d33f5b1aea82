"""The executor of a run: performs the actions that the scheduler has decided, for all loops of the run.

A nested loop performs one call of its parent. It starts when the call starts, and appends events under its own path;
when it ends, its output becomes the result of the call.
"""

from __future__ import annotations

from agentnb.core.errors import LimitReached, RecordingMismatch
from agentnb.core.events import CUT_OFF_REASONS, CallEnd, CancelRequested, RunEnd, RunPaused
from agentnb.core.loop import Design
from agentnb.core.required_effects import Effect
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import CallState, State
from agentnb.run.approvals.context import LiveContexts
from agentnb.run.approvals.outcomes import carry_out, expire
from agentnb.run.approvals.pending import question_to_ask
from agentnb.run.approvals.policy import Policy
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import Gate
from agentnb.run.journal import Journal
from agentnb.run.loop_executor import LoopExecutor, ToPerform
from agentnb.run.mailbox import hand_back, hand_on, open_mailbox
from agentnb.run.scheduler import (
    Action,
    Advance,
    AskBreakpoints,
    AskPerson,
    AskPolicy,
    CancelAllBut,
    CancelChecks,
    Check,
    EndAfterRequest,
    EndAtLimit,
    EndBrokenOff,
    EndCancelled,
    EndCutOff,
    EndStep,
    Expire,
    GiveDecidedResult,
    Halt,
    Launch,
    Leave,
    LetContinue,
    Pace,
    Pause,
    Request,
    RequestAgain,
    Settle,
    Start,
    StartAgain,
    Suspend,
    Wait,
    next_actions,
)
from agentnb.run.synthetic_results import broken_off, end_at_limit, end_run
from agentnb.run.tasks import InFlight


class Executor:
    """Performs the scheduler's actions for the active loops of a run. Belongs to the event loop that drives the run."""

    def __init__(
        self,
        journal: Journal,
        gate: Gate,
        inflight: InFlight,
        policy: Policy | None,
        contexts: LiveContexts,
        *,
        judges_open_questions: bool = False,
    ) -> None:
        """Resume the run's own loop, and the nested loops that were running when it was recorded.

        judges_open_questions: the policy is new, so it is also asked about the open questions of a recording.

        Raises RecordingMismatch if the recording stops inside a nested loop that the given loop does not have.
        """
        self._journal = journal
        self._gate = gate
        self._inflight = inflight
        self._policy = policy
        self._contexts = contexts
        self._judges_open_questions = judges_open_questions
        self.loops: list[LoopExecutor] = []
        """The executors of the active loops: the outermost first, and each nested loop after its parent."""
        self._add(journal.root, None)

    def take_step(self, pace: Pace) -> ToPerform | Wait | Halt | None:
        """Perform the next actions of the run, without waiting. The caller holds the journal's lock.

        Returns an effect for the driver to perform itself, Wait, Halt, or None: events were appended or effects
        started, call again.
        """
        self._journal.fresh = False  # every append sets it again
        for action in next_actions(self._journal, self._gate, self.loops, self._inflight, pace):
            if (todo := self._perform(action, pace)) is not None:
                return todo
        return None

    def _perform(self, action: Action, pace: Pace) -> ToPerform | Wait | Halt | None:
        """Perform an action. Returns what the driver has to do: usually nothing, None."""
        journal = self._journal
        match action:
            case Advance(loop):
                loop.advance()
            case Request(loop, effect, alone):
                return loop.request(effect, alone=alone, pulled=pace == "pull")
            case Start(loop, call, effect, arguments):
                loop.start(call, effect, arguments)
            case Launch(loop, calls, alone):
                return loop.launch(calls, self._enter, alone=alone, pulled=pace == "pull")
            case Wait() | Halt():
                return action
            case RequestAgain(loop):
                loop.request_again()
            case Check(loop, call, effect, arguments):
                loop.check(call, effect, arguments)
            case Settle(loop, call, finding, arguments):
                loop.settle(call, finding, arguments)
            case AskBreakpoints(loop, call, arguments):
                loop.ask_breakpoints(call, arguments)
            case AskPerson(loop, call):
                journal.append(question_to_ask(call), loop.frame, call)
            case AskPolicy(loop, effect):
                loop.ask_policy(effect)
            case GiveDecidedResult(loop, call):
                carry_out(journal, loop.frame, call, call.decision)
            case StartAgain(loop, call, effect):
                loop.started[call.id] = effect
            case EndCutOff(loop, call, why):
                loop.end_cut_off(call, why)
            case EndBrokenOff(loop, call, effect):
                self._inflight.broken_off.discard(effect)
                journal.append(broken_off(call), loop.frame, call)
            case Leave(loop):
                self._leave(loop)
            case CancelAllBut(required):
                self._inflight.cancel_all_but(required, self.may_return)
            case CancelChecks():
                self._inflight.cancel_all_but((), self._is_no_check)
            case LetContinue():
                self._inflight.let_continue()
            case EndAtLimit(why):
                if self._gate.stop_at_limit(why):
                    journal.fresh = True  # no event was appended, but the gate has closed
                else:
                    end_at_limit(journal, why)
            case EndCancelled():
                end_run(journal, "cancelled")
            case EndAfterRequest(reason):
                journal.append(CancelRequested(reason=reason))
                end_run(journal, "cancelled")
            case Expire():
                expire(journal)
            case Suspend():
                journal.append(RunEnd(reason="suspended"))
            case EndStep():
                self._gate.release_permit()
            case Pause():
                self.settle_pause()
        return None

    # -- pausing ---------------------------------------------------------------------------------------------------

    def settle_pause(self) -> bool:
        """Record the requested pause once nothing is in flight. Returns True if it was recorded."""
        gate, journal = self._gate, self._journal
        with journal.lock:
            if gate.pausing is None or not self._inflight.is_at_rest:
                return False
            reason, gate.pausing = gate.pausing, None
            if journal.state.paused:  # a step has reached a breakpoint in a run that is paused already
                return False
            journal.append(RunPaused(reason=reason, by=gate.pausing_by, before=gate.pausing_before))
        return True

    def may_return(self, effect: Effect) -> bool:
        """Return True if this effect is a call that has cancelled its own run. It is not interrupted (`end_run`)."""
        if self._journal.state.cancelled is None:
            return False
        frame = self._journal.frame_at(effect.path)
        return frame is not None and effect.id in frame.state.open

    def _is_no_check(self, effect: Effect) -> bool:
        """Return False if this effect checks a call that has not started; True for a request or a call that runs."""
        frame = self._journal.frame_at(effect.path)
        call = frame.state.open.get(effect.id) if frame is not None else None
        return call is None or call.status == "running"

    # -- nested loops ----------------------------------------------------------------------------------------------

    def _enter(self, parent: LoopExecutor, call: CallState, loop: Design) -> None:
        """Start the nested loop that performs a call of `parent`."""
        # Nested loops that run at the same time have different paths, whichever names and ids the model has chosen.
        taken = parent.names_of_nested
        name = loop.name.replace("/", "_") or type(loop).__name__
        if name in taken:
            name = given = f"{name}:{call.id}".replace("/", "_")
            number = 2
            while name in taken:
                name, number = f"{given}:{number}", number + 1
        frame = Frame(loop, State(), name=name, above=parent.frame, call=call.id)
        with self._journal.lock:
            self._journal.append(frame.begin(parent.frame.calls.input_for(call, parent.frame.state)), frame)
            self._add(frame, parent)
            open_mailbox(self._journal, frame)
            loop.attached(frame)
            hand_on(self._journal, frame)

    def _add(self, frame: Frame, parent: LoopExecutor | None) -> None:
        """Add the executor of a loop, and those of the nested loops that were running when it was recorded."""
        executor = LoopExecutor(
            frame,
            self._journal,
            self._gate,
            self._inflight,
            self._policy,
            self._contexts,
            judges_open_questions=self._judges_open_questions,
        )
        self.loops.append(executor)
        if parent is not None:
            parent.nested[frame.call] = executor
            parent.names_of_nested.add(frame.path.rpartition("/")[2])

        for name, state in frame.state.children.items():
            call = frame.state.open.get(state.call)
            if call is None or call.status != "running":
                continue
            loop = frame.loop_for(call)
            if loop.kind() != state.loop if loop is not None else not call.hidden:  # a design resumes its own calls
                now = f"is performed by a {loop.kind()} now" if loop else "is not performed by a loop now"
                raise RecordingMismatch(
                    f"The recording stops inside the nested loop {name!r} ({state.loop}), which performs the call"
                    f" {call.name!r} of {frame.design.name!r}; that call {now}. Pass a loop of this kind as the tool"
                    f" that performs it: tool({state.loop}(...), name={call.name!r})."
                )
            if loop is not None:
                nested = Frame(loop, state, name=name, above=frame, call=call.id)
                nested.recorded = frame.recorded
                self._journal.frames.append(nested)
                self._add(nested, executor)
                open_mailbox(self._journal, nested)
                loop.attached(nested)

    def _leave(self, loop: LoopExecutor) -> None:
        """Remove a nested loop that has ended, and record its output as the result of the call that it performed."""
        frame, state, journal = loop.frame, loop.frame.state, self._journal
        with journal.lock:
            parent = next(other for other in self.loops if other.frame is frame.above)
            self.loops.remove(loop)
            journal.frames.remove(frame)
            del parent.nested[frame.call]
            parent.names_of_nested.discard(frame.path.rpartition("/")[2])
            hand_back(journal, frame)
            call = parent.frame.state.open.get(frame.call)
            if call is None:
                return

            # If a limit has ended the loop, and code that awaits the loop would get LimitReached, the call fails. It
            # then fails like a call whose tool raises an error.
            ran_out = state.stop_reason in frame.design.limits_that_raise
            failed, error = ran_out or state.stop_reason == "error", state.error
            if ran_out:
                parent.calling.failure = error, LimitReached(error.message if error is not None else None)
            elif failed:
                parent.calling.failure = loop.calling.failure
            message = f"{error.type}: {error.message}" if error is not None else ABORTED
            end = CallEnd(
                call_id=call.id,
                name=call.name,
                result=message if failed else state.output,
                is_error=failed,
                outcome="raised" if failed else "returned",
                error=error if failed else None,
                details={"stop_reason": state.stop_reason} if state.stop_reason in CUT_OFF_REASONS else None,
            )
            journal.append(end, parent.frame, call)
