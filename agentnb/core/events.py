"""Events: the closed vocabulary of facts a run is made of.

An event is an immutable fact. The driver stamps it with `seq` (its position in the journal, from 0), `time` (seconds
since the epoch), `run_id`, `path` (where it happened in nested loops, `""` for the outermost) and `phase` (the phase of
the loop that this event opens, None where it stays in the same one). Everything a run knows is folded from these
(`agentnb.core.evolve`); nothing is ever taken back, except that `call_end` with outcome `skipped` replaces a
result the model has not seen yet (loops/session_loop/SEMANTICS.md, 5. Steering: mode `discard`).

Loops do not add events of their own. What a loop decides is said in these words too: `advance` returns the fact that
comes next, unstamped.

Deltas are not facts. Streaming text, partial tool calls, a tool's progress and a retry go to whoever is watching as a
`Delta`, without a `seq`; the journal keeps the finished message.

The facts about calls are defined in `agentnb.core.call_events`, and are here like the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from agentnb.core.call_events import (
    ApprovalDecision,
    ApprovalRequest,
    CallEnd,
    CallProposed,
    CallStart,
    Decision,
    Outcome,
    Remember,
)
from agentnb.core.event import Delta, ErrorInfo, Event
from agentnb.core.messages import Message, ToolCall

__all__ = [
    "CUT_OFF_REASONS",
    "EVENT_TYPES",
    "AnyEvent",
    "ApprovalDecision",
    "ApprovalRequest",
    "CallEnd",
    "CallProposed",
    "CallStart",
    "CancelRequested",
    "CutOff",
    "Decision",
    "Delta",
    "ErrorInfo",
    "Event",
    "MessageAdded",
    "ModelEnd",
    "ModelFailed",
    "ModelStart",
    "Origin",
    "Outcome",
    "PhaseChange",
    "Queue",
    "Queued",
    "Remember",
    "RunEnd",
    "RunPaused",
    "RunResumed",
    "RunStart",
    "StateUpdate",
    "StopReason",
    "ToolCall",
    "Withdrawn",
    "decode_body",
    "decode_event",
    "encode_body",
    "encode_event",
    "plain_event",
]

Queue = Literal["input", "steering", "follow_up"]
Origin = Literal["input", "steering", "follow_up", "loop"]
StopReason = Literal[
    "completed",
    "escalated",
    "max_iterations",
    "max_turns",
    "max_requests",
    "limit",
    "stalled",
    "suspended",
    "length",
    "content_filter",
    "refusal",
    "cancelled",
    "error",
    "empty",
]
CutOff = Literal["length", "content_filter", "refusal"]
"""Why a model's answer ended before it was complete; the run that ends with such an answer stops for this reason."""
CUT_OFF_REASONS = frozenset(get_args(CutOff))


class RunStart(Event):
    """A loop begins: its kind, its name, what decides how it behaves, its input, and what it goes on from.

    `history` are the messages of earlier runs, `queued` what the user had queued before the run began. `call`: a nested
    loop's, the call of the loop above that it performs. `forked_from`: a fork's, the run and the event it departs from
    (`"4f2c…@17"`). `listens`: whether the loop has a conversation of its own. `max_result_chars`: how many characters
    of a result the model is sent at most; None, as in older recordings, for all. `system_prompt`: what the model is
    told first, where `config` does not have that. `tools`: the fingerprint of the description and the schema of each
    tool, by its name; none in older recordings. `approve`, `limits`: the policy and the limits of the whole run: rules,
    True or False, and `{"function": name}` for a policy that no recording keeps.
    `ancestors`: a fork's, the runs that its first events were inherited from, the oldest first, each with the number of
    the first event that is not of it or of one before it.
    """

    type: Literal["run_start"] = "run_start"
    loop: str
    name: str
    fingerprint: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    input: Any = None
    history: list[Message] = Field(default_factory=list)
    queued: dict[Queue, list[Message]] = Field(default_factory=dict)
    call: str = ""
    forked_from: str = ""
    listens: bool = True
    max_result_chars: int | None = None
    system_prompt: str | None = None
    tools: dict[str, str] = Field(default_factory=dict)
    approve: Any = None
    limits: dict[str, float] = Field(default_factory=dict)
    ancestors: list[tuple[str, int]] = Field(default_factory=list)


