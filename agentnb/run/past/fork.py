"""Forks: new runs that share the past of another run up to one of its events, with at most one change at that event.

The fork inherits the events of the past, so this part needs no model requests and no tool calls. After the fork, the
new run advances on its own. A call that was running at the fork and has a result in the recording keeps this result:
the call started before the change, and a second execution would repeat its side effects.

The original run is not changed. `RunStart.forked_from` names the origin of a fork, so that forks can be shown as a
tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from msgspec import structs

from agentnb.core.errors import AgentnbError, ImpossibleEvent, UnknownCall, UsageError
from agentnb.core.events import (
    ApprovalDecision,
    CallEnd,
    CallProposed,
    CallStart,
    Decision,
    Event,
    MessageAdded,
    ModelEnd,
    RunResumed,
    RunStart,
    checked,
)
from agentnb.core.evolve import evolve
from agentnb.core.json import to_json_data
from agentnb.core.loop import Design, configured
from agentnb.core.messages import Message, to_message, to_sent_message
from agentnb.core.place import number_of_new_fork
from agentnb.core.prefix import Continued
from agentnb.core.resume_point import is_suspended, results_in, resume_point
from agentnb.core.state import CallState, State
from agentnb.core.tools import fingerprint_of
from agentnb.llms.adapt import with_options
from agentnb.run.approvals.outcomes import carry_out
from agentnb.run.approvals.pending import question_of
from agentnb.run.approvals.recorded_policy import read_policy, recorded_policy
from agentnb.run.checkpoints import Checkpoints, copied_state
from agentnb.run.event_data import input_as_json, text_or_empty
from agentnb.run.frame import Frame
from agentnb.run.gate.gate import check_limits
from agentnb.run.journal import Journal, new_run_id
from agentnb.run.past.readable import ReadableRun
from agentnb.run.past.recorded_loop import RecordedLoop, check_kind, frame_at
from agentnb.run.validation import check_on_limit, check_start_options, checked_options
from agentnb.tools import as_tools

ABOUT_A_CALL = ("call_proposed", "approval_request", "approval_decision", "call_start", "call_end")
DECISIONS = tuple(decision for decision in get_args(Decision) if decision != "ask")

OPTIONS = frozenset({"name", "store", "approve", "breakpoints", "limits", "on_limit", "options"})
"""The options of start() that fork() accepts."""

BY_FORK = {"by": "fork", "reviewer": None, "shown": None, "seconds": None}
"""The origin of a decision that a fork replaces: no person saw the question, and no time was measured."""


class Unchanged(Enum):
    """The default of an argument for which None is a valid value: the result of a call may be None."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class Change:
    """The change that a fork makes. At most one field is given; otherwise UsageError is raised.

    `event` replaces the event at the fork as a whole. `message` replaces the message of that event, or is a steering
    message if the event has none. `arguments`, `result` and `decision` concern the call of that event.
    """

    event: Event | None = None
    message: Any = None
    arguments: Mapping[str, Any] | None = None
    result: Any = UNCHANGED
    decision: Any = None

    def __post_init__(self) -> None:
        if len(self.given) > 1:
            raise UsageError(
                f"A fork changes one thing, not {' and '.join(self.given)}. Fork the fork for the next change."
            )

    @property
    def given(self) -> list[str]:
        """The names of the fields that are given."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not field.default]


class Past(NamedTuple):
    """The past of a fork: its events, and the state after them.

    `shared`: the number of events at the beginning that equal those of the recording, apart from event 0 and the mark
    `inherited`.
    """

    events: Continued[Event]
    state: State
    shared: int


class ForkStart(NamedTuple):
    """The past of a fork, and the input to apply at its start.

    `suspended`: the fork resumes from a suspension. `steer`: a steering message to queue, or None. `decided`: a
    decision to record, or None.
    """

    past: Past
    suspended: bool = False
    steer: Message | None = None
    decided: tuple[str, str, ApprovalDecision] | None = None
    """The path of a loop, the id of a call in it, and the decision about that call."""


def prepared_fork(
    origin: ReadableRun, at: int | None, change: Change, loop: Design | None, options: Mapping[str, Any]
) -> tuple[ForkStart, dict[str, Any]]:
    """Return the branch of a recording at the event `at`, and the arguments of the `Run` that continues it.

    at: the number of an event; None for the last event before the current position. change: the change at that event.
    loop: the loop of the new run; None for the loop of the recording. options: options of start(), see `OPTIONS`. The
    policy and the limits of the other run apply unless others are given, and its options in addition to those given.

    Raises UsageError if an option is unknown, if there is no loop or no event to fork from, or if the change is not
    possible (`branch`, which raises other errors too).
    """
    if unknown := sorted(options.keys() - OPTIONS):
        raise UsageError(
            f"fork() does not accept {unknown[0]!r}. Options of start() that it accepts: {', '.join(sorted(OPTIONS))}."
        )
    loop = loop if loop is not None else origin.loop
    if isinstance(loop, RecordedLoop):
        raise UsageError(
            "The loop of this recording is not known. Pass the loop that continues it as loop=; the tools(...) of the"
            " recording are tools for it."
        )
    events = origin.recording
    if not events:
        raise UsageError("The run has no events yet, so it cannot be forked. Start it first.")
    if at is None and not origin.events:
        raise UsageError(
            "The replay is positioned before its first event. Pass at=<event number> to choose where to fork."
        )
    seq = len(origin.events) - 1 if at is None else at

    # The first event of the fork records its policy and limits: those of the other run, unless others are given.
    given, recorded = {**origin._fork_options, **options}, {}
    given["approve"] = read_policy(given.get("approve"))
    if "approve" in options or given["approve"] is not None:
        recorded["approve"] = recorded_policy(given["approve"])
    check_start_options(name=None, store=None, breakpoints=(), limits=given.get("limits"))
    if "limits" in options or given.get("limits") is not None:
        given["limits"] = recorded["limits"] = check_limits(given["limits"] or {})

    if (on_limit := given.pop("on_limit", None)) is not None:
        check_on_limit(on_limit)
        recorded["on_limit"] = on_limit

    # The options of its requests are those of the other run at this event, and those that are given.
    if (changed := checked_options(given.pop("options", None))) or "options" in options:
        with_options(loop.llm, changed)  # raises the error of an option that the model does not take
        recorded["model_options"] = {**_model_options_at(events, seq), **changed}

    number = number_of_new_fork(events[0].run_id, seq, change)
    made = branch(events, seq, change, loop, origin._checkpoints, recorded, number)
    arguments = {
        **given,
        "loop": loop,
        "recording": made.past.events,
        "state": made.past.state,
        "shared": (events[0].run_id, made.past.shared),
        "suspended": made.suspended,
        "judges_open_questions": "approve" in options,  # the policy of the other run has judged them already
    }
    return made, arguments


def _model_options_at(events: Sequence[Event], seq: int) -> dict[str, Any]:
    """Return the options of the run's model requests at an event."""
    found: dict[str, Any] = {}
    for event in events[: seq + 1]:
        if isinstance(event, (RunStart, RunResumed)) and not event.path and event.model_options is not None:
            found = event.model_options
    return found


