"""The model that every world is checked against: what was shown, what was decided, what ran.

It reads the recording of a run, what people were shown and decided, and the notes of tools and models, and yields all
contradictions. A call is identified by the run, the path and its id, a question by the run, the path and the number of
its event.

- A call that needs approval runs only after a positive decision about its latest question, with exactly the name and
  the arguments that were shown there, or those of the decision.
- Each call of a model has exactly one result. No function runs twice for one call, unless its tool is idempotent or a
  person approved that it runs again.
- No completed call is lost or runs again after a restore.
- The state at any event is the fold of the events up to it. There is exactly one terminal event, and it is the last.
- The messages sent to a model are valid for a provider.
- A store has the same events as memory. Decisions of people, events given to consumers and starts of calls with effects
  are on disk first.
- Each model request is counted once: in the run that made it, and in no fork.
- The partial answer of an interrupted model request is in the recording.
- When a run has ended, no effect of it is in flight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from agentnb import Run
from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Event,
    ModelEnd,
    RunEnd,
)
from agentnb.core.evolve import fold
from tests.designs import states
from tests.simulation.people import Said
from tests.simulation.worlds import ASKING, CHANGED, IDEMPOTENT, USAGE, Notes, Ran
from tests.worlds import provider_faults

YES = ("approve", "edit", "replace")
PEOPLE = ("human", "code")
"""The values of `by` for decisions made with `run.approve` and similar methods."""


@dataclass
class _Call:
    """A call as far as its events have been read."""

    made: Mapping[str, Any] | None = None
    """The arguments given by the model or by the loop."""
    asked: ApprovalRequest | None = None
    decided: ApprovalDecision | None = None
    starts: list[CallStart] = field(default_factory=list)
    ends: list[CallEnd] = field(default_factory=list)
    is_made: bool = False


def faults(
    run: Run, notes: Notes, said: Sequence[Said], *, has_policy: bool = False, inherited: int = 0
) -> Iterator[str]:
    """Yield every contradiction between a run that has ended and the model.

    The first `inherited` events are those of the run before a restore, or of the run that it is a fork of.
    """
    events = list(run.events)
    yield from notes.problems
    yield from _order(events)
    yield from _states(run)
    calls, found = _read(events, has_policy=has_policy)
    yield from found
    yield from _decisions(events, said)
    yield from _functions(run, calls, notes.ran, inherited)
    if run.stop_reason != "suspended":  # otherwise calls and requests are open, and are repeated
        yield from _results(calls)
        yield from _partial_answers(events, notes)
        yield from _edits(events, notes)
    yield from _usage(run, notes, inherited)


def _order(events: Sequence[Event]) -> Iterator[str]:
    if [event.seq for event in events] != list(range(len(events))):
        yield "the events are not numbered one after the other"
    if [event.terminal for event in events].count(True) != 1 or not events[-1].terminal:
        yield f"there is not one terminal event, at the end: the last is {events[-1].type}"
    if any(later.time < earlier.time for earlier, later in pairwise(events)):
        yield "time goes backwards"


def _states(run: Run) -> Iterator[str]:
    """Check the last state, and the messages that each loop would send to a model."""
    if run.at(len(run.events) - 1).state != run.state or fold(run.events) != run.state:
        yield "the state is not what the events fold to"
    for state in states(run.state):
        if state.started is None:
            continue
        is_unfinished = run.stop_reason == "suspended"
        history = [dict(message) for message in state.messages]
        wrong = provider_faults(history, unfinished=is_unfinished)
        if wrong := [fault for fault in wrong if "unknown role" not in fault]:  # left out by `convert`
            yield f"the history of {state.name} is not valid: {wrong[:3]}"
        if state.open and not is_unfinished:
            yield f"calls of {state.name} are open at the end: {list(state.open)}"


def _read(events: Iterable[Event], *, has_policy: bool) -> tuple[dict[tuple[str, str], _Call], list[str]]:
    """Return the calls of a recording, and their contradictions."""
    calls: dict[tuple[str, str], _Call] = {}
    found: list[str] = []
    for event in events:
        id = getattr(event, "call_id", None)
        if isinstance(event, ModelEnd):
            for made in event.message.tool_calls:
                calls.setdefault((event.path, made.id), _Call()).is_made = True
        if isinstance(event, CallProposed):
            calls.setdefault((event.path, event.call.id), _Call()).made = event.call.arguments
        if not id:
            continue
        call = calls.setdefault((event.path, id), _Call())
        where = f"{event.type} {event.seq} of {event.path}/{id}"
        if isinstance(event, ApprovalRequest):
            if call.ends or (call.starts and not event.unknown):
                found.append(f"{where}: asked about when it has begun")
            call.asked, call.decided = event, None
        elif isinstance(event, ApprovalDecision):
            found += [f"{where}: {fault}" for fault in _decided(call, event)]
        elif isinstance(event, CallStart):
            if not event.own:
                found += [f"{where}: {fault}" for fault in _started(call, event, has_policy)]
            call.starts.append(event)
        elif isinstance(event, CallEnd):
            if call.ends and event.outcome != "skipped":
                found.append(f"{where}: a second result")
            if call.decided is not None and call.decided.decision in ("reject", "answer") and len(call.starts) == 0:
                wanted = "rejected" if call.decided.decision == "reject" else "answered"
                if event.outcome not in (wanted, "aborted", "skipped", "blocked"):
                    found.append(f"{where}: {event.outcome}, and what was decided is {call.decided.decision}")
            call.ends.append(event)
    return calls, found


def _decided(call: _Call, decision: ApprovalDecision) -> Iterator[str]:
    if call.ends:
        yield "decided about when it is over"
    if decision.decision == "ask":
        call.decided = call.asked = None
        return
    if decision.by in PEOPLE and call.asked is None:
        yield f"decided by {decision.by}, and nobody was asked"
    if call.decided is not None and {call.decided.by, decision.by} & set(PEOPLE):
        yield f"decided twice: by {call.decided.by} and by {decision.by}"
    latest = call.asked.seq if call.asked is not None else None
    if decision.question != latest and (decision.by in PEOPLE or decision.question is not None):
        yield f"it answers the question {decision.question}, and the latest is {latest}"
    call.decided = decision


def _started(call: _Call, start: CallStart, has_policy: bool) -> Iterator[str]:
    asked, decided = call.asked, call.decided
    if call.ends:
        yield "started when it is over"
    if call.starts:
        is_approved = asked is not None and asked.unknown and decided is not None
        if start.name not in IDEMPOTENT and not is_approved and start.name in (*ASKING, "good", "bad", "plain"):
            yield "started again"
        if start.attempt <= call.starts[-1].attempt and not is_approved:
            yield f"started again as the attempt {start.attempt}"
        return
    if asked is None and decided is None:
        if start.name in ASKING or has_policy:
            yield "started, and nobody has decided"
        if call.made is not None and "†" not in str(call.made) and _plain(start.arguments) != _plain(call.made):
            yield f"ran with {start.arguments}, and what was made is {call.made}"
        return
    if decided is None:
        yield "started before the question was answered"
    elif decided.decision not in YES:
        yield f"started, and what was decided is {decided.decision} by {decided.by}"
    else:
        shown = asked.arguments if asked is not None else start.arguments
        arguments = decided.arguments if decided.arguments is not None else shown
        if _plain(start.arguments) != _plain(arguments):
            yield f"ran with {start.arguments}, and what was decided about is {arguments}"
        if decided.decision == "approve" and _plain(start.arguments) != _plain(shown):
            yield f"ran with {start.arguments}, and what was shown is {shown}"
        name = decided.name if decided.decision == "replace" and decided.name is not None else None
        if name is not None and start.name != name:
            yield f"ran as {start.name}, and what was decided is {name}"
        if name is None and asked is not None and start.name != asked.name:
            yield f"ran as {start.name}, and what was shown is {asked.name}"


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the function, without the fields of an ExecutionLoop about the result."""
    return {name: value for name, value in arguments.items() if not name.startswith("_")}


