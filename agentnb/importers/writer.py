"""Writer: turns what a foreign format records into the events of a loop, as they would be in a recording of agentnb.

A format calls the methods of a writer in the order of its file, and yields the events that they yield. The writer keeps
the rules of a recording: a run begins with one `run_start`, each call has exactly one result before the next request,
ids of calls are unique, and a message that arrives while calls run is delivered after their results. Times are given in
seconds since the epoch; 0 means that the file does not have the time.

The events have the form of a run of a SessionLoop, so that a SessionLoop can continue a fork of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as field_
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from agentnb.core.events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Decision,
    ErrorInfo,
    Event,
    MessageAdded,
    ModelEnd,
    ModelFailed,
    ModelStart,
    Outcome,
    Queue,
    Queued,
    RunEnd,
    RunResumed,
    RunStart,
    StateUpdate,
    StopReason,
)
from agentnb.core.json import parse_arguments, to_json_data
from agentnb.core.messages import Content, Message, ToolCall

LOOP = "SessionLoop"
"""The design whose recordings imported runs have the form of."""

NO_RESULT = "The imported file has no result of this call."
MAX_DEPTH = 30
"""The maximum number of loops inside each other."""

_PHASES = {
    "run_start": "idle",
    "message": "listening",
    "model_start": "thinking",
    "call_start": "acting",
    "approval_request": "acting",
    "run_end": "done",
}
"""The phase of a SessionLoop that an event of each type opens."""

LATEST = 253_402_300_799.0


@dataclass(slots=True)
class Call:
    """A call of an answer as a file has it. `arguments` are an object, or JSON text of one."""

    id: str
    name: str
    arguments: Any = None


@dataclass(slots=True)
class Answer:
    """A model's answer as a file has it. Empty fields are those that the file does not have."""

    content: Content = ""
    calls: Sequence[Call] = ()
    reasoning: list[dict[str, Any]] = field_(default_factory=list)
    order: list[dict[str, Any]] = field_(default_factory=list)
    details: Any = None
    usage: Mapping[str, float | int] = field_(default_factory=dict)
    model: str | None = None
    provider: str = ""
    stop_reason: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    options: Mapping[str, Any] = field_(default_factory=dict)


@dataclass(slots=True)
class _Open:
    call: ToolCall
    is_started: bool = False
    is_apart: bool = False


