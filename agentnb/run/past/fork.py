"""Forks: a new run that shares another's past up to one of its events, with one thing changed there.

The past is taken over as facts, so it costs nothing: no model is asked and no tool is run for it. What comes after the
fork runs anew. Calls that were running at that moment, and have a result in the recording, keep that result: the change
came after they had been started, and running them again would do twice what they do.

The other run stays as it is. `RunStart.forked_from` says where a branch comes from, so branches show as a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache, partial
from typing import Any, get_args

from msgspec import structs

from agentnb.core.ending import is_suspended
from agentnb.core.errors import ImpossibleEvent, UnknownCall, UsageError
from agentnb.core.events import (
    ApprovalDecision,
    CallEnd,
    CallProposed,
    CallStart,
    Decision,
    Event,
    MessageAdded,
    ModelEnd,
    RunStart,
    checked,
)
from agentnb.core.evolve import fold
from agentnb.core.loop import Design
from agentnb.core.messages import Message, to_message, to_said
from agentnb.core.state import CallState
from agentnb.run.approvals.outcomes import carry_out
from agentnb.run.approvals.pending import question_of
from agentnb.run.frame import Frame
from agentnb.run.journal import Journal
from agentnb.run.past.divergence import frame_at
from agentnb.run.past.taken_over import check_kind, common_with_a_fork, past_of_a_fork
from agentnb.run.portable import portable, portable_input, portable_text

ABOUT_A_CALL = ("call_proposed", "approval_request", "approval_decision", "call_start", "call_end")
DECISIONS = tuple(decision for decision in get_args(Decision) if decision != "ask")

BY_FORK = {"by": "fork", "reviewer": None, "shown": None, "seconds": None}
"""Who made a decision that a fork puts in the place of another: no person was shown it, and none took time for it."""


class Unchanged(Enum):
    """What is not given where None is a value like others: the result of a call may be None."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class Change:
    """What is different in a fork; at most one of these is given. An event is replaced as a whole."""

    event: Event | None = None
    message: Any = None
    arguments: Mapping[str, Any] | None = None
    result: Any = UNCHANGED
    decision: Any = None

    def __post_init__(self) -> None:
        if len(self.given) > 1:
            raise UsageError(f"A fork changes one thing, not {' and '.join(self.given)}; fork the fork for the next.")

    @property
    def given(self) -> list[str]:
        """The names of what is given."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not field.default]


@dataclass(frozen=True)
class Branch:
    """The past of a fork, and what is to be said where it begins; `suspended`: that it goes on from a suspension.

    shared: the number of its first events that are those of the recording, except for event 0.
    """

    events: list[Event]
    shared: int
    suspended: bool = False
    steer: Message | None = None
    decided: tuple[str, str, ApprovalDecision] | None = None
    """The loop's path, the call in it, and what is decided about that call."""


def branch(events: Sequence[Event], seq: int, change: Change, loop: Design) -> Branch:
    """The past of a run that departs at the event `seq` of this recording. Raises UsageError where it cannot."""
    if events and isinstance(events[0], RunStart):
        check_kind(events[0], loop)
    if type(seq) is not int or not 0 <= seq < len(events):
        raise UsageError(f"A fork begins at one of the events 0 to {len(events) - 1}, not at {seq!r}.")
    event = events[seq]
    if (instead := _instead(events, event, change, loop)) is not None:
        past = past_of_a_fork(events, seq, loop, instead=instead)
        made = Branch(past, common_with_a_fork(events, seq, changed=True))
    elif change.message is not None:
        said = to_said(portable_input(change.message))
        made = Branch(past_of_a_fork(events, seq, loop), common_with_a_fork(events, seq), steer=said)
    elif change.given:
        made = _with_decision(events, event, change, loop)
    else:
        made = Branch(past_of_a_fork(events, seq, loop), common_with_a_fork(events, seq))
    try:
        fold(made.events)
    except ImpossibleEvent as error:
        raise UsageError(f"The run cannot go on like that from its event {seq}: {error}") from error
    return _checked(replace(made, suspended=is_suspended(event)), loop)


def settle(made: Branch, journal: Journal) -> None:
    """Make what was changed at the fork a fact of the new run."""
    if made.decided is None:
        return
    path, id, decision = made.decided
    frame = journal.frame_at(path)
    assert frame is not None  # `_checked` has seen it
    call = frame.state.open[id]
    decision = structs.replace(decision, question=question_of(call))
    recorded = journal.append(decision, frame)
    if decision.decision in ("reject", "answer"):
        carry_out(journal, frame, call, recorded)


