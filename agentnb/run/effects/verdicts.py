"""What is said about a call before it runs, and what becomes of it by that: it may run, is refused, or is asked about.

What the checks, a hook or the policy have said holds for the arguments it was said about, and is kept until something
comes of it: a call that nothing objects to may have to wait for room.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import ApprovalDecision, ApprovalRequest
from agentnb.core.json_data import same_json
from agentnb.core.loop import Design
from agentnb.core.messages import to_plain
from agentnb.core.state import CallState
from agentnb.core.wanted import Effect
from agentnb.run.approvals.outcomes import carry_out, reject, terminate
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.policy import NO_POLICY, Policy, Verdict
from agentnb.run.approvals.remembered import decide_as_before, why_not_as_before
from agentnb.run.effects.calling import Calling
from agentnb.run.effects.inflight import InFlight
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.refusals import Refusal, misfit, unfit

Said = Verdict | Refusal | ApprovalDecision
"""What the checks, a hook and the policy may say about a call."""


class Verdicts:
    """What is said about the calls of one loop of a run."""

    def __init__(
        self,
        frame: Frame,
        journal: Journal,
        policy: Policy | None,
        calling: Calling,
        inflight: InFlight,
        *,
        judges_open_questions: bool = False,
    ) -> None:
        self._frame = frame
        self._journal = journal
        self._calling = calling
        self._inflight = inflight
        tools_ask = any(callable(tool.approve) for tool in frame.tools.values())
        self._checks_at_once = policy is None and frame.design.before_call is None and not tools_ask
        self._resolves = type(frame.design).arguments is not Design.arguments
        self.kept: dict[str, tuple[dict[str, Any], Said]] = {}
        """What the checks have said and nothing has come of yet, and about which arguments."""
        self.left_open = _questions_for(policy, frame) if judges_open_questions else set()
        """The calls about which a person was asked before this run was restored or forked, and its policy was not."""

    def may_begin_with(self, call: CallState, effect: Effect) -> dict[str, Any] | None:
        """The arguments with which the call begins; None where it does not, or not yet, and that is seen to."""
        frame = self._frame
        if call.decision is not None and call.decision.decision in ("reject", "answer"):
            carry_out(self._journal, frame, call, call.decision)  # a crash came between it and its end
            return None
        arguments = call.arguments
        if self._resolves and not frame.is_own(call):
            try:
                arguments = frame.design.arguments(call, frame.state)
            except InvalidArguments as error:
                self._apply(unfit(call, error), call, arguments)
                return None
        if call.status != "ready" or not self._is_decided(call, arguments):
            return self._checked(call, effect, arguments)
        if call.name not in frame.tools and not frame.is_own(call):
            # Decided while there was such a tool; the loop that goes on has none.
            self._apply(misfit(call, frame.tools), call, arguments)
            return None
        return arguments

    def keep(self, call: CallState, arguments: dict[str, Any]) -> None:
        """Nothing objects to the call with these arguments, and it is held back."""
        self.kept[call.id] = arguments, NO_POLICY

    def waiting_for_room(self) -> set[str]:
        """The calls that everybody has been asked about, and that their loop does not let begin yet."""
        state = self._frame.state
        free = [
            call
            for id, (_, said) in self.kept.items()
            if said is NO_POLICY and (call := state.open.get(id)) is not None
        ]
        return {call.id for call in free} - {call.id for call in self._frame.design.with_room(free, state)}

    def put_to_policy(self, question: Effect) -> None:
        """Put a question that was left open to the policy of this run; what that does not decide is for the person."""
        self.left_open.remove(question.id)
        self._inflight.spawn(question, partial(self._answer_by_policy, self._frame.state.open[question.id]))

    def _checked(self, call: CallState, effect: Effect, arguments: dict[str, Any]) -> dict[str, Any] | None:
        """The same for a call that is not decided: asks whether it may run, or does what was said about that."""
        verdict: Said | None = None
        if self.kept and call.id in self.kept:
            about, said = self.kept.pop(call.id)
            if about is arguments or same_json(about, arguments):  # otherwise they have changed since
                arguments, verdict = about, said  # the very object that was made ready to run
        if verdict is None and (self._checks_at_once or self._frame.is_own(call)):
            verdict = self._calling.check(call, arguments)
        if isinstance(verdict, Verdict) and (why := self._why_ask_again(call)) is not None:
            verdict = _asking_again(verdict, why)
        if verdict is NO_POLICY:
            return arguments
        if verdict is None:
            self._inflight.spawn(effect, partial(self._check, call, arguments))
        else:
            self._apply(verdict, call, arguments)
        return None

    def _is_decided(self, call: CallState, arguments: dict[str, Any]) -> bool:
        """Whether the decision about a call holds: for these arguments, and for the tool as it is now (promise 5)."""
        decision = call.decision
        if decision is None:
            return True
        decided_about = decision.tool_fingerprint
        if decided_about is not None and decided_about != self._frame.fingerprints.get(call.name, decided_about):
            return False
        if decision.decision != "approve":
            return True
        shown = decision.arguments
        if shown is None and call.approval is not None:
            shown = call.approval.arguments
        return shown is None or shown is arguments or same_json(shown, arguments)

    def _why_ask_again(self, call: CallState) -> str | None:
        """Why a person is to look at the call once more; None where no person was asked about it.

        No policy decides instead: what a person has seen is not what would run now.
        """
        decision = call.decision
        if call.approval is None and (decision is None or decision.by not in ("remembered", "fork")):
            return None
        if decision is not None and decision.tool_fingerprint not in (None, self._frame.fingerprints.get(call.name)):
            changed = f"The description or the schema of {call.name} has changed"
            return f"{changed} since this was decided (event {decision.seq})."
        since = f" (event {decision.seq})" if decision is not None else ""
        return f"What would run has changed since this was decided{since}."

    async def _check(self, call: CallState, arguments: dict[str, Any]) -> None:
        self.kept[call.id] = (arguments, await self._calling.check_with_hooks(call, arguments))

    async def _answer_by_policy(self, call: CallState) -> None:
        asked = call.approval
        assert asked is not None
        verdict = await self._calling.put_to_policy(call, asked.arguments, asked)
        with self._journal.lock:
            if verdict.decision != "ask" and call.status == "asking" and call.approval is asked:
                self._apply(verdict, call, asked.arguments)

    def _apply(self, verdict: Said, call: CallState, arguments: dict[str, Any]) -> None:
        """Make a fact of what was said about the call with these arguments."""
        journal, frame = self._journal, self._frame
        if isinstance(verdict, Refusal):
            journal.append(verdict.end, frame, call)
        elif verdict.decision == "reject":
            reject(journal, frame, call, verdict.reason, by=verdict.by or "rule")
        elif verdict.decision == "terminate":
            terminate(journal, frame, call, verdict)
        elif isinstance(verdict, ApprovalDecision):
            journal.append(verdict, frame, call)
        elif verdict.decision == "ask":
            if not decide_as_before(journal, frame, call, arguments):
                with journal.saying():  # whoever sees the question in `pending` finds it in the store, too
                    why = why_not_as_before(journal, frame, call)
                    journal.append(_question(call, verdict, arguments, why, journal.now()), frame, call)
        else:
            looked_at = arguments if arguments is not call.arguments else None
            decision = ApprovalDecision(
                call_id=call.id,
                decision=verdict.decision,
                by=verdict.by or "rule",
                reason=verdict.reason,
                question=question_of(call),
                tool_fingerprint=frame.fingerprints.get(call.name),
                arguments=verdict.arguments if verdict.arguments is not None else looked_at,
            )
            journal.append(decision, frame, call)


def _asking_again(verdict: Verdict, why: str) -> Verdict:
    """The verdict about a call that a person was asked about, and that has changed since: a no, or another question."""
    if verdict.decision in ("reject", "terminate"):
        return verdict
    reason = f"{why} {verdict.reason}" if verdict.decision == "ask" and verdict.reason else why
    return replace(verdict, decision="ask", reason=reason, arguments=None)


def _question(call: CallState, verdict: Verdict, arguments: dict[str, Any], why: str, now: float) -> ApprovalRequest:
    return ApprovalRequest(
        call_id=call.id,
        name=call.name,
        arguments=to_plain(arguments),  # a copy: a reader who changes it has not changed what runs (promise 5)
        reason=f"{why} {verdict.reason}".strip() if why and why not in verdict.reason else verdict.reason,
        earlier=call.approval.seq if call.approval is not None else None,
        deadline=now + verdict.deadline if verdict.deadline is not None else None,
        seen=verdict.seen,
    )


def _questions_for(policy: Policy | None, frame: Frame) -> set[str]:
    """The questions of a recording that a policy can answer: not those about what has become of a lost call."""
    if policy is None:
        return set()
    asking = (call for call in frame.state.open.values() if call.status == "asking" and call.name in frame.tools)
    return {call.id for call in asking if call.approval is not None and not call.approval.unknown}
