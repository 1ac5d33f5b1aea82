"""The facts about a call, from the moment it is proposed to its one result (`agentnb.core.events` has all facts)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from agentnb.core.event import ErrorInfo, Event
from agentnb.core.messages import ToolCall
from agentnb.core.unicode import mended

Decision = Literal["approve", "reject", "edit", "replace", "answer", "ask"]
Remember = Literal["tool", "arguments"]
Outcome = Literal[
    "returned",  # the tool gave a result
    "raised",  # the tool failed
    "timed_out",  # the tool took longer than it may
    "invalid",  # the call did not fit: no such tool, or arguments it does not take
    "blocked",  # a hook of the loop said no
    "rejected",  # a person or a policy said no
    "answered",  # a person gave the result instead
    "skipped",  # the loop passed over it
    "aborted",  # the run was cancelled, or ended, before it had a result
]

_NOT_FUNCTIONS = frozenset(
    {"human", "code", "rule", "remembered", "deadline", "headless", "fork", "policy", "loop", ""}
)
"""The words of `ApprovalDecision.by` that are no function's name."""


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name that a function decides under, as `ApprovalDecision.by`."""
    while isinstance(function, partial):
        function = function.func
    name = mended(str(getattr(function, "__name__", None) or type(function).__name__))
    return f"function {name}".strip() if name in _NOT_FUNCTIONS else name


class CallProposed(Event, frozen=True, tag="call_proposed"):
    """A call is open: proposed by the model before its answer was complete, or by the loop itself (`hidden`)."""

    call: ToolCall
    hidden: bool = False


class ApprovalRequest(Event, frozen=True, tag="approval_request"):
    """A person is asked about a call, with exactly these arguments; silence until `deadline` (epoch seconds) is no.

    A question is identified by its run, its path and the number of this event. `unknown`: the call was started by a
    process that is gone, and nobody knows how it ended. `earlier` is the number of the question that this one repeats,
    because its answer was taken back or because what was shown has changed. `seen` is how many events there were when
    the policy was asked that has left the call to a person; None where none was asked.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    reason: str = ""
    deadline: float | None = None
    unknown: bool = False
    earlier: int | None = None
    seen: int | None = None


class ApprovalDecision(Event, frozen=True, tag="approval_decision"):
    """What was decided about a call, and by whom.

    `by` is `human` (a person at the panel or the console), `code` (a call of `run.approve` and the like), `rule` (the
    rules, True or False of `approve=`), `remembered`, `deadline`, `headless`, `fork` (a counterfactual decision), or
    the `__name__` of the function that decided: a policy, `confirm=` or a hook. Older recordings have `policy` for
    rules and functions, `loop` for `confirm=`, and `human` for code.

    `question` is the number of the question that this answers; None where nobody was asked. `reviewer` is the person's
    name. `shown` is the digest of the question as it was shown (`question_digest`), `seconds` the time from when it was
    shown to a person until the person decided, by a monotonic clock.

    `arguments` are those it runs with instead, and for an approval those that were looked at, where they could change.
    `remember`: an approval or rejection that holds from here on for every call of the tool `name`, or for those with
    exactly these `arguments`; a call that it decides is decided by `remembered`. `ask` takes an earlier decision back:
    the call, which has not begun, is asked about again, and what was remembered is forgotten; with no `call_id` that is
    all. `earlier` is the number of the decision that is remembered, or taken back. `recheck`: the call is checked again
    as if it had been made like that. `unchecked`: but not against the tool's schema, as a hook has chosen these
    arguments for it. `tool_fingerprint`: that of the description and the schema of the tool that this lets run, or that
    is remembered; None in older recordings.
    """

    call_id: str
    decision: Decision
    by: str = "human"
    name: str | None = None
    arguments: dict[str, Any] | None = None
    reason: str = ""
    result: Any = None
    remember: Remember | None = None
    earlier: int | None = None
    question: int | None = None
    reviewer: str | None = None
    shown: str | None = None
    seconds: float | None = None
    recheck: bool = False
    unchecked: bool = False
    tool_fingerprint: str | None = None

    @property
    def is_checked_again(self) -> bool:
        """Whether the call that it leads to is checked again; in older recordings that follows from `by`."""
        return self.recheck or self.by == "loop"


class CallStart(Event, frozen=True, tag="call_start"):
    """The tool is about to run. Journaled before it does, so that a crash leaves a trace of it.

    `own`: the loop itself acts (retrieval, a sub-agent), and none of its tools. `detached`: nothing but the end of the
    run waits for it.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    attempt: int = 1
    own: bool = False
    detached: bool = False


class CallEnd(Event, frozen=True, tag="call_end"):
    """A call has its one result: a JSON value, and how it came about."""

    call_id: str
    name: str = ""
    result: Any = None
    is_error: bool = False
    outcome: Outcome = "returned"
    details: Any = None
    terminate: bool = False
    error: ErrorInfo | None = None