def why_not(origin: ReadableRun, at: int, change: Change) -> str:
    """Return why a recording cannot be forked with this change at the event `at`; empty if it can. Nothing is made."""
    try:
        if isinstance(origin.loop, RecordedLoop):
            return "The recording does not have the loop that made it. In code, run.fork(..., loop=...) names a loop."
        branch(origin.recording, at, change, origin.loop, origin._checkpoints, {})
    except AgentnbError as error:
        return str(error)
    return ""


def branch(
    events: Sequence[Event],
    seq: int,
    change: Change,
    loop: Design,
    checkpoints: Checkpoints,
    options: Mapping[str, Any],
    number: int = 0,
) -> ForkStart:
    """Return the past of a run that forks at the event `seq` of a recording, and the input to apply at its start.

    loop: the loop that the fork runs. checkpoints: of the recording. options: the policy and the limits of the fork
    from its start, if they change. number: of equal forks that were made before.

    Raises UsageError if there is no such event or the change is not possible there, RecordingMismatch if the recording
    is of another kind of loop, UnknownCall or InvalidArguments if the decision does not fit the call.
    """
    if isinstance(events[0], RunStart):
        check_kind(events[0], loop)
    if type(seq) is not int or not 0 <= seq < len(events):
        raise UsageError(f"A fork begins at one of the events 0 to {len(events) - 1}, not at {seq!r}.")
    event = events[seq]
    past = partial(_past_of_fork, events, seq, loop, checkpoints, options=options, number=number)

    # Replace the event; or keep it and add a steering message; or decide about its call; or change nothing.
    if (instead := _replacement(events, event, change, loop, checkpoints)) is not None:
        made = ForkStart(past(instead=instead))
    elif change.message is not None:
        said = to_sent_message(input_as_json(change.message))
        made = ForkStart(past(), steer=said)
    elif change.given:
        made = _with_decision(events, event, change, past)
    else:
        made = ForkStart(past())
    return _checked(made._replace(suspended=is_suspended(event)), loop)


