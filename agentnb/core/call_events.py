"""The facts about a call, from the moment it is proposed to its one result (`agentnb.core.events` has all facts)."""

from __future__ import annotations

from typing import Any, Literal

from agentnb.core.event import ErrorInfo, Event
from agentnb.core.messages import ToolCall

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


class CallProposed(Event):
    """A call is open: proposed by the model before its answer was complete, or by the loop itself (`hidden`)."""

    type: Literal["call_proposed"] = "call_proposed"
    call: ToolCall
    hidden: bool = False


class ApprovalRequest(Event):
    """A person is asked about a call, with exactly these arguments; silence until `deadline` (epoch seconds) is no.

    `seen` is how many events there were when the policy was asked that has left the call to a person; None where none
    was asked.
    """

    type: Literal["approval_request"] = "approval_request"
    call_id: str
    name: str
    arguments: dict[str, Any]
    reason: str = ""
    deadline: float | None = None
    unknown: bool = False
    seen: int | None = None


class ApprovalDecision(Event):
    """What was decided about a call, and by whom (`human`, `policy`, `deadline`, `loop`, `remembered`).

    `arguments` are those it runs with instead, and for an approval those that were looked at, where they could change.
    `remember`: an approval or rejection that holds from here on for every call of the tool `name`, or for those with
    exactly these `arguments`; a call that it decides is decided by `remembered`. `ask` takes an earlier decision back:
    the call, which has not begun, is asked about again, and what was remembered is forgotten; with no `call_id` that is
    all. `earlier` is the number of the decision that is remembered, or taken back.
    """

    type: Literal["approval_decision"] = "approval_decision"
    call_id: str
    decision: Decision
    by: str = "human"
    name: str | None = None
    arguments: dict[str, Any] | None = None
    reason: str = ""
    result: Any = None
    remember: Remember | None = None
    earlier: int | None = None


class CallStart(Event):
    """The tool is about to run. Journaled before it does, so that a crash leaves a trace of it.

    `own`: the loop itself acts (retrieval, a sub-agent), and none of its tools. `detached`: nothing but the end of the
    run waits for it.
    """

    type: Literal["call_start"] = "call_start"
    call_id: str
    name: str
    arguments: dict[str, Any]
    attempt: int = 1
    own: bool = False
    detached: bool = False


class CallEnd(Event):
    """A call has its one result: a JSON value, and how it came about."""

    type: Literal["call_end"] = "call_end"
    call_id: str
    name: str = ""
    result: Any = None
    is_error: bool = False
    outcome: Outcome = "returned"
    details: Any = None
    terminate: bool = False
    error: ErrorInfo | None = None
