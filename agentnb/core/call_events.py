"""The events about a call, from its proposal to its one result (`agentnb.core.events` has all events)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from agentnb.core.event import ErrorInfo, Event
from agentnb.core.json import repair_text
from agentnb.core.messages import ToolCall

Decision = Literal["approve", "reject", "edit", "replace", "answer", "ask"]
Remember = Literal["tool", "arguments"]
Outcome = Literal[
    "returned",  # the tool returned a result
    "raised",  # the tool failed
    "timed_out",  # the tool exceeded its time limit
    "invalid",  # the call was not valid: no such tool, or arguments that do not fit its schema
    "blocked",  # a hook of the loop refused it
    "rejected",  # a person or a policy refused it
    "answered",  # a person gave the result instead
    "skipped",  # the loop skipped it
    "aborted",  # the run was cancelled, or ended, before it had a result
]

_NOT_FUNCTIONS = frozenset(
    {"human", "code", "rule", "remembered", "deadline", "headless", "fork", "policy", "loop", ""}
)
"""The values of `ApprovalDecision.by` that are not the name of a function."""


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name under which a function decides, for `ApprovalDecision.by`."""
    while isinstance(function, partial):
        function = function.func
    name = repair_text(str(getattr(function, "__name__", None) or type(function).__name__))
    return f"function {name}".strip() if name in _NOT_FUNCTIONS else name


class CallProposed(Event, frozen=True, tag="call_proposed"):
    """A new open call: proposed by the model before its answer was complete, or by the loop itself (`hidden`)."""

    call: ToolCall
    hidden: bool = False


class ApprovalRequest(Event, frozen=True, tag="approval_request"):
    """A question to a person about a call with exactly these arguments.

    No answer before `deadline` (epoch seconds) means no. A question is identified by its run, its path and the number
    of this event. `unknown`: the call was started by a process that has exited, and its result is unknown. `earlier` is
    the number of the question that this one repeats, because its answer was withdrawn or the displayed data has
    changed. `seen`: if a policy left the call to a person, the number of events when the policy was asked; None if no
    policy was asked. `note`: what the policy says for the record only.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    reason: str = ""
    deadline: float | None = None
    unknown: bool = False
    earlier: int | None = None
    seen: int | None = None
    note: str = ""


class ApprovalDecision(Event, frozen=True, tag="approval_decision"):
    """A decision about a call, and its author.

    `by` is `human` (a person at the panel or the console), `code` (a call of `run.approve` and the like), `rule` (the
    rules, True or False of `approve=`), `remembered`, `deadline`, `headless`, `fork` (a counterfactual decision), or
    the `__name__` of the function that decided: a policy, `confirm=` or a hook. Older recordings have `policy` for
    rules and functions, `loop` for `confirm=`, and `human` for code.

    `question` is the number of the question that this answers; None if no person was asked. `reviewer` is the person's
    name. `shown` is the digest of the question as it was displayed (`question_digest`), `seconds` the time from its
    display to a person until the decision, by a monotonic clock.

    `arguments` are the new arguments of the call; in an approval, the arguments that were reviewed, if they could
    change. `remember`: this approval or rejection also applies to later calls of the tool `name`: to all of them
    (`tool`), or to those with exactly these `arguments`. The decision about such a later call has `by` `remembered`.

    `ask` withdraws an earlier decision. If its call has not started, a person is asked about the call again. If the
    decision was remembered, it is forgotten. With an empty `call_id`, a remembered decision is forgotten and no call
    changes. `earlier` is the number of the decision that is withdrawn, or of the remembered decision that is applied.

    `recheck`: the call is checked again, as if it had been made with the new name and arguments. `unchecked`: the new
    arguments are not checked against the tool's schema, because a hook has chosen them. `tool_fingerprint`: the
    fingerprint of the description and the schema of the tool that this decision allows to run, or of the remembered
    tool; None in older recordings. `reason` is also what the agent is told of a rejection; `note` is what a policy says
    for the record only.
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
    note: str = ""

    @property
    def is_checked_again(self) -> bool:
        """True if the resulting call is checked again; in older recordings this follows from `by`."""
        return self.recheck or self.by == "loop"


class CallStart(Event, frozen=True, tag="call_start"):
    """The start of a call. It is recorded before the tool runs, so that a crash leaves a trace of it.

    `own`: the loop itself acts (retrieval, a sub-agent), not one of its tools. `detached`: only the end of the run
    waits for the call.
    """

    call_id: str
    name: str
    arguments: dict[str, Any]
    attempt: int = 1
    own: bool = False
    detached: bool = False


class CallEnd(Event, frozen=True, tag="call_end"):
    """The one result of a call: a JSON value, and how it was obtained (`outcome`)."""

    call_id: str
    name: str = ""
    result: Any = None
    is_error: bool = False
    outcome: Outcome = "returned"
    details: Any = None
    terminate: bool = False
    error: ErrorInfo | None = None
