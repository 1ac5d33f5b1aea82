"""Decisions that are remembered for all runs of a study.

A rule decides the calls that a person would be asked about otherwise, in each run of the study, as the remembered
decision of a single run does. It is bound to what the person has seen: the path of the loop, the name, the description
and the schema of the tool, and the arguments if it is for these only. A call of unknown outcome is always decided by a
person. A rule lasts as long as the study object, and each decision that it makes is in the journal of its run.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from agentnb.core.errors import UsageError
from agentnb.core.events import Remember
from agentnb.core.json import same_json
from agentnb.run import Pending


@dataclass(frozen=True, slots=True)
class StudyRule:
    """A decision for all runs of a study.

    It applies to the calls of `tool` by the loops at `path`; `arguments` are those of the calls, None means any. `by`
    and `reviewer` are the author of the decision, as in `ApprovalDecision`; `time` is its time (epoch seconds).
    """

    number: int
    decision: Literal["approve", "reject"]
    tool: str
    arguments: dict[str, Any] | None
    reason: str
    by: str
    reviewer: str | None
    time: float
    path: str
    _about: tuple[Any, ...] = field(repr=False)

    @property
    def remember(self) -> Remember:
        """What the rule is for, as in `run.approve`."""
        return "tool" if self.arguments is None else "arguments"

    def fits(self, item: Pending) -> bool:
        """Return True if the rule decides about a call."""
        same_arguments = self.arguments is None or same_json(self.arguments, item.arguments)
        return not item.unknown and same_arguments and about(item) == self._about


def about(item: Pending) -> tuple[Any, ...]:
    """Return what a rule is bound to: the loop, and the tool as a person was shown it."""
    return item.path, item.name, item.description, repr(item.schema), item.needs


class StudyRules:
    """The rules of a study. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[StudyRule] = []
        self._made = 0

    def __bool__(self) -> bool:
        return bool(self._rules)

    def newest_first(self) -> list[StudyRule]:
        """Return the rules; the first one that fits decides: those for exact arguments come first."""
        with self._lock:
            return sorted(self._rules, key=lambda rule: (rule.arguments is None, -rule.number))

    def add(
        self,
        item: Pending,
        decision: Literal["approve", "reject"],
        remember: Remember,
        *,
        reason: str,
        by: str,
        reviewer: str | None,
        time: float,
    ) -> StudyRule:
        """Add the rule that follows from a decision about a call."""
        arguments = item.arguments if remember == "arguments" else None
        with self._lock:
            self._made += 1
            rule = StudyRule(
                self._made, decision, item.name, arguments, reason, by, reviewer, time, item.path, about(item)
            )
            self._rules.append(rule)
        return rule

    def remove(self, rule: StudyRule | int) -> None:
        """Remove a rule, or the rule with this number. Raises UsageError if it is not one of these rules."""
        number = rule.number if isinstance(rule, StudyRule) else rule
        with self._lock:
            kept = [one for one in self._rules if one.number != number]
            if len(kept) == len(self._rules):
                known = ", ".join(str(one.number) for one in self._rules) or "none"
                raise UsageError(f"The study has no rule {number!r}. Its rules: {known}.")
            self._rules = kept