def apply_decision(made: ForkStart, journal: Journal) -> None:
    """Record the decision of a fork in the new run and apply it to its call. Without a decision, do nothing."""
    if made.decided is None:
        return
    path, id, decision = made.decided
    frame = journal.frame_at(path)
    assert frame is not None  # `_checked` has found it
    call = frame.state.open[id]
    decision = structs.replace(decision, question=question_of(call))
    recorded = journal.append(decision, frame)
    if decision.decision in ("reject", "answer"):
        carry_out(journal, frame, call, recorded)


def _checked(made: ForkStart, loop: Design) -> ForkStart:
    """Return the branch with its decision in the recorded form. Raises UnknownCall or InvalidArguments.

    The errors are raised if the call is not open at the fork, or cannot run as decided.
    """
    if made.decided is None:
        return made
    path, id, decision = made.decided
    frame = frame_at(loop, copied_state(made.past.state), path)
    call = frame.state.open.get(id) if frame is not None else None
    if frame is None or call is None:
        raise UnknownCall(f"The call {id!r} is not open at the event where the fork begins.")
    if decision.decision in ("edit", "replace") or (decision.decision == "approve" and frame.loop_for(call) is None):
        _check_fit(frame, call, decision)
    if decision.decision == "answer" and frame.is_own(call):
        result = frame.calls.result_given(call, decision.result)
        return made._replace(decided=(path, id, structs.replace(decision, result=result)))
    return made


def _check_fit(frame: Frame, call: CallState, decision: ApprovalDecision) -> None:
    """Raise UnknownCall or InvalidArguments if the call cannot run as decided."""
    if frame.is_own(call):
        if decision.decision == "approve":
            return
        raise UnknownCall(
            f"The loop performs the call {call.id!r} ({call.name}) itself. Pass a result, or reject the call."
        )
    name = decision.name or call.name
    if name not in frame.tools:
        tools = ", ".join(sorted(frame.tools))
        known = f"the tools are {tools}" if tools else f"{frame.design.name} has no tools"
        raise UnknownCall(f"There is no tool {name!r}; {known}.")
    if decision.decision != "approve":  # the arguments of an approved call are checked at its start
        frame.calls.bind(frame.tools[name], call, dict(decision.arguments or {}), frame.state)


# -- the past ----------------------------------------------------------------------------------------------------------