def _checked(made: Branch, loop: Design) -> Branch:
    """The branch, if what is decided in it can be, and as it is kept. Raises UnknownCall or InvalidArguments."""
    if made.decided is None:
        return made
    path, id, decision = made.decided
    frame = frame_at(made.events, path, loop)
    call = frame.state.open.get(id) if frame is not None else None
    if frame is None or call is None:
        raise UnknownCall(f"The call {id!r} is not open where the fork begins.")
    if decision.decision in ("edit", "replace") or (decision.decision == "approve" and frame.loop_for(call) is None):
        _check_fit(frame, call, decision)
    if decision.decision == "answer" and frame.is_own(call):
        result = frame.design.result_given(call, decision.result)
        return replace(made, decided=(path, id, structs.replace(decision, result=result)))
    return made


def _check_fit(frame: Frame, call: CallState, decision: ApprovalDecision) -> None:
    """Raise UnknownCall or InvalidArguments where the call cannot run as is decided."""
    if frame.is_own(call):
        if decision.decision == "approve":
            return
        raise UnknownCall(f"The call {call.id!r} ({call.name}) is the loop's own: give it a result, or reject it.")
    name = decision.name or call.name
    if name not in frame.tools:
        there = f"there are {', '.join(sorted(frame.tools))}" if frame.tools else f"{frame.design.name} has none"
        raise UnknownCall(f"There is no tool {name!r}; {there}.")
    if decision.decision != "approve":  # what that runs with, which may not be there yet, is seen when it starts
        frame.design.bind(frame.tools[name], call, dict(decision.arguments or {}), frame.state)


# -- what is changed ---------------------------------------------------------------------------------------------------


def _instead(events: Sequence[Event], event: Event, change: Change, loop: Design) -> Event | None:
    """What is to stand in the place of this event; None where what is different comes behind it, if anything does."""
    before = cache(partial(frame_at, events[: event.seq], event.path, loop))
    made: Event | None = None
    if change.event is not None:
        made = _stamped(change.event, event)
    elif change.message is not None:
        made = _with_message(event, change.message, before)
    elif change.result is not UNCHANGED and isinstance(event, CallEnd):
        made = _ended_with(event, change.result, before())
    if isinstance(made, ModelEnd):
        _check_calls_stay(made, before())
    return made


def _stamped(event: Event, place: Event) -> Event:
    """The event in the place of another. Raises UsageError for one of another type: the rest would not follow."""
    if event.type != place.type:
        raise UsageError(
            f"Event {place.seq} is of type {place.type}: none of type {event.type} can stand in its place."
        )
    stamp: dict[str, Any] = {name: getattr(place, name) for name in ("seq", "time", "path", "phase")}
    if isinstance(event, ApprovalDecision) and isinstance(place, ApprovalDecision):
        stamp |= {**BY_FORK, "question": place.question}
    return structs.replace(checked(event), **stamp)


def _with_message(event: Event, message: Any, before: Callable[[], Frame | None]) -> Event | None:
    """The event with another message where one was said by it; None for every other event."""
    if isinstance(event, RunStart):
        return structs.replace(event, input=portable_input(message))
    if isinstance(event, ModelEnd):
        answer = _answer_instead(event, message)
        if (frame := before()) is not None:
            answer = frame.design.read_again(answer)
        return structs.replace(event, message=answer)
    if isinstance(event, MessageAdded):
        said = portable_input(message)
        is_text = isinstance(message, str)
        other = event.message.model_copy(update={"content": said}) if is_text else to_said(said)
        return structs.replace(event, message=other)
    return None


def _answer_instead(event: ModelEnd, message: Any) -> Message:
    """The answer that takes another's place; text alone changes what it says, and not which calls it makes."""
    if isinstance(message, str):
        return event.message.model_copy(update={"content": portable(message)})
    answer = to_message(portable_input(message))
    if answer.role != "assistant":
        raise UsageError(f"Event {event.seq} is a model's answer: its role is assistant, not {answer.role!r}.")
    return answer