class PhaseChange(Event):
    """The loop enters the phase in `phase`, coming from `source`."""

    type: Literal["phase_change"] = "phase_change"
    source: str


class MessageAdded(Event):
    """A message enters the history: the oldest of the queue it came from, or one of the loop's own."""

    type: Literal["message"] = "message"
    message: Message
    origin: Origin = "loop"


class Queued(Event):
    """The user has queued a message: to redirect the run (`steering`) or for when it would stop (`follow_up`)."""

    type: Literal["queued"] = "queued"
    queue: Queue
    message: Message


class Withdrawn(Event):
    """The user has taken `count` messages back out of a queue, from the one at `first` on: 0 is the oldest."""

    type: Literal["withdrawn"] = "withdrawn"
    queue: Queue
    count: int
    first: int = 0


class StateUpdate(Event):
    """The loop sets values of its own state."""

    type: Literal["state_update"] = "state_update"
    values: dict[str, Any]


class ModelStart(Event):
    """The model is asked; `turn` counts the requests that were not repetitions, from 1.

    `provider` and `model` say who is asked: the client's own word, and the name of the model that is asked for.
    `options` has every option that was sent (temperature, seed, limits), tools by their names, schemas by their title,
    and no secret. `loop_options` are those that the loop set for this request; a repetition of the request sends them
    again. `attempt` is more than 1 where a request is repeated, and where the model had paused its answer and is asked
    to go on with it, which `continues` says.

    A loop that asks its model gives the options of its request as `options`; the run fills in the rest.
    """

    type: Literal["model_start"] = "model_start"
    turn: int = 0
    attempt: int = 1
    options: dict[str, Any] = Field(default_factory=dict)
    provider: str = ""
    model: str = ""
    loop_options: dict[str, Any] = Field(default_factory=dict)
    continues: bool = False

    @property
    def set_by_loop(self) -> dict[str, Any]:
        """The options that the loop set: in `options` before a run filled in the rest, and in older recordings."""
        fields = self.__dict__
        options: dict[str, Any] = fields["loop_options"] if fields["provider"] else fields["options"]
        return options


class ModelEnd(Event):
    """The model has answered. Its calls are open from here on.

    `usage` has counts of tokens (`input_tokens`, `output_tokens`, ...) and `cost` where the model told it. `timing` is
    `[[milliseconds since the request, characters], ...]` for the text as it came. `sequential`: its calls run one at a
    time. `provisional`: the loop may replace results until it goes on, so the history is told no sooner.

    `model` is the model that answered, `response_id` the provider's id of the answer, `fingerprint` its word for the
    configuration it ran with, `service_tier` the tier that served it, `upstream` the provider behind a gateway, and
    `finish_reason` the reason to stop in the server's own word, of which `stop_reason` is ours. Each is None where the
    server did not say it.
    """

    type: Literal["model_end"] = "model_end"
    message: Message
    stop_reason: str | None = None
    usage: dict[str, float] = Field(default_factory=dict)
    timing: list[list[int]] = Field(default_factory=list)
    sequential: bool = False
    provisional: bool = False
    model: str | None = None
    response_id: str | None = None
    fingerprint: str | None = None
    service_tier: str | None = None
    upstream: str | None = None
    finish_reason: str | None = None

    @property
    def cut_off(self) -> CutOff | None:
        """Why the answer is not complete; None where it is."""
        reason: Any = self.stop_reason
        return reason if reason in CUT_OFF_REASONS else None


class ModelFailed(Event):
    """The model could not be asked, or its answer broke off. The run waits; resuming asks again.

    `partial` is the text so far. `answer` is all of the answer so far, with `stop_reason` `error` and the
    `error_message`; older recordings have none.
    """

    type: Literal["model_error"] = "model_error"
    error: ErrorInfo
    partial: str = ""
    answer: Message | None = None


