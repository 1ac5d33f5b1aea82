"""Pending calls and decided calls: a read-only view of the loops of a run.

Decisions are made in `agentnb.run.approvals.decisions`. The loops of a recording can be viewed as well
(`agentnb.run.past.recorded_loop`), but their calls cannot be decided.
"""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentnb.core.errors import UsageError
from agentnb.core.events import ApprovalRequest, Decision
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.run.event_data import error_text, text_or_empty
from agentnb.run.frame import Frame

VIEW = 4_000
"""The maximum number of characters of a tool's own view of a call that is shown."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for a person.

    The question is identified by `run_id`, `path` (of the loop that made the call) and `event`, the number of its
    `approval_request`. Each new question about the same call has another number; None means that the question is not
    recorded yet. `id` is the id of the call, which other calls may have, too.

    `schema` is the JSON schema of the tool's arguments, `reason` the reason for the question, and `deadline` the time
    at which the call is rejected (epoch seconds; None for no deadline). `unknown` is True if the call was started by a
    process that has exited: then `approve` runs it again, `answer` records its result, and `reject` fails it. `attempt`
    is the number of times that the call was started. `view` is the tool's own text about the arguments for a person
    (`@tool(view=...)`). `shown` is the digest of the question as it is shown to a person. `needs` and `description` are
    those of the tool.
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
    run_id: str = ""
    attempt: int = field(default=0, repr=False)
    shown: str = field(default="", repr=False)
    view: str = field(default="", repr=False)
    needs: tuple[str, ...] = field(default=(), repr=False)
    description: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """A call that is decided and has not started. `undo` withdraws the decision.

    `id`, `path` and `run_id` are as in `Pending`. `name` and `arguments` are those that the call will run with. `event`
    is the number of the decision, `time` its time (epoch seconds), `by` its author (as in `ApprovalDecision`).
    `question` is the number of the question that it answers; None if no question was asked.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    decision: Decision
    by: str
    time: float
    event: int
    path: str = ""
    run_id: str = ""
    question: int | None = None


class RecordedFrame(NamedTuple):
    """A loop in a recording. It takes the place of a `Frame`, which only a loop that is being run has."""

    path: str
    state: State
    tools: Mapping[str, Tool]


def to_decide_at_once(items: Sequence[Pending], *, unknown: bool) -> list[Pending]:
    """Return those of several questions that may be decided together: each once, and none that may have run already.

    unknown: include calls of unknown outcome. Warns of calls that are left out. Raises UsageError if all are.
    """
    items = list({(item.run_id, item.path, item.id, item.event): item for item in items}.values())
    known = [item for item in items if unknown or not item.unknown]
    if left_out := len(items) - len(known):
        text = (
            f"{left_out} of {len(items)} calls left out: the process that ran them has exited, and nobody knows whether"
            " they have run. Decide each by itself, or pass unknown=True to include them."
        )
        if not known:
            raise UsageError(f"Nothing was decided. {text}")
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return known


def question_digest(name: str, question: ApprovalRequest, tool: Tool | None, view: str) -> str:
    """Return the SHA-256 digest of the canonical JSON of a question as it is shown to a person."""
    shown = {
        "name": name,
        "arguments": question.arguments,
        "reason": question.reason,
        "schema": tool.parameters if tool is not None else {},
        "unknown": question.unknown,
        "view": view,
    }
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def question_about_lost(call: CallState) -> ApprovalRequest:
    """Return the question about a call that was started by a process that has exited without recording a result."""
    reason = (
        f"{call.name} was started and nobody knows how it ended. Approve to run it again, "
        "answer with its result if it happened, or reject to fail it."
    )
    return ApprovalRequest(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason, unknown=True)


def question_after_undo(call: CallState) -> ApprovalRequest:
    """Return the question about a call whose decision was withdrawn by a process that exited before it asked again."""
    reason = f"What was decided about {call.name} was taken back."
    return ApprovalRequest(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason)


def question_to_ask(call: CallState) -> ApprovalRequest:
    """Return the question to record about a call that waits for a person and has no question yet."""
    return question_about_lost(call) if call.status == "running" else question_after_undo(call)


def open_question(call: CallState) -> ApprovalRequest | None:
    """Return the question about a call, if it waits for a decision; otherwise None."""
    return call.approval if call.status == "asking" else None


