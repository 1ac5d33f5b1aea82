"""Remembered decisions: what a person decided once, decided again for the calls that are like that one.

A decision that is to be remembered says so itself (`ApprovalDecision.remember`). So the rule is as much a fact as the
decision is: folded with the state, there after a restore, and every decision that follows from it names it. A rule is
bound to the loop's path, the tool's name, and the fingerprint of its description and schema. It answers only where a
person would have been asked. What a policy or a hook has refused stays refused, and a call of unknown outcome is always
a person's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.events import ApprovalDecision, Decision, Remember
from agentnb.core.json_data import same_json
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import reject
from agentnb.run.approvals.pending import question_of
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


@dataclass(frozen=True, slots=True)
class Remembered:
    """A decision that holds for later calls too.

    It is for the calls of `tool` that the loop at `path` makes, as long as the description and the schema of the tool
    stay the same. `event` is the number of the event of the run `run_id` that made it, at `time` (epoch seconds).
    `arguments` are those it holds for; None: for every call.
    """

    event: int
    decision: Decision
    tool: str
    arguments: dict[str, Any] | None
    reason: str
    by: str
    time: float
    reviewer: str | None = None
    path: str = ""
    run_id: str = ""

    @classmethod
    def of(cls, rule: ApprovalDecision) -> Remembered:
        """What the event says."""
        about = rule.name or "", rule.arguments, rule.reason
        return cls(rule.seq, rule.decision, *about, rule.by, rule.time, rule.reviewer, rule.path, rule.run_id)


def remembering(call: CallState, arguments: dict[str, Any], remember: Remember | None) -> dict[str, Any]:
    """The fields of a decision that is to be remembered."""
    if remember is None:
        return {}
    return {"remember": remember, "name": call.name, "arguments": arguments if remember == "arguments" else None}


def decide_as_before(journal: Journal, frame: Frame, call: CallState, arguments: dict[str, Any]) -> bool:
    """Decide a call as was decided about one like it; False where that was not to be remembered."""
    with journal.lock:
        rule = _rule_for(journal.state.rules, frame, call.name, arguments)
        if rule is None:
            return False
        if rule.decision == "reject":
            reject(journal, frame, call, rule.reason, by="remembered", earlier=rule.seq)
        else:
            decision = ApprovalDecision(
                call_id=call.id,
                decision="approve",
                by="remembered",
                earlier=rule.seq,
                arguments=arguments,
                question=question_of(call),
                tool_fingerprint=frame.fingerprints.get(call.name),
            )
            journal.append(decision, frame, call)
        return True


def decide_those_waiting(journal: Journal) -> None:
    """A decision has just been remembered: the calls that are being asked about are decided by it too."""
    for frame in list(journal.frames):
        for call in list(frame.state.open.values()):
            if call.status == "asking" and call.approval is not None and not call.approval.unknown:
                decide_as_before(journal, frame, call, call.approval.arguments)


def why_not_as_before(journal: Journal, frame: Frame, call: CallState) -> str:
    """Say that a remembered decision about the tool no longer holds, because the tool has changed; empty where none."""
    changed = [rule for rule in _rules_of(journal.state.rules, frame, call.name) if not _is_same_tool(rule, frame)]
    if not changed:
        return ""
    return (
        f"The description or the schema of {call.name} has changed since event {changed[-1].seq}, which was to be"
        " remembered."
    )


def _rule_for(
    rules: Sequence[ApprovalDecision], frame: Frame, tool: str, arguments: Mapping[str, Any]
) -> ApprovalDecision | None:
    """The newest rule for exactly this call of a loop's tool, or else the newest for the tool."""
    of_tool = [rule for rule in reversed(_rules_of(rules, frame, tool)) if _is_same_tool(rule, frame)]
    exact = (rule for rule in of_tool if rule.arguments is not None and same_json(rule.arguments, arguments))
    return next(exact, None) or next((rule for rule in of_tool if rule.remember == "tool"), None)


def _rules_of(rules: Sequence[ApprovalDecision], frame: Frame, tool: str) -> list[ApprovalDecision]:
    return [rule for rule in rules if rule.name == tool and rule.path == frame.path]


def _is_same_tool(rule: ApprovalDecision, frame: Frame) -> bool:
    """Whether the tool is as it was when that was decided; older recordings do not say."""
    return rule.tool_fingerprint is None or rule.tool_fingerprint == frame.fingerprints.get(rule.name or "")
