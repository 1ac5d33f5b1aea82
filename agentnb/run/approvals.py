"""What people decide about calls: the decisions, each one a fact that names who made it.

A decision binds what was shown (DESIGN, promise 5): an approved call runs with exactly the arguments of its request;
edited arguments are checked against the tool's schema before anything changes. The first decision stands.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import AlreadyDecided, UnknownCall
from agentnb.core.events import ApprovalDecision, CallEnd
from agentnb.core.state import CallState
from agentnb.core.tools import Tool
from agentnb.run.calling import Calling
from agentnb.run.endings import expire
from agentnb.run.endings import reject as refuse
from agentnb.run.journal import Journal
from agentnb.run.portable import portable


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for a person.

    `schema` is the JSON schema of the tool's arguments, `reason` why it is asked, `deadline` when silence becomes no
    (epoch seconds), `unknown` whether the call was started by a process that is gone: then `approve` runs it again,
    `answer` says what it gave, `reject` fails it.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    schema: dict[str, Any]
    reason: str
    deadline: float | None
    unknown: bool


class Decisions:
    """The part of a run that people decide with; every method is safe from every thread."""

    def __init__(self, journal: Journal, calling: Calling, tools: dict[str, Tool]) -> None:
        self._journal = journal
        self._calling = calling
        self._tools = tools

    def tool_schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments."""
        return {name: tool.parameters for name, tool in self._tools.items()}

    def waiting_calls(self) -> list[Pending]:
        """The calls that wait for a person, in the order they were made."""
        with self._journal.lock:
            return [self._pending(call) for call in self._journal.state.open.values() if call.status == "asking"]

    def approve(self, id: str) -> None:
        """Let the call run as shown. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            self._decide(self._waiting(id), ApprovalDecision.make(call_id=id, decision="approve"))

    def reject(self, id: str, reason: str = "") -> None:
        """Do not let the call run; the model is told why. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            refuse(self._journal, self._waiting(id), reason, by="human")

    def edit(self, id: str, arguments: dict[str, Any]) -> None:
        """Let the call run with other arguments. Raises InvalidArguments, UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            self._replace(self._waiting(id), "edit", None, arguments)

    def replace(self, id: str, name: str, arguments: dict[str, Any]) -> None:
        """Let another tool run instead. Raises InvalidArguments, UnknownCall (also for the tool), or AlreadyDecided."""
        with self._journal.lock:
            self._replace(self._waiting(id), "replace", name, arguments)

    def answer(self, id: str, result: Any) -> None:
        """Give the call's result instead of running it. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            call = self._waiting(id)
            value = portable(result)
            self._decide(call, ApprovalDecision.make(call_id=id, decision="answer", result=value))
            # A watcher that is told of the decision may have ended the run, and the call with it.
            end = CallEnd.make(call_id=id, name=call.name, result=value, outcome="answered")
            self._journal.append(end, about=call)

    def _replace(self, call: CallState, decision: str, name: str | None, arguments: dict[str, Any]) -> None:
        tool = self._tools.get(name if name is not None else call.name)
        if tool is None:
            raise UnknownCall(f"There is no tool {name or call.name!r}; there are {', '.join(sorted(self._tools))}.")
        self._calling.bind(call.id, tool, arguments)
        made = ApprovalDecision.make(call_id=call.id, decision=decision, name=name, arguments=portable(arguments))
        self._decide(call, made)

    def _decide(self, call: CallState, decision: ApprovalDecision) -> None:
        self._journal.append(decision)

    def _waiting(self, id: str) -> CallState:
        """The call, if it waits. A deadline that has passed has decided it, even if nobody has looked yet."""
        state = self._journal.state
        call = state.open.get(id) or state.calls.get(id)
        if call is None:
            waiting = ", ".join(p.id for p in self.waiting_calls()) or "none"
            raise UnknownCall(f"No call {id!r} is waiting for a decision; waiting: {waiting}.")
        if call.status == "asking":
            deadline = call.approval.deadline if call.approval is not None else None
            if deadline is None or time.time() < deadline:
                return call
            expire(self._journal)
        decided = call.decision
        how = f"{decided.decision} by {decided.by}" if decided is not None else call.status
        raise AlreadyDecided(f"The call {id!r} is decided already: {how}.")

    def _pending(self, call: CallState) -> Pending:
        tool = self._tools.get(call.name)
        asked = call.approval
        return Pending(
            id=call.id,
            name=call.name,
            arguments=copy.deepcopy(call.arguments),  # to be changed and given to `edit`, and not to change the history
            schema=tool.parameters if tool is not None else {},
            reason=asked.reason if asked is not None else "",
            deadline=asked.deadline if asked is not None else None,
            unknown=asked.unknown if asked is not None else False,
        )