def _past_of_fork(
    events: Sequence[Event],
    seq: int,
    loop: Design,
    checkpoints: Checkpoints,
    *,
    instead: Event | None = None,
    without: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
    number: int = 0,
) -> Past:
    """Return the events up to and including `seq`, as the past of a new run of `loop`.

    checkpoints: of the recording. instead: an event that replaces the event `seq`; it is not marked as inherited, all
    other events are. without: leave the event `seq` out. options: the policy and the limits of the new run from its
    start, if they change. number: of equal forks that were made before. The recorded ends of calls that are running at
    `seq` are added.

    Raises UsageError if no event remains, if the replaced event belongs to the end of the recorded run, which a fork
    drops, or if it cannot follow the events before it.
    """
    run_id = new_run_id()
    if isinstance(instead, ModelEnd) and instead.usage == getattr(events[seq], "usage", None):
        instead = structs.replace(instead, usage={})  # no model request was made for this answer
    end = min(resume_point(events), len(events) - events[-1].terminal)
    if instead is not None and end <= seq:
        raise UsageError(f"A fork drops the end of the run, from event {end} on. Choose an event before it.")

    # Take the events that are kept as they are, and the state after them.
    length = min(end, seq if without or instead is not None else seq + 1)
    if not length and instead is None:
        raise UsageError("A fork keeps at least the event run_start.")
    state = checkpoints.state_at(events, length, inherited_by=run_id)

    # Apply the replaced event, the results of tools in the end of the run, and those of the calls that run at `seq`.
    added: list[Event] = []
    unchanged = dict.fromkeys(options)

    def inherited(event: Event) -> Event:
        changes = unchanged if isinstance(event, RunResumed) else {}
        return structs.replace(event, run_id=run_id, inherited=event is not instead, **changes)

    def add(event: Event) -> None:
        added.append(structs.replace(inherited(event), seq=length + len(added)))
        evolve(state, added[-1])

    try:
        if instead is not None:
            add(instead)
        for event in results_in(events[end : seq + (not without)]):
            add(event)
        for event in _ends_of_running_calls(state, events, seq + 1):
            add(event)
    except ImpossibleEvent as error:
        raise UsageError(f"The run cannot continue from event {seq} with this change: {error}") from error

    # The first event describes the fork and its origin, and has its options. No later event changes these options.
    start, added = (added[0], added[1:]) if not length else (events[0], added)
    ancestors = _ancestors(events[0], seq if instead is not None else length + len(added))
    fingerprints = {name: fingerprint_of(tool) for name, tool in as_tools(loop.tools).items()}
    begun = {"forked_from": f"{events[0].run_id}@{seq}", "ancestors": ancestors, **configured(loop, fingerprints)}
    begun["forks"] = [*getattr(events[0], "forks", ()), (seq, number)]
    first = structs.replace(start, run_id=run_id, seq=0, inherited=start is events[0], **begun, **options)
    for name, value in options.items():
        setattr(state, name, value)
    past = Continued(events, max(length, 1), lambda at, event: inherited(event) if at else first, added)
    resumed = (event.seq for event in (events[1:length] if options else ()) if isinstance(event, RunResumed))
    return Past(past, state, next(resumed, length))


def _ancestors(start: Event, inherited: int) -> list[tuple[str, int]]:
    """Return the runs from which a fork inherits its first events, oldest first, each with the number of events.

    start: the first event of the recording, whose run is the last one. inherited: the number of inherited events.
    """
    assert isinstance(start, RunStart)
    before = [(run, min(end, inherited)) for run, end in ancestors_of(start)]
    return [*before, (start.run_id, inherited)]


def ancestors_of(start: RunStart) -> list[tuple[str, int]]:
    """Return `RunStart.ancestors`. For an older recording without them, derive one from `RunStart.forked_from`."""
    run, _, at = start.forked_from.rpartition("@")
    return start.ancestors or ([(run, int(at) + 1)] if run and at.isdecimal() else [])


def _ends_of_running_calls(state: State, events: Sequence[Event], begin: int) -> list[Event]:
    """Return the recorded ends of the tool calls that are running in this state, from the event number `begin` on.

    Calls that a nested loop performs, and a loop's own calls, are not included: they continue, or start again, in the
    new run.
    """
    running = {
        (path, call.id)
        for path, loop in state.running()
        for call in loop.open.values()
        if call.status == "running" and not any(c.call == call.id for c in loop.children.values())
    }
    starts = set(running)
    for event in reversed(events[:begin]) if running else ():
        if isinstance(event, CallStart) and (event.path, event.call_id) in starts:
            starts.discard((event.path, event.call_id))
            if event.own:
                running.discard((event.path, event.call_id))
        if not starts:
            break
    # Take the first end of each call. A call that was aborted has no result to keep.
    ends: list[Event] = []
    for event in islice(events, begin, None) if running else ():
        if isinstance(event, RunStart):
            running.discard((event.path.rpartition("/")[0], event.call))
        elif isinstance(event, CallEnd) and (event.path, event.call_id) in running and event.outcome != "aborted":
            running.discard((event.path, event.call_id))
            ends.append(event)
        if not running:
            break
    return ends