class Writer:
    """The events of one loop of a foreign recording.

    lost: counts what the file has and the events do not, or the file lacks and a recording needs. name: of the agent.
    about: what is known of the run besides its events. path, call: of a nested loop.
    """

    def __init__(
        self,
        lost: Counter[str],
        *,
        name: str,
        about: Mapping[str, Any] | None = None,
        path: str = "",
        call: str = "",
        depth: int = 0,
    ) -> None:
        self.lost = lost
        self.name = str(name) or "agent"
        self.about = dict(about or {})
        self.path = path
        self.has_started = False
        self.has_ended = False
        self._call = call
        self._depth = depth
        self._phase = ""
        self._turn = 0
        self._has_failed = False
        self._history: list[Message] = []
        self._open: dict[str, _Open] = {}  # by the id in the file
        self._ids: Counter[str] = Counter()  # by the id in the events
        self._seen: set[str] = set()
        self._waiting: list[tuple[Message, float, str]] = []
        self._latest = 0.0
        self._names: Counter[str] = Counter()

    # -- the conversation --------------------------------------------------------------------------------------------

    def start(self, time: float = 0.0, input: Any = None) -> Iterator[Event]:
        """Begin the run, unless it has begun."""
        if self.has_started:
            return
        self.has_started = True
        yield self._event(
            RunStart(
                loop=LOOP,
                name=self.name,
                config={"imported": self.about} if self.about else {},
                input=input,
                history=self._history,
                call=self._call,
            ),
            time,
        )

    def message(self, message: Message, time: float = 0.0) -> Iterator[Event]:
        """Add a message of the user, of the system or of the environment."""
        is_user = message.role not in ("system", "developer")
        if not self.has_started:
            if not is_user:
                self._history.append(message)
                return
            is_plain = isinstance(message.content, str) and len(message) == 2
            yield from self.start(time, message.content if is_plain else [dict(message)])
            yield self._event(MessageAdded(message=message, origin="input"), time)
            return
        if not is_user:
            if self._open:
                self._waiting.append((message, time, ""))
            else:
                yield self._event(MessageAdded(message=message), time)
            return
        queue: Queue = "steering" if self._open or self._phase != "thinking" else "follow_up"
        yield self._event(Queued(queue=queue, message=message), time)
        self._waiting.append((message, time, queue))
        if not self._open:
            yield from self._deliver()

    def answer(self, answer: Answer, time: float = 0.0, asked: float = 0.0) -> Iterator[Event]:
        """Add a request to the model and its answer. asked: the time of the request."""
        yield from self.ask(answer, asked)
        calls: list[ToolCall] = []
        for call in answer.calls:
            arguments, malformed = parse_arguments(call.arguments)
            made = ToolCall(id=self._new_id(call.id), name=call.name, arguments=arguments, malformed=malformed)
            if call.id in self._open:
                self.lost["calls with a repeated id"] += 1
            self._open[call.id if call.id not in self._open else made.id] = _Open(made)
            calls.append(made)
        message = Message(
            role="assistant",
            content=answer.content,
            tool_calls=calls,
            reasoning=answer.reasoning,
            order=answer.order,
            details=answer.details,
        )
        yield self._event(
            ModelEnd(
                message=message,
                stop_reason=answer.stop_reason,
                usage=numbers(answer.usage),
                model=answer.model,
                response_id=answer.response_id,
                finish_reason=answer.finish_reason,
            ),
            time,
        )

    def ask(self, answer: Answer, time: float = 0.0) -> Iterator[Event]:
        """Add a request to the model, after the results and the messages that precede it."""
        yield from self.start(time)
        yield from self.close()
        if self._has_failed:
            self._has_failed = False
            yield RunResumed()  # of the whole run
        self._turn += 1
        options = to_json_data(dict(answer.options))
        started = ModelStart(turn=self._turn, options=options, provider=answer.provider, model=answer.model or "")
        yield self._event(started, time)

    def failure(self, error: ErrorInfo, time: float = 0.0, asked: float = 0.0, model: str = "") -> Iterator[Event]:
        """Add a request to the model that failed."""
        yield from self.ask(Answer(model=model), asked)
        self._has_failed = True
        yield self._event(ModelFailed(error=error), time)

    def update(self, values: Mapping[str, Any], time: float = 0.0) -> Iterator[Event]:
        """Add values that are part of the run and not of the conversation, such as a score."""
        yield from self.start(time)
        yield self._event(StateUpdate(values=to_json_data(dict(values))), time)

    def end(
        self, reason: StopReason, time: float = 0.0, output: Any = None, error: ErrorInfo | None = None
    ) -> Iterator[Event]:
        """End the run."""
        yield from self.start(time)
        yield from self.close()
        self.has_ended = True
        yield self._event(RunEnd(reason=reason, output=to_json_data(output), error=error), time)

    # -- calls -------------------------------------------------------------------------------------------------------

    def is_open(self, id: str) -> bool:
        """Return True if the call with this id in the file waits for its result."""
        return id in self._open

    @property
    def open_calls(self) -> list[str]:
        """The ids in the file of the calls that wait for their results, in their order."""
        return list(self._open)

    def name_of(self, id: str) -> str:
        """Return the name of the tool of an open call."""
        return self._open[id].call.name

    def own_call(
        self, id: str, name: str, arguments: Any, time: float = 0.0, *, is_apart: bool = False
    ) -> Iterator[Event]:
        """Add a call that no answer of the file has made: a call of the loop itself.

        is_apart: it is none of the agent's calls, and is not counted among them, such as that of a scorer.
        """
        yield from self.start(time)
        given, malformed = parse_arguments(arguments)
        made = ToolCall(id=self._new_id(id), name=name, arguments=given, malformed=malformed)
        self._open[id] = _Open(made, is_apart=is_apart)
        yield self._event(CallProposed(call=made, hidden=True), time)

    def begin(self, id: str, time: float = 0.0, arguments: Any = None) -> Iterator[Event]:
        """Start a call. arguments: those that it ran with, if they differ from those of the model."""
        found = self._found(id, "calls that no answer made")
        if found is None or found.is_started:
            return
        found.is_started = True
        ran = parse_arguments(arguments)[0] if arguments is not None else found.call.arguments
        started = CallStart(call_id=found.call.id, name=found.call.name, arguments=ran, own=found.is_apart)
        yield self._event(started, time)

    def question(self, id: str, time: float = 0.0, reason: str = "") -> Iterator[Event]:
        """Ask a person about a call."""
        found = self._found(id, "questions about unknown calls")
        if found is not None:
            call = found.call
            asked = ApprovalRequest(call_id=call.id, name=call.name, arguments=call.arguments, reason=reason)
            yield self._event(asked, time)

    def decision(
        self, id: str, decision: Decision, time: float = 0.0, *, by: str = "", reason: str = "", **fields: Any
    ) -> Iterator[Event]:
        """Add a decision about a call. by: its author, as `ApprovalDecision.by`; `reviewer=` is a person's name."""
        found = self._found(id, "decisions about unknown calls")
        if found is not None:
            made = ApprovalDecision(call_id=found.call.id, decision=decision, by=by, reason=reason, **fields)
            yield self._event(made, time)

    def result(
        self,
        id: str,
        value: Any,
        time: float = 0.0,
        *,
        started: float = 0.0,
        is_error: bool = False,
        outcome: Outcome | None = None,
        details: Any = None,
        error: ErrorInfo | None = None,
    ) -> Iterator[Event]:
        """Add the result of a call. started: the time of its start."""
        kind = "repeated results" if id in self._seen and id not in self._open else "results of unknown calls"
        found = self._found(id, kind)
        if found is None:
            return
        outcome = outcome or ("raised" if is_error else "returned")
        if outcome not in ("rejected", "blocked", "invalid", "answered", "skipped", "aborted"):
            yield from self.begin(id, started)
        del self._open[id]
        ended = CallEnd(
            call_id=found.call.id,
            name=found.call.name,
            result=to_json_data(value),
            is_error=is_error,
            outcome=outcome,
            details=to_json_data(details) if details is not None else None,
            error=error,
        )
        yield self._event(ended, time)
        if not self._open:
            yield from self._deliver()

    def nested(self, id: str, name: str, about: Mapping[str, Any] | None = None) -> Writer | None:
        """Return the writer of the loop that performs a call, which must have begun; None if it is too deep."""
        found = self._open.get(id)
        if found is None or not found.is_started or self._depth >= MAX_DEPTH:
            self.lost["sub-agents that no open call started" if found is None else "sub-agents nested too deeply"] += 1
            return None
        step = (name or "agent").replace("/", "_")
        self._names[step] += 1
        step = step if self._names[step] == 1 else f"{step}#{self._names[step]}"
        path = f"{self.path}/{step}" if self.path else step
        return Writer(
            self.lost, name=name or "agent", about=about, path=path, call=found.call.id, depth=self._depth + 1
        )

    # -- the rules ---------------------------------------------------------------------------------------------------

    def close(self) -> Iterator[Event]:
        """End the open calls without a result, and deliver the messages that wait for them."""
        for id in list(self._open):
            self.lost["missing results"] += 1
            yield from self.result(id, NO_RESULT, is_error=True, outcome="aborted")
        yield from self._deliver()

    def _deliver(self) -> Iterator[Event]:
        for message, time, queue in self._waiting:
            origin: Any = queue or "loop"
            # A message that waited for results was delivered after them; when is not known.
            yield self._event(MessageAdded(message=message, origin=origin), time if time >= self._latest else 0.0)
        self._waiting.clear()

    def _found(self, id: str, otherwise: str) -> _Open | None:
        found = self._open.get(id)
        if found is None:
            self.lost[otherwise] += 1
        return found

    def _new_id(self, id: str) -> str:
        """Return an id for a call that no other call of the loop has."""
        self._seen.add(id)
        made = id or f"call_{len(self._ids) + 1}"
        while made in self._ids:
            self._ids[made] += 1
            made = f"{id or 'call'}#{self._ids[made]}"
        self._ids[made] = 1
        return made

    def _event(self, event: Event, time: float) -> Event:
        self._latest = max(self._latest, time)
        phase = _PHASES.get(event.type)
        if phase is not None and phase != self._phase:
            self._phase = phase
            return replace(event, time=time, path=self.path, phase=phase)
        return replace(event, time=time, path=self.path)