def shown_now(frame: Frame | RecordedFrame, call: CallState) -> str:
    """Return the digest of the question about a waiting call, as it is shown now."""
    question = call.approval
    assert question is not None
    return question_digest(call.name, question, frame.tools.get(call.name), _view_shown(frame, call, question))


def question_of(call: CallState) -> int | None:
    """Return the event number of the question that a decision about the call would answer now; None if none waits."""
    question = open_question(call)
    return question.seq if question is not None else None


def waiting(
    frames: Iterable[Frame | RecordedFrame], unasked: Sequence[tuple[Frame, CallState]] = (), *, run_id: str = ""
) -> list[Pending]:
    """Return the calls that wait for a person, loop by loop, in the order in which each loop made them.

    unasked: calls that wait, but have no recorded question yet; they are included. run_id: the id of the run, for the
    items.
    """
    return [
        _pending(frame, call, question, run_id)
        for frame, call in _open(frames)
        if (question := open_question(call) or (question_to_ask(call) if (frame, call) in unasked else None))
        is not None
    ]


def ready(frames: Iterable[Frame | RecordedFrame], *, run_id: str = "") -> list[Decided]:
    """Return the calls that are decided and have not started, loop by loop, in the order in which each made them."""
    return [_decided(frame.path, call, run_id) for frame, call in _open(frames) if call.status == "ready"]


def schemas(frames: Iterable[Frame | RecordedFrame], path: str | None) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of the arguments of each tool by name, of all these loops or only the one at `path`."""
    selected = [frame for frame in frames if path in (None, frame.path)]
    return {name: tool.parameters for frame in selected for name, tool in frame.tools.items()}


def _open(frames: Iterable[Frame | RecordedFrame]) -> list[tuple[Frame | RecordedFrame, CallState]]:
    return [(frame, call) for frame in frames for call in frame.state.open.values()]


def _decided(path: str, call: CallState, run_id: str) -> Decided:
    """Return the item of `ready` for a decided call of the loop at `path`."""
    decision = call.decision
    assert decision is not None
    return Decided(
        id=call.id,
        name=call.name,
        arguments=copy.deepcopy(call.arguments),
        decision=decision.decision,
        by=decision.by,
        time=decision.time,
        event=decision.seq,
        path=path,
        run_id=run_id,
        question=decision.question,
    )


def _pending(frame: Frame | RecordedFrame, call: CallState, question: ApprovalRequest, run_id: str) -> Pending:
    tool = frame.tools.get(call.name)
    view = _view_shown(frame, call, question)
    return Pending(
        id=call.id,
        name=call.name,
        arguments=copy.deepcopy(question.arguments),  # a caller may change them for `edit`; the event stays as it is
        schema=tool.parameters if tool is not None else {},
        reason=question.reason,
        deadline=question.deadline,
        unknown=question.unknown,
        path=frame.path,
        event=question.seq if question.seq >= 0 else None,
        run_id=run_id,
        attempt=call.attempt,
        shown=question_digest(call.name, question, tool, view),
        view=view,
        needs=tuple(tool.needs) if tool is not None else (),
        description=tool.description if tool is not None else "",
    )


def _view_shown(frame: Frame | RecordedFrame, call: CallState, question: ApprovalRequest) -> str:
    """Return the tool's view of the arguments of a question.

    In a running loop it is computed once for each question, so that a decision records the digest of what was shown.
    """
    tool = frame.tools.get(call.name)
    if isinstance(frame, RecordedFrame) or getattr(tool, "view", None) is None:
        return tool_view(tool, question.arguments)
    number, view = frame.views.get(call.id, (None, ""))
    if number != question.seq:
        view = tool_view(tool, question.arguments)
        frame.views[call.id] = question.seq, view
    return view


def tool_view(tool: Tool | None, arguments: Mapping[str, Any]) -> str:
    """Return the tool's own text about the arguments, for a person; empty if the tool has no `view`.

    The text is cut off after `VIEW` characters. If the view function raises, the text is the error.
    """
    make = getattr(tool, "view", None)
    if make is None:
        return ""
    try:
        view = text_or_empty(make(copy.deepcopy(dict(arguments))))
        return view if len(view) <= VIEW else f"{view[:VIEW]}… ({len(view):,} characters in all)"
    except Exception as error:  # the question is asked nevertheless, with the arguments
        return f"The view of {getattr(tool, 'name', 'this tool')} failed: {error_text(error)}"