def _ended_with(end: CallEnd, result: Any, frame: Frame | None) -> CallEnd:
    """The end of a call that gave another result, which its loop reads where the call is its own."""
    result = portable(result)
    call = frame.state.open.get(end.call_id) if frame is not None else None
    if frame is not None and call is not None and frame.is_own(call):
        result = frame.design.result_given(call, result)
    ended = {"result": result, "is_error": False, "outcome": "answered", "error": None, "details": None}
    return structs.replace(end, **ended)


def _check_calls_stay(answer: ModelEnd, frame: Frame | None) -> None:
    """Raise UsageError where calls that the answer began with, in the loop at `frame`, are none of it any more."""
    made = {call.id for call in frame.state.calls.values() if not (call.hidden or call.let_go)} if frame else set()
    if begun := sorted(made - {call.id for call in answer.message.tool_calls}):
        raise UsageError(
            f"Event {answer.seq} is an answer that had made calls before it was complete ({', '.join(begun)}), and they"
            " stay: fork before them, with a loop whose model answers otherwise."
        )


def _with_decision(events: Sequence[Event], event: Event, change: Change, loop: Design) -> Branch:
    """Another decision about the call that the event is about, behind the event that the decision would follow."""
    path, id = _call_of(event)
    if event.type == "call_end":
        start = next((e for e in reversed(events[: event.seq]) if _is_start(e, path, id)), None)
        where = f"fork at {start.seq}, where it was started" if start is not None else "it was never started"
        raise UsageError(f"Event {event.seq} ends the call {id!r}: its result can be changed; for the rest, {where}.")
    followed = event.type not in ("approval_decision", "call_start")
    past = past_of_a_fork(events, event.seq, loop, without=not followed)
    # Nobody has waited since the recording was made: it is decided when it was then.
    decision = structs.replace(_decision(id, change), time=max(event.time, past[-1].time))
    shared = common_with_a_fork(events, event.seq, changed=not followed)
    return Branch(past, shared, decided=(path, id, decision))


def _is_start(event: Event, path: str, id: str) -> bool:
    return isinstance(event, CallStart) and event.path == path and event.call_id == id


def _call_of(event: Event) -> tuple[str, str]:
    if isinstance(event, ModelEnd) and len(event.message.tool_calls) == 1:
        return event.path, event.message.tool_calls[0].id
    if isinstance(event, CallProposed):
        return event.path, event.call.id
    if event.type in ABOUT_A_CALL:
        return event.path, str(getattr(event, "call_id", ""))
    calls = f", and makes {len(event.message.tool_calls)} calls" if isinstance(event, ModelEnd) else ""
    raise UsageError(
        f"Event {event.seq} is a {event.type}{calls}: there is no one call to decide about. Fork where one call is"
        " asked about or decided (approval_request, approval_decision), starts (call_start) or ends (call_end)."
    )


def _decision(id: str, change: Change) -> ApprovalDecision:
    if change.arguments is not None:
        if not isinstance(change.arguments, Mapping):
            raise UsageError(f"arguments= takes what the call is to run with, a dict, not {change.arguments!r:.80}.")
        return ApprovalDecision(call_id=id, decision="edit", by="fork", arguments=portable(dict(change.arguments)))
    if change.result is not UNCHANGED:
        return ApprovalDecision(call_id=id, decision="answer", by="fork", result=portable(change.result))
    given = change.decision
    if isinstance(given, bool):  # as a policy may say it
        given = "approve" if given else "reject"
    if isinstance(given, str):
        given = {"decision": given}
    if isinstance(given, ApprovalDecision):
        given = {name: getattr(given, name) for name in ("decision", "reason", "arguments", "name", "result")}
    if not isinstance(given, Mapping) or given.get("decision") not in DECISIONS:
        raise UsageError(f"decision= is one of {', '.join(DECISIONS)}, or a dict with decision and what belongs to it.")
    known = {"decision", "reason", "arguments", "name", "result"}
    if unknown := sorted(set(given) - known - {"call_id", "by"}):
        raise UsageError(f"A decision has {', '.join(sorted(known))}, and no {', '.join(unknown)}.")
    if given["decision"] in ("edit", "replace") and not isinstance(given.get("arguments"), Mapping):
        raise UsageError(f"A decision to {given['decision']} has arguments, a dict, not {given.get('arguments')!r}.")
    made = {name: portable(given[name]) for name in known & set(given)}
    return ApprovalDecision(call_id=id, by="fork", **{**made, "reason": portable_text(given.get("reason"))})