class RunPaused(Event):
    """Nothing is in flight any more, and nothing new starts until it is resumed.

    `by`: whether somebody has asked for it (`human`), or it stands where a `step` of a run that plays ended, or at a
    `breakpoint`. `before`: the path and id of the call that the breakpoint stops before; the call has not begun.
    """

    type: Literal["run_paused"] = "run_paused"
    reason: str = ""
    by: str = "human"
    before: tuple[str, str] | None = None


class RunResumed(Event):
    """The run goes on: after a pause, after a failure of the model, or, restored, after it was `suspended`.

    `again` are the failed calls that are made again, by the path of their loop: those whose failure had ended the run.
    `approve`, `limits`: the policy and the limits it goes on with, where it was restored with others.
    """

    type: Literal["run_resumed"] = "run_resumed"
    suspended: bool = False
    again: dict[str, list[str]] = Field(default_factory=dict)
    approve: Any = None
    limits: dict[str, float] | None = None


class CancelRequested(Event):
    """Somebody wants the run to end; it wants nothing from here on."""

    type: Literal["cancel"] = "cancel"
    reason: str = ""


class RunEnd(Event):
    """The loop is over, and why. One that is `suspended` may have calls open: it goes on from there when restored.

    `answer` is the answer that this end broke off, as far as it came, with `stop_reason` `aborted` and the reason as
    its `error_message`.
    """

    type: Literal["run_end"] = "run_end"
    reason: StopReason
    output: Any = None
    error: ErrorInfo | None = None
    answer: Message | None = None

    @property
    def terminal(self) -> bool:
        """True where it is the outermost loop's."""
        return self.path == ""


AnyEvent = Annotated[
    RunStart
    | PhaseChange
    | MessageAdded
    | Queued
    | Withdrawn
    | StateUpdate
    | ModelStart
    | ModelEnd
    | ModelFailed
    | CallProposed
    | ApprovalRequest
    | ApprovalDecision
    | CallStart
    | CallEnd
    | RunPaused
    | RunResumed
    | CancelRequested
    | RunEnd,
    Field(discriminator="type"),
]


@cache
def _any_event() -> TypeAdapter[Event]:
    return TypeAdapter(AnyEvent)  # made when the first recording is read: it would be a tenth of the import


EVENT_TYPES: tuple[str, ...] = tuple(
    cls.model_fields["type"].default for cls in Event.__subclasses__() if "type" in cls.model_fields
)


def plain_event(event: Event | Delta) -> dict[str, Any]:
    """The event as plain JSON data, without the fields at their default."""
    if isinstance(event, Delta):
        return {f.name: value for f in fields(event) if (value := getattr(event, f.name)) != f.default}
    given = event.__pydantic_serializer__.to_python(event, mode="json", exclude_defaults=True)
    return {"type": event.type, **given}


def encode_event(event: Event, *, without: set[str] | None = None) -> bytes:
    """The event as one line of JSON (UTF-8), without the fields at their default."""
    write, begins = _writer(type(event))
    given = write(event, exclude_defaults=True, exclude=without)
    return begins + given[1:] if len(given) > 2 else begins[:-1] + b"}"


@cache
def _writer(kind: type[Event]) -> tuple[Callable[..., bytes], bytes]:
    """What writes the events of a type, and how a line of it begins."""
    return kind.__pydantic_serializer__.to_json, b'{"type":"%s",' % kind.model_fields["type"].default.encode()


_KEY = {"run_id", "seq"}


def encode_body(event: Event) -> bytes:
    """The event as one line of JSON without its run and its position, for a place that is keyed by these."""
    return encode_event(event, without=_KEY)


def decode_event(line: bytes | str) -> Event:
    """The event in one line of JSON; raises pydantic's ValidationError where it is none."""
    return _any_event().validate_json(line)


def decode_body(line: bytes | str, run_id: str, seq: int) -> Event:
    """The event in one line of JSON that lies at this position of this run; raises as `decode_event` does."""
    event = decode_event(line)
    event.__dict__.update(run_id=run_id, seq=seq)  # nobody else has seen it yet
    return event
