"""What waits for a person, and what a person can still take back, read from the loops that are being run.

To look is not to decide: that is `agentnb.run.approvals.decisions`. A recording has such loops as well
(`agentnb.run.past.asked`), and nothing in it is decided any more.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentnb.core.events import ApprovalRequest, Decision
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.run.frame import Frame


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for a person.

    `id` is the call's, with the path of its loop before it (`"critic/c1"`) where another loop has a waiting call of the
    same id. `schema` is the JSON schema of the tool's arguments, `reason` why it is asked, `deadline` when silence
    becomes no (epoch seconds), `unknown` whether the call was started by a process that is gone: then `approve` runs it
    again, `answer` says what it gave, `reject` fails it. `path`: the loop whose call it is. `event` is the number
    of the question, another one each time the call is asked about again; None where nobody has been asked yet.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    schema: dict[str, Any] = field(repr=False)
    reason: str
    deadline: float | None
    unknown: bool
    path: str = ""
    event: int | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A call that is decided and has not begun: `undo` takes the decision back.

    `id` as in `Pending`. `name` and `arguments` are what would run. `event` is the number of the decision, made at
    `time` (epoch seconds) `by` a `human`, the `policy`, or as `remembered`.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    decision: Decision
    by: str
    time: float
    event: int
    path: str = ""


class Stood(NamedTuple):
    """A loop in a recording, in place of the frame of one that is being run."""

    path: str
    state: State
    tools: Mapping[str, Tool]


def question_about_lost(call: CallState) -> ApprovalRequest:
    """The question about a call that was started by somebody who is gone without leaving a result."""
    reason = (
        f"{call.name} was started and nobody knows how it ended. Approve to run it again, "
        "answer with its result if it happened, or reject to fail it."
    )
    return ApprovalRequest.make(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason, unknown=True)


def waiting(frames: Iterable[Frame | Stood], lost: Sequence[tuple[Frame, CallState]] = ()) -> list[Pending]:
    """The calls of these loops that wait for a person, in the order they were made; those that are lost wait too."""
    asking = _found_by([one for one in _open(frames) if one[1].status == "asking" or one in lost])
    return [_pending(frame, call, id, lost=(frame, call) in lost) for frame, call, id in asking]


def ready(frames: Iterable[Frame | Stood]) -> list[Decided]:
    """The calls of these loops that are decided and have not begun, in the order they were made."""
    found = _found_by([one for one in _open(frames) if one[1].status == "ready"])
    return [_decided(frame.path, call, id) for frame, call, id in found]


def schemas(frames: Iterable[Frame | Stood], path: str | None) -> dict[str, dict[str, Any]]:
    """The JSON schema of each tool's arguments, of all these loops or of the one at `path`."""
    there = [frame for frame in frames if path in (None, frame.path)]
    return {name: tool.parameters for frame in there for name, tool in frame.tools.items()}


def _open(frames: Iterable[Frame | Stood]) -> list[tuple[Frame | Stood, CallState]]:
    return [(frame, call) for frame in frames for call in frame.state.open.values()]


def _found_by(calls: Sequence[tuple[Frame | Stood, CallState]]) -> list[tuple[Frame | Stood, CallState, str]]:
    """These calls, each with the id it is found by: with its path where another of them has the same."""
    ids = [call.id for _, call in calls]
    return [
        (frame, call, f"{frame.path}/{call.id}" if frame.path and ids.count(call.id) > 1 else call.id)
        for frame, call in calls
    ]


def _decided(path: str, call: CallState, id: str) -> Decided:
    """What was decided about a call of the loop at `path`."""
    decision = call.decision
    assert decision is not None
    return Decided(
        id=id,
        name=call.name,
        arguments=copy.deepcopy(call.arguments),
        decision=decision.decision,
        by=decision.by,
        time=decision.time,
        event=decision.seq,
        path=path,
    )


def _pending(frame: Frame | Stood, call: CallState, id: str, *, lost: bool) -> Pending:
    tool = frame.tools.get(call.name)
    asked = question_about_lost(call) if lost else call.approval
    return Pending(
        id=id,
        name=call.name,
        arguments=copy.deepcopy(
            asked.arguments if asked is not None else call.arguments
        ),  # to be changed and given to `edit`, and not to change the history
        schema=tool.parameters if tool is not None else {},
        reason=asked.reason if asked is not None else "",
        deadline=asked.deadline if asked is not None else None,
        unknown=asked.unknown if asked is not None else False,
        path=frame.path,
        event=call.approval.seq if call.approval is not None else None,
    )
