"""Decisions about calls: what was decided, by whom and when.

They are computed from the run's events, so a restored run and a recording show the same. Only the newest decisions are
kept, and only the newest calls, because an event with a decision has the id of its call but not its name.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import Any

from agentnb.core.events import ApprovalDecision, ApprovalRequest, CallProposed, Event, ModelEnd
from agentnb.core.json import repair_text
from agentnb.run import Recording
from agentnb.run.approvals.too_late import BY, DONE
from agentnb.widgets.text import brief, one_line
from agentnb.widgets.views.short import in_short

RECENT = 20
"""The maximum number of decisions that are shown."""
CALLS = 500
"""The maximum number of calls that are kept, far more than wait for a decision at the same time."""
BRIEF = 120
"""The maximum number of characters of a call's arguments."""

CHANGING = ("edit", "replace")
"""Decisions after which the call runs with other arguments, or another tool, than a person was asked about."""


def in_words(decision: ApprovalDecision) -> str:
    """Return a decision in words: what was decided, and by whom."""
    return decided(decision.decision, decision.by, decision.earlier, decision.remember, decision.reviewer)


def decided(decision: str, by: str, earlier: int | None, remember: str | None, reviewer: str | None = None) -> str:
    """Return a decision in words, from its fields: what was decided, and by whom."""
    if by == "remembered":
        of_study = f"a rule of the study{f', by {repair_text(reviewer)}' if reviewer else ''}"
        by = f"the decision of event {earlier}" if earlier is not None else of_study
    else:
        by = deciders_name(by, reviewer)
    kept = {"tool": ", for every call of the tool", "arguments": ", for every call with these arguments"}
    done = "withdrawn" if decision == "ask" else DONE[decision]
    return f"{done} by {by}{kept.get(remember or '', '')}"


def deciders_name(by: str, reviewer: str | None) -> str:
    """Return the decider in words."""
    if by == "human" and reviewer:
        return repair_text(reviewer)
    who = BY.get(by, repair_text(by))
    return f"{who} for {repair_text(reviewer)}" if reviewer else who


def clock(seconds: float) -> str:
    """Return the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


class DecisionLog:
    """The newest decisions of a run. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen = 0
        self._calls: dict[tuple[str, str], tuple[str, Any]] = {}
        self._recent: deque[tuple[ApprovalDecision, str, str, str, str]] = deque(maxlen=RECENT)

    def data(self, run: Recording) -> dict[str, Any]:
        """Return the newest decisions, newest first, how many can be undone, and the remembered rules."""
        # Read this before taking this log's lock: it takes the run's lock.
        can_undo = {item.event for item in run.decided}
        with self._lock:
            self._follow(run.events)
            recent = self._rows(can_undo)
        return {"recent": recent, "open": len(can_undo), "rules": [rule_row(rule) for rule in run.remembered]}

    @property
    def position(self) -> int:
        """The number of events that the log has read."""
        return self._seen

    def read(self, store: Any, id: str) -> None:
        """Read the events that a store has of a run, and the log has not: the run is driven by another process."""
        with self._lock:
            for event in (events := store.events(id, self._seen)):
                self._take(event)
            self._seen += len(events)

    def recent(self) -> list[dict[str, Any]]:
        """Return the newest decisions that were read, newest first. None of them can be undone."""
        with self._lock:
            return self._rows(())

    def _rows(self, can_undo: Container[int | None]) -> list[dict[str, Any]]:
        return [_row(*kept, kept[0].seq in can_undo) for kept in reversed(self._recent)]

    def _follow(self, events: Sequence[Event]) -> None:
        total = len(events)
        if total < self._seen:  # a replay has gone back
            self._seen = 0
            self._calls.clear()
            self._recent.clear()
        for event in events[self._seen : total]:
            self._take(event)
        self._seen = total

    def _take(self, event: Event) -> None:
        if isinstance(event, ModelEnd):
            for call in event.message.tool_calls:
                self._know(event.path, call.id, call.name, call.arguments)
        elif isinstance(event, CallProposed):
            self._know(event.path, event.call.id, event.call.name, event.call.arguments)
        elif isinstance(event, ApprovalRequest):
            self._know(event.path, event.call_id, event.name, event.arguments)
        elif isinstance(event, ApprovalDecision):
            name, arguments = self._calls.get((event.path, event.call_id), ("", {}))
            ran = before = ""
            if event.decision in CHANGING:
                before = f"{repair_text(name)}({in_short(arguments, {})})"
                name, arguments = event.name or name, event.arguments
                ran = in_short(arguments, {})
            self._recent.append((event, repair_text(name), brief(arguments, BRIEF), ran, before))

    def _know(self, path: str, id: str, name: str, arguments: Mapping[str, Any]) -> None:
        self._calls.pop((path, id), None)
        self._calls[path, id] = (name, arguments)
        if len(self._calls) > CALLS:
            del self._calls[next(iter(self._calls))]


def _row(
    decision: ApprovalDecision, name: str, arguments: str, ran: str, before: str, can_undo: bool
) -> dict[str, Any]:
    """Return a decision as the page gets it. ran, before: the new arguments and the earlier call, of a changed one."""
    return {
        "event": decision.seq,
        "id": repair_text(decision.call_id),
        "asked": decision.question,
        "time": decision.time,
        "path": repair_text(decision.path),
        "name": name or f"decision of event {decision.earlier}",
        "arguments": arguments if name else "",
        "words": in_words(decision),
        "decision": decision.decision,
        "reason": one_line(repair_text(decision.reason), BRIEF),
        "ran": ran,
        "before": before,
        "undo": can_undo,
    }


def rule_row(rule: Any, *, of_study: bool = False) -> dict[str, Any]:
    """Return a remembered decision as the page gets it.

    rule: a decision that a run remembers; with `of_study`, a rule of a study, which has a number in place of an event.
    """
    which = "every call" if rule.arguments is None else "every call with exactly these arguments"
    where = " in all runs" if of_study else ""
    return {
        "event": rule.number if of_study else rule.event,
        "time": rule.time,
        "decision": rule.decision,
        "name": repair_text(rule.tool),
        "arguments": brief(rule.arguments, BRIEF) if rule.arguments is not None else None,
        "words": f"{rule.decision} {which}{where}, as {deciders_name(rule.by, rule.reviewer)} decided",
    }