# -- the change --------------------------------------------------------------------------------------------------------


def _replacement(
    events: Sequence[Event], event: Event, change: Change, loop: Design, checkpoints: Checkpoints
) -> Event | None:
    """Return the event that replaces this event; None if nothing changes, or if the change comes after this event."""

    @cache
    def before() -> Frame | None:
        return frame_at(loop, checkpoints.state_at(events, event.seq), event.path)

    made: Event | None = None
    if change.event is not None:
        made = _stamped(change.event, event)
    elif change.message is not None:
        made = _with_message(event, change.message, before)
    elif change.result is not UNCHANGED and isinstance(event, CallEnd):
        made = _with_result(event, change.result, before())
    if isinstance(made, ModelEnd):
        _check_calls_stay(made, before())
    return made


def _stamped(event: Event, place: Event) -> Event:
    """Return the event with the number, time, path and phase of the event that it replaces.

    Raises UsageError if the types differ: the later events would not be valid after an event of another type.
    """
    if event.type != place.type:
        raise UsageError(f"Event {place.seq} is of type {place.type}: an event of type {event.type} cannot replace it.")
    stamp: dict[str, Any] = {name: getattr(place, name) for name in ("seq", "time", "path", "phase")}
    if isinstance(event, ApprovalDecision) and isinstance(place, ApprovalDecision):
        stamp |= {**BY_FORK, "question": place.question}
    return structs.replace(checked(event), **stamp)


def _with_message(event: Event, message: Any, before: Callable[[], Frame | None]) -> Event | None:
    """Return the event with another message, or None if the event has no message that can be replaced.

    before: returns the frame of the event's loop before the event, or None.
    """
    if isinstance(event, RunStart):
        return structs.replace(event, input=input_as_json(message))
    if isinstance(event, ModelEnd):
        answer = _changed_answer(event, message)
        if (frame := before()) is not None:
            answer = frame.requests.read_again(answer)
        return structs.replace(event, message=answer)
    if isinstance(event, MessageAdded):
        said = input_as_json(message)
        is_text = isinstance(message, str)
        other = event.message.model_copy(update={"content": said}) if is_text else to_sent_message(said)
        return structs.replace(event, message=other)
    return None


def _changed_answer(event: ModelEnd, message: Any) -> Message:
    """Return the message that replaces a model's answer. Text replaces the content only, and keeps the tool calls.

    Raises UsageError if the message does not have the role assistant.
    """
    if isinstance(message, str):
        return event.message.model_copy(update={"content": to_json_data(message)})
    answer = to_message(input_as_json(message))
    if answer.role != "assistant":
        raise UsageError(f"Event {event.seq} is a model's answer: the role must be 'assistant', not {answer.role!r}.")
    return answer


def _with_result(end: CallEnd, result: Any, frame: Frame | None) -> CallEnd:
    """Return the end of a call with another result. The loop converts the result of its own call."""
    result = to_json_data(result)
    call = frame.state.open.get(end.call_id) if frame is not None else None
    if frame is not None and call is not None and frame.is_own(call):
        result = frame.calls.result_given(call, result)
    ended = {"result": result, "is_error": False, "outcome": "answered", "error": None, "details": None}
    return structs.replace(end, **ended)


