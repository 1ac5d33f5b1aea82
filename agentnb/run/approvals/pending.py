"""What waits for a person, and what a person can still take back, read from the loops that are being run.

To look is not to decide: that is `agentnb.run.approvals.decisions`. A recording has such loops as well
(`agentnb.run.past.asked`), and nothing in it is decided any more.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentnb.core.events import ApprovalRequest, Decision
from agentnb.core.state import CallState, State
from agentnb.core.tools import Tool
from agentnb.run.frame import Frame
from agentnb.run.portable import portable_text, words_of

VIEW = 4_000
"""Characters of a tool's own view of a call that are shown."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for a person.

    A question is identified by `run_id`, `path` (the loop whose call it is) and `event`, the number of its
    `approval_request`: another one each time the call is asked about again; None where nobody has been asked yet.
    `id` is the call's, and may be that of other calls too. `schema` is the JSON schema of the tool's arguments,
    `reason` why it is asked, `deadline` when silence becomes no (epoch seconds), `unknown` whether the call was started
    by a process that is gone: then `approve` runs it again, `answer` says what it gave, `reject` fails it. `attempt`
    counts how often the call was started. `view` is the text that the tool makes of the arguments for a person
    (`@tool(view=...)`). `shown` is the digest of all this as it is shown to a person.
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


@dataclass(frozen=True, slots=True)
class Decided:
    """A call that is decided and has not begun: `undo` takes the decision back.

    `id`, `path` and `run_id` as in `Pending`. `name` and `arguments` are what would run. `event` is the number of the
    decision, made at `time` (epoch seconds) by whom `by` names (as in `ApprovalDecision`). `question` is the number of
    the question that it answers; None where nobody was asked.
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


class Stood(NamedTuple):
    """A loop in a recording, in place of the frame of one that is being run."""

    path: str
    state: State
    tools: Mapping[str, Tool]


def question_digest(name: str, question: ApprovalRequest, tool: Tool | None, view: str) -> str:
    """Return the SHA-256 of a question as it is shown to a person, from its canonical JSON."""
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
    """The question about a call that was started by somebody who is gone without leaving a result."""
    reason = (
        f"{call.name} was started and nobody knows how it ended. Approve to run it again, "
        "answer with its result if it happened, or reject to fail it."
    )
    return ApprovalRequest(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason, unknown=True)


def question_after_undo(call: CallState) -> ApprovalRequest:
    """The question about a call whose decision was taken back by somebody who is gone and could not ask again."""
    reason = f"What was decided about {call.name} was taken back."
    return ApprovalRequest(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason)


def question_to_ask(call: CallState) -> ApprovalRequest:
    """The question about a call that waits for a person, and that nobody has been asked about yet."""
    return question_about_lost(call) if call.status == "running" else question_after_undo(call)


def asked(call: CallState) -> ApprovalRequest | None:
    """The question about a call that waits for an answer; None where none does."""
    return call.approval if call.status == "asking" else None


def shown_now(frame: Frame | Stood, call: CallState) -> str:
    """The digest of the question about a call that waits for an answer, as it is shown now."""
    question = call.approval
    assert question is not None
    return question_digest(call.name, question, frame.tools.get(call.name), _view_shown(frame, call, question))


def question_of(call: CallState) -> int | None:
    """The number of the question that a decision about the call answers now; None where none waits for an answer."""
    question = asked(call)
    return question.seq if question is not None else None


def waiting(
    frames: Iterable[Frame | Stood], unasked: Sequence[tuple[Frame, CallState]] = (), *, run_id: str = ""
) -> list[Pending]:
    """The calls of these loops that wait for a person, in the order they were made; with those still `unasked`."""
    return [
        _pending(frame, call, question, run_id)
        for frame, call in _open(frames)
        if (question := asked(call) or (question_to_ask(call) if (frame, call) in unasked else None)) is not None
    ]


def ready(frames: Iterable[Frame | Stood], *, run_id: str = "") -> list[Decided]:
    """The calls of these loops that are decided and have not begun, in the order they were made."""
    return [_decided(frame.path, call, run_id) for frame, call in _open(frames) if call.status == "ready"]


def schemas(frames: Iterable[Frame | Stood], path: str | None) -> dict[str, dict[str, Any]]:
    """The JSON schema of each tool's arguments, of all these loops or of the one at `path`."""
    there = [frame for frame in frames if path in (None, frame.path)]
    return {name: tool.parameters for frame in there for name, tool in frame.tools.items()}


def _open(frames: Iterable[Frame | Stood]) -> list[tuple[Frame | Stood, CallState]]:
    return [(frame, call) for frame in frames for call in frame.state.open.values()]


def _decided(path: str, call: CallState, run_id: str) -> Decided:
    """What was decided about a call of the loop at `path`."""
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


def _pending(frame: Frame | Stood, call: CallState, question: ApprovalRequest, run_id: str) -> Pending:
    tool = frame.tools.get(call.name)
    view = _view_shown(frame, call, question)
    return Pending(
        id=call.id,
        name=call.name,
        arguments=copy.deepcopy(question.arguments),  # to be changed and given to `edit`, and not to change the history
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
    )


def _view_shown(frame: Frame | Stood, call: CallState, question: ApprovalRequest) -> str:
    """What a tool makes of a question's arguments. It is made once: what was shown is what a decision names."""
    tool = frame.tools.get(call.name)
    if isinstance(frame, Stood) or getattr(tool, "view", None) is None:
        return view_of(tool, question.arguments)
    number, view = frame.views.get(call.id, (None, ""))
    if number != question.seq:
        view = view_of(tool, question.arguments)
        frame.views[call.id] = question.seq, view
    return view


def view_of(tool: Tool | None, arguments: Mapping[str, Any]) -> str:
    """Return what the tool makes of the arguments for a person; where that fails, how."""
    make = getattr(tool, "view", None)
    if make is None:
        return ""
    try:
        view = portable_text(make(copy.deepcopy(dict(arguments))))
        return view if len(view) <= VIEW else f"{view[:VIEW]}… ({len(view):,} characters in all)"
    except Exception as error:  # the question is asked all the same, with the arguments
        return f"The view of {getattr(tool, 'name', 'this tool')} failed: {words_of(error)}"
