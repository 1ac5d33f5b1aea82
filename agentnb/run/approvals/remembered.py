"""Remembered decisions: rules that apply a person's decision to similar calls.

The rule is part of the decision event (`ApprovalDecision.remember`). It is therefore folded into the state and kept by
a restore, and each decision that follows from it refers to it. A rule is bound to the path of the loop, the name of the
tool, and the fingerprint of the tool's description and schema. It applies only if a person would be asked otherwise:
calls refused by a policy or a hook stay refused, and a call of unknown outcome is always decided by a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentnb.core.events import ApprovalDecision, Decision, Remember
from agentnb.core.json import same_json
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import reject
from agentnb.run.approvals.pending import question_of
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal


@dataclass(frozen=True, slots=True)
class Remembered:
    """A decision that also applies to later calls.

    It applies to the calls of `tool` by the loop at `path`, as long as the description and the schema of the tool stay
    the same. `arguments` are those of the calls; None means any. `event` is the number of the event in the run `run_id`
    that made the rule, and `time` its time (epoch seconds). `by` is the author of the decision, as in
    `ApprovalDecision`, and `reviewer` the person's name, if known.
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
        """Return the remembered decision that an event made."""
        about = rule.name or "", rule.arguments, rule.reason
        return cls(rule.seq, rule.decision, *about, rule.by, rule.time, rule.reviewer, rule.path, rule.run_id)


def remembering(call: CallState, arguments: dict[str, Any], remember: Remember | None) -> dict[str, Any]:
    """Return the fields of a decision that turn it into a rule for later calls; empty if `remember` is None."""
    if remember is None:
        return {}
    return {"remember": remember, "name": call.name, "arguments": arguments if remember == "arguments" else None}


def apply_remembered(journal: Journal, frame: Frame, call: CallState, arguments: dict[str, Any]) -> bool:
    """Decide a call by the remembered decision that applies to it. Returns False if there is none."""
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


def apply_to_waiting(journal: Journal) -> None:
    """Decide the waiting calls by the remembered decisions. Called after a decision was remembered."""
    for frame in list(journal.frames):
        for call in list(frame.state.open.values()):
            if call.status == "asking" and call.approval is not None and not call.approval.unknown:
                apply_remembered(journal, frame, call, call.approval.arguments)


def lapsed_reason(journal: Journal, frame: Frame, call: CallState) -> str:
    """Return the message that a remembered decision no longer applies, because its tool has changed.

    The message is empty if this is the case for no decision.
    """
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
    """Return the newest rule for these arguments of the tool, or else the newest for the whole tool, or None."""
    of_tool = [rule for rule in reversed(_rules_of(rules, frame, tool)) if _is_same_tool(rule, frame)]
    exact = (rule for rule in of_tool if rule.arguments is not None and same_json(rule.arguments, arguments))
    return next(exact, None) or next((rule for rule in of_tool if rule.remember == "tool"), None)


def _rules_of(rules: Sequence[ApprovalDecision], frame: Frame, tool: str) -> list[ApprovalDecision]:
    return [rule for rule in rules if rule.name == tool and rule.path == frame.path]


def _is_same_tool(rule: ApprovalDecision, frame: Frame) -> bool:
    """Return True if the tool is unchanged since the decision, or if an older recording has no fingerprint of it."""
    return rule.tool_fingerprint is None or rule.tool_fingerprint == frame.fingerprints.get(rule.name or "")