def _decisions(events: Sequence[Event], said: Sequence[Said]) -> Iterator[str]:
    """Check that each act of a person is recorded as a decision about exactly the question that was shown."""
    for one in said:
        decision = events[one.event]
        if not isinstance(decision, ApprovalDecision):
            yield f"{one.what} of {one.item.id} has made {decision.type} {decision.seq}"
            continue
        questions = [
            event
            for event in events[: one.event]
            if isinstance(event, ApprovalRequest) and (event.path, event.call_id) == (decision.path, decision.call_id)
        ]
        question = questions[-1] if questions else None
        where = f"{one.what} of {one.item.id!r} at {one.item.path!r} (decision {decision.seq})"
        if decision.decision != one.what:
            yield f"{where} is recorded as {decision.decision}"
        if decision.path != one.item.path:
            yield f"{where} has decided about a call at {decision.path!r}"
        if question is None:
            yield f"{where} answers no question"
        elif one.item.event is not None and question.seq != one.item.event:
            yield f"{where} was about the question {one.item.event}, and has answered {question.seq}"
        elif question.unknown != one.item.unknown:
            yield f"{where} was about another kind of question than it has answered"
        elif question.arguments != one.item.arguments or question.name != one.item.name:
            yield f"{where} was shown {one.item.arguments}, and the question has {question.arguments}"
        if one.arguments is not None and decision.arguments != one.arguments:
            yield f"{where} put {one.arguments} in place, and the record has {decision.arguments}"


