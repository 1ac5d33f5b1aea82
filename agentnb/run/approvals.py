"""What people decide about calls: the decisions, each one a fact that names who made it.

A decision binds what was shown (DESIGN, promise 5): an approved call runs with exactly the arguments of its request;
edited arguments are checked against the tool's schema before anything changes. The first decision stands.
"""

from __future__ import annotations

import copy
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from agentnb.core.errors import AlreadyDecided, UnknownCall
from agentnb.core.events import ApprovalDecision
from agentnb.core.messages import to_plain
from agentnb.core.state import CallState
from agentnb.run.endings import carry_out, expire
from agentnb.run.endings import reject as refuse
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.portable import portable


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for a person.

    `id` is the call's, with the path of its loop before it (`"critic/c1"`) where another loop has a waiting call of the
    same id. `schema` is the JSON schema of the tool's arguments, `reason` why it is asked, `deadline` when silence
    becomes no (epoch seconds), `unknown` whether the call was started by a process that is gone: then `approve` runs it
    again, `answer` says what it gave, `reject` fails it. `path`: the loop whose call it is.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    schema: dict[str, Any]
    reason: str
    deadline: float | None
    unknown: bool
    path: str = ""


class Decisions:
    """The part of a run that people decide with; every method is safe from every thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def run_id(self) -> str:
        """The id of the run that is decided about."""
        return self._journal.run_id

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While a thread holds this, no other makes anything a fact: what it looks at is what it decides about."""
        return self._journal.lock

    def tool_schemas(self, path: str | None = None) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments; with `path`, of the tools of the loop that runs there."""
        frames = [frame for frame in self._journal.frames if path in (None, frame.path)]
        return {name: tool.parameters for frame in frames for name, tool in frame.tools.items()}

    def waiting_calls(self) -> list[Pending]:
        """The calls that wait for a person, in the order they were made."""
        with self._journal.lock:
            waiting = [
                (frame, call)
                for frame in self._journal.frames
                for call in frame.state.open.values()
                if call.status == "asking"
            ]
            ids = [call.id for _, call in waiting]
            return [_pending(frame, call, ids.count(call.id) > 1) for frame, call in waiting]

    def approve(self, id: str) -> None:
        """Let the call run as shown. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            frame, call = self._waiting(id)
            self._journal.append(ApprovalDecision.make(call_id=call.id, decision="approve"), frame)

    def reject(self, id: str, reason: str = "") -> None:
        """Do not let the call run; the model is told why. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            refuse(self._journal, *self._waiting(id), reason, by="human")

    def edit(self, id: str, arguments: dict[str, Any]) -> None:
        """Let the call run with other arguments. Raises InvalidArguments, UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            self._replace(*self._waiting(id), "edit", None, arguments)

    def replace(self, id: str, name: str, arguments: dict[str, Any]) -> None:
        """Let another tool run instead. Raises InvalidArguments, UnknownCall (also for the tool), or AlreadyDecided."""
        with self._journal.lock:
            self._replace(*self._waiting(id), "replace", name, arguments)

    def answer(self, id: str, result: Any) -> None:
        """Give the call's result instead of running it. Raises UnknownCall, or AlreadyDecided."""
        with self._journal.lock:
            frame, call = self._waiting(id)
            decision = ApprovalDecision.make(call_id=call.id, decision="answer", result=portable(result))
            self._journal.append(decision, frame)
            # A watcher that is told of the decision may have ended the run, and the call with it.
            carry_out(self._journal, frame, call, decision)

    def _replace(
        self, frame: Frame, call: CallState, decision: str, name: str | None, arguments: dict[str, Any]
    ) -> None:
        tool = frame.tools.get(name if name is not None else call.name)
        if tool is None:
            raise UnknownCall(f"There is no tool {name or call.name!r}; there are {', '.join(sorted(frame.tools))}.")
        frame.design.bind(tool, call, to_plain(arguments), frame.state)  # raises where they do not fit
        made = ApprovalDecision.make(call_id=call.id, decision=decision, name=name, arguments=portable(arguments))
        self._journal.append(made, frame)

    def _waiting(self, id: str) -> tuple[Frame, CallState]:
        """The call, if it waits. A deadline that has passed has decided it, even if nobody has looked yet."""
        found = self._find(id)
        if found is None:
            waiting = ", ".join(p.id for p in self.waiting_calls()) or "none"
            raise UnknownCall(f"No call {id!r} is waiting for a decision; waiting: {waiting}.")
        frame, call = found
        if call.status == "asking":
            deadline = call.approval.deadline if call.approval is not None else None
            if deadline is None or time.time() < deadline:
                return frame, call
            expire(self._journal)
        decided = call.decision
        how = f"{decided.decision} by {decided.by}" if decided is not None else call.status
        raise AlreadyDecided(f"The call {id!r} is decided already: {how}.")

    def _find(self, id: str) -> tuple[Frame, CallState] | None:
        """The call of that id, or of that path and id: one that waits before one that does not."""
        found = [
            (frame, call)
            for frame in self._journal.frames
            for call in (*frame.state.open.values(), *frame.state.calls.values())
            if id in (call.id, f"{frame.path}/{call.id}")
        ]
        return min(found, key=lambda one: one[1].status != "asking", default=None)


def _pending(frame: Frame, call: CallState, ambiguous: bool) -> Pending:
    tool = frame.tools.get(call.name)
    asked = call.approval
    return Pending(
        id=f"{frame.path}/{call.id}" if ambiguous and frame.path else call.id,
        name=call.name,
        arguments=copy.deepcopy(
            asked.arguments if asked is not None else call.arguments
        ),  # to be changed and given to `edit`, and not to change the history
        schema=tool.parameters if tool is not None else {},
        reason=asked.reason if asked is not None else "",
        deadline=asked.deadline if asked is not None else None,
        unknown=asked.unknown if asked is not None else False,
        path=frame.path,
    )