def _check_calls_stay(answer: ModelEnd, frame: Frame | None) -> None:
    """Raise UsageError if the answer lacks calls that were recorded before the original answer was complete.

    frame: the loop before the answer, or None.
    """
    made = {call.id for call in frame.state.calls.values() if not (call.hidden or call.let_go)} if frame else set()
    if begun := sorted(made - {call.id for call in answer.message.tool_calls}):
        raise UsageError(
            f"Calls of the answer at event {answer.seq} were recorded before it was complete ({', '.join(begun)}), so"
            " the changed answer must have them too. Or fork before them, with a loop whose model answers differently."
        )


def _with_decision(events: Sequence[Event], event: Event, change: Change, past: Callable[..., Past]) -> ForkStart:
    """Return a branch that ends with another decision about the event's call. past: returns the past of the fork.

    The new decision takes the place of an approval_decision or call_start event, and follows any other event.
    Raises UsageError if the event does not concern exactly one call, or if it ends the call.
    """
    path, id = _call_of(event)
    if event.type == "call_end":
        start = next((e for e in reversed(events[: event.seq]) if _is_start(e, path, id)), None)
        where = f"fork at {start.seq}, where it started" if start is not None else "it never started"
        raise UsageError(
            f"Event {event.seq} ends the call {id!r}: only its result can be changed here. For other changes, {where}."
        )
    followed = event.type not in ("approval_decision", "call_start")
    kept = past(without=not followed)
    # Use the recorded time: the time since the recording is not waiting time.
    decision = structs.replace(_decision(id, change), time=max(event.time, kept.events[-1].time))
    return ForkStart(kept, decided=(path, id, decision))


def _is_start(event: Event, path: str, id: str) -> bool:
    return isinstance(event, CallStart) and event.path == path and event.call_id == id


def _call_of(event: Event) -> tuple[str, str]:
    if isinstance(event, ModelEnd) and len(event.message.tool_calls) == 1:
        return event.path, event.message.tool_calls[0].id
    if isinstance(event, CallProposed):
        return event.path, event.call.id
    if event.type in ABOUT_A_CALL:
        return event.path, str(getattr(event, "call_id", ""))
    calls = f" with {len(event.message.tool_calls)} calls" if isinstance(event, ModelEnd) else ""
    raise UsageError(
        f"Event {event.seq} is a {event.type}{calls}; the change needs an event about one call. Fork at its"
        " approval_request, approval_decision, call_start or call_end."
    )


def _decision(id: str, change: Change) -> ApprovalDecision:
    if change.arguments is not None:
        if not isinstance(change.arguments, Mapping):
            raise UsageError(f"arguments= takes the arguments of the call, a dict, not {change.arguments!r:.80}.")
        return ApprovalDecision(call_id=id, decision="edit", by="fork", arguments=to_json_data(dict(change.arguments)))
    if change.result is not UNCHANGED:
        return ApprovalDecision(call_id=id, decision="answer", by="fork", result=to_json_data(change.result))
    given = change.decision
    if isinstance(given, bool):  # a policy may return a bool as well
        given = "approve" if given else "reject"
    if isinstance(given, str):
        given = {"decision": given}
    if isinstance(given, ApprovalDecision):
        given = {name: getattr(given, name) for name in ("decision", "reason", "arguments", "name", "result")}
    if not isinstance(given, Mapping) or given.get("decision") not in DECISIONS:
        raise UsageError(
            f"decision= must be one of {', '.join(DECISIONS)}, or a dict whose decision is one of them, not"
            f" {change.decision!r:.80}."
        )
    known = {"decision", "reason", "arguments", "name", "result"}
    if unknown := sorted(set(given) - known - {"call_id", "by"}):
        raise UsageError(f"A decision does not accept {', '.join(unknown)}. Its fields are {', '.join(sorted(known))}.")
    if given["decision"] in ("edit", "replace") and not isinstance(given.get("arguments"), Mapping):
        raise UsageError(
            f"A decision to {given['decision']} requires arguments, a dict, not {given.get('arguments')!r}."
        )
    made = {name: to_json_data(given[name]) for name in known & set(given)}
    return ApprovalDecision(call_id=id, by="fork", **{**made, "reason": text_or_empty(given.get("reason"))})