def _functions(run: Run, calls: Mapping[tuple[str, str], _Call], ran: Sequence[Ran], inherited: int) -> Iterator[str]:
    """Check that each function that ran had been started, with the same arguments."""
    times: Counter[tuple[str, str]] = Counter()
    for one in ran:
        key = (one.path, one.call_id)
        starts = [start for start in calls[key].starts if start.seq >= inherited] if key in calls else []
        where = f"the function {one.name} ran for {one.path}/{one.call_id}"
        if one.run_id != run.id:
            yield f"{where} of another run, {one.run_id}"
        elif not starts:
            yield f"{where}, which has not been started"
        else:
            times[key] += 1
            if times[key] > len(starts):
                yield f"{where} {times[key]} times and was started {len(starts)} times"
            start = starts[min(times[key], len(starts)) - 1]
            given = {name: int(value) for name, value in start.arguments.items() if name == "n"}
            if one.name != start.name or one.arguments != given:
                yield f"{where} with {one.arguments}, and what was started is {start.name} with {given}"
            for end in calls[key].ends:
                if end.outcome == "returned" and one.name != "yielding" and end.result not in (given["n"], CHANGED):
                    yield f"{where} with {given}, and its result is {end.result}"


def _results(calls: Mapping[tuple[str, str], _Call]) -> Iterator[str]:
    for (path, id), call in calls.items():
        if call.is_made or call.starts or call.asked is not None:
            left = [end for end in call.ends if end.outcome != "skipped"] or call.ends[-1:]
            if len(left) != 1:
                yield f"the call {path}/{id} has {len(left)} results"


def _partial_answers(events: Sequence[Event], notes: Notes) -> Iterator[str]:
    """Check that the partial answers of failed and interrupted requests are in the recording."""
    answers = [answer for event in events if (answer := getattr(event, "answer", None)) is not None]
    texts = [str(answer.content) for answer in answers]
    for asked in notes.asked:
        if asked.end != "whole" and asked.text and not any(asked.text in text for text in texts):
            yield f"what {asked.loop} said is lost ({asked.end}): {asked.text!r}"


def _edits(events: Sequence[Event], notes: Notes) -> Iterator[str]:
    """Check that the edits of hooks are in the recording, unless the call had ended before."""
    recorded = {
        (event.call_id, event.arguments["n"])
        for event in events
        if isinstance(event, ApprovalDecision) and event.by == "hook" and event.arguments is not None
    }
    over = {event.call_id for event in events if isinstance(event, CallEnd) and event.outcome in ("aborted", "skipped")}
    for id, n in notes.edits:
        if (id, n) not in recorded and id not in over:
            yield f"a hook has put n={n} in place for {id!r}, and that is not in the record"


def _usage(run: Run, notes: Notes, inherited: int) -> Iterator[str]:
    """Check that each request was counted once. One interrupted while it streamed its usage may be counted or not."""
    before = fold(run.events[:inherited]).own_usage
    least = sum(asked.is_counted for asked in notes.asked)
    most = sum(asked.end == "whole" for asked in notes.asked)
    for name, each in USAGE.items():
        used = run.usage.get(name, 0) - before.get(name, 0)
        if not least * each <= used <= most * each:
            yield f"{used} {name} are counted, and {least} to {most} requests have used {each} each"


# -- restored runs -----------------------------------------------------------------------------------------------------


def faults_of_a_restore(
    before: Sequence[Event], again: Run, notes: Notes, ran_before: Sequence[Ran] = ()
) -> Iterator[str]:
    """Yield the contradictions of a run restored from the events `before`; `notes` has what ran since.

    ran_before: the functions that ran in the killed process, recorded or not.
    """
    events = list(again.events)
    if isinstance(before[-1], RunEnd) and before[-1].reason == "error":
        return  # a LoopAgent returns to its checkpoint, and the failed agent starts again
    for end in before:
        if isinstance(end, CallEnd) and end.outcome not in ("aborted", "skipped"):
            kept = events[end.seq] if end.seq < len(events) else None
            if not isinstance(kept, CallEnd) or (kept.call_id, kept.result) != (end.call_id, end.result):
                yield f"the result of {end.path}/{end.call_id} is lost"
    calls, _ = _read(events, has_policy=False)
    ends = {(event.path, event.call_id): event.outcome for event in before if isinstance(event, CallEnd)}
    started = {(event.path, event.call_id) for event in before if isinstance(event, CallStart)}
    started |= {(ran.path, ran.call_id) for ran in ran_before}
    for ran in notes.ran:
        key = (ran.path, ran.call_id)
        if ends.get(key, "aborted") not in ("aborted", "skipped"):
            yield f"{ran.name} ran again for {ran.path}/{ran.call_id}, which was finished"
        elif key in started and ran.name not in IDEMPOTENT:
            asked = calls[key].asked if key in calls else None
            decided = calls[key].decided if key in calls else None
            if asked is None or not asked.unknown or decided is None or decided.decision not in YES:
                yield f"{ran.name} ran again for {ran.path}/{ran.call_id}, and nobody knows whether it ran before"