# -- stamping ------------------------------------------------------------------------------------------------------


def stamp(events: list[Event], run_id: str, lost: Counter[str]) -> None:
    """Give the events their numbers and their run. An event without a time gets that of the event before it.

    Such an event is marked as `untimed`; before the first known time it gets that one. A time before that of an earlier
    event is also replaced, and counted as lost.
    """
    latest = next((event.time for event in events if event.time > 0), 0.0)
    for seq, event in enumerate(events):  # in place: a long recording is not twice in memory
        time = event.time
        if time >= latest and time > 0:
            latest = time
            events[seq] = replace(event, seq=seq, run_id=run_id)
            continue
        if time > 0:
            lost["times out of order"] += 1
        events[seq] = replace(event, seq=seq, run_id=run_id, time=latest, untimed=True)


def seconds(value: Any, lost: Counter[str]) -> float:
    """Return a time of a file in seconds since the epoch; 0 if it is missing or impossible.

    value: ISO text, or a number of seconds, milliseconds, microseconds or nanoseconds since the epoch.
    """
    if value is None or value == "" or value == 0:
        return 0.0
    try:
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            moment = datetime.fromisoformat(value)
            found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        else:
            found = float(value)
            for _ in range(3):
                if found > 1e11:  # after the year 5138 as seconds: a smaller unit
                    found /= 1000
        if 0 < found <= LATEST:
            return found
    except (ValueError, TypeError, OverflowError):
        pass
    lost["impossible times"] += 1
    return 0.0


def numbers(usage: Mapping[str, Any]) -> dict[str, float | int]:
    """Return the counts that are numbers and not negative."""
    return {
        name: amount
        for name, amount in usage.items()
        if isinstance(amount, (int, float)) and not isinstance(amount, bool) and 0 <= amount < 1e18
    }


def error_of(type: str, message: Any) -> ErrorInfo:
    """Return an error as data."""
    return ErrorInfo(type=str(type) or "Error", message=message if isinstance(message, str) else str(message))


__all__ = ["Answer", "Call", "Writer", "error_of", "numbers", "seconds", "stamp"]
