"""Events: the closed vocabulary of events that a run consists of.

An event is immutable. The driver stamps it with `seq` (its position in the journal, from 0), `time` (seconds since the
epoch), `run_id`, `path` (the position among nested loops, `""` for the outermost) and `phase` (the phase of the loop
that this event opens, None if the loop stays in the same one). The state of a run is folded from its events
(`agentnb.core.evolve`). No event is ever withdrawn, except that `call_end` with outcome `skipped` replaces a result
that the model has not seen yet (loops/session_loop/SEMANTICS.md, 5. Steering: mode `discard`).

Loops do not define events of their own. A loop's decisions are events of this vocabulary too: `advance` returns the
next event, unstamped.

Deltas are not events. Streaming text, partial tool calls, a tool's progress and a retry are sent to consumers as a
`Delta`, without a `seq`; the journal keeps the finished message.

The events about calls are defined in `agentnb.core.call_events` and exported here with the others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, get_args

from msgspec import ValidationError, convert, to_builtins
from msgspec.json import Decoder
from msgspec.structs import replace
from pydantic_core import from_json, to_json

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
from agentnb.core.event import Delta, ErrorInfo, Event, checked, read_field
from agentnb.core.json import check_levels
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
    "checked",
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
"""The reasons why a model's answer is incomplete. A run that ends with such an answer has the same stop reason."""
CUT_OFF_REASONS = frozenset(get_args(CutOff))


class RunStart(Event, frozen=True, tag="run_start"):
    """The start of a loop: its kind, its name, its configuration, its input, and its earlier messages.

    `history` are the messages of earlier runs, `queued` the messages that the user queued before the run began. `call`:
    in a nested loop, the call of the parent loop that it performs. `forked_from`: in a fork, the run and the event that
    it was forked from (`"4f2c…@17"`). `listens`: the loop has a conversation of its own. `max_result_chars`: the
    maximum number of characters of a result that the model is sent; None, as in older recordings, for no limit.
    `system_prompt`: the text that the model is sent first, if it differs from the one in `config`. `tools`: the
    fingerprint of the description and the schema of each tool, by its name; empty in older recordings. `approve` is the
    policy of the whole run: rules, True or False, or `{"function": name}` for a function, which cannot be recorded.
    `limits` are the limits of the whole run, `model_options` the options of all its model requests,
    `on_limit` what happens at a limit. `ancestors`: in a fork, the runs from which its first events were inherited, the
    oldest run first. Each is followed by a number: of the first event after those that were inherited from that run.
    `forks`: for each of these forks its event, and how many equal forks of that run had been made before.
    `tags` and `data` are those that the run was started with; only the outermost loop has them.
    """

    loop: str
    name: str
    fingerprint: str = ""
    config: dict[str, Any] = {}
    input: Any = None
    history: list[Message] = []
    queued: dict[Queue, list[Message]] = {}
    call: str = ""
    forked_from: str = ""
    listens: bool = True
    max_result_chars: int | None = None
    system_prompt: str | None = None
    tools: dict[str, str] = {}
    approve: Any = None
    limits: dict[str, float | int] = {}
    model_options: dict[str, Any] = {}
    on_limit: Literal["end", "ask"] = "end"
    ancestors: list[tuple[str, int]] = []
    forks: list[tuple[int, int]] = []
    tags: list[str] = []
    data: dict[str, Any] = {}


class PhaseChange(Event, frozen=True, tag="phase_change"):
    """A change of the loop's phase, from `source` to `phase`."""

    source: str


class MessageAdded(Event, frozen=True, tag="message"):
    """A message that enters the history: the oldest of the queue that it came from, or one of the loop's own."""

    message: Message
    origin: Origin = "loop"


class Queued(Event, frozen=True, tag="queued"):
    """A message that the user has queued: to redirect the run (`steering`), or extend it at its end (`follow_up`)."""

    queue: Queue
    message: Message


class Withdrawn(Event, frozen=True, tag="withdrawn"):
    """A withdrawal by the user of `count` messages from a queue, starting with the one at `first`: 0 is the oldest."""

    queue: Queue
    count: int
    first: int = 0


class StateUpdate(Event, frozen=True, tag="state_update"):
    """New values of the loop's own state."""

    values: dict[str, Any]


class ModelStart(Event, frozen=True, tag="model_start"):
    """A request to the model; `turn` counts the requests that were not repetitions, from 1.

    `provider` and `model` name the recipient: the client's own name for its provider, and the name of the requested
    model. `options` has every option that was sent (temperature, seed, limits), without secrets; it has only the names
    of tools and the titles of schemas. `loop_options` are those that the loop set for this request; a repetition of the
    request sends them again. `attempt` is more than 1 if a request is repeated, or if the model paused its answer and
    is asked to continue it; in the second case `continues` is True.

    A loop that asks its model gives the options of its request as `options`; the run fills in the rest.
    """

    turn: int = 0
    attempt: int = 1
    options: dict[str, Any] = {}
    provider: str = ""
    model: str = ""
    loop_options: dict[str, Any] = {}
    continues: bool = False

    @property
    def set_by_loop(self) -> dict[str, Any]:
        """The options that the loop set: in `options` before a run filled in the rest, and in older recordings."""
        return self.loop_options if self.provider else self.options


class ModelEnd(Event, frozen=True, tag="model_end"):
    """The model's answer. Its calls are open from here on.

    `usage` has counts of tokens (`input_tokens`, `output_tokens`, ...), and `cost` if the model reported it. `timing`
    is `[[milliseconds since the request, characters], ...]` for the text as it arrived. `sequential`: its calls run one
    at a time. `provisional`: the loop may replace the results of the calls until it continues, so they enter the
    history only then.

    `model` is the model that answered, `response_id` the provider's id of the answer, `fingerprint` the provider's
    identifier of the configuration with which the model ran, `service_tier` the tier that served the request,
    `upstream` the provider behind a gateway, and `finish_reason` the stop reason in the server's vocabulary
    (`stop_reason` is in agentnb's). Each is None if the server did not report it.
    """

    message: Message
    stop_reason: str | None = None
    usage: dict[str, float | int] = {}
    timing: list[list[int]] = []
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
        """The reason why the answer is not complete; None if it is."""
        reason: Any = self.stop_reason
        return reason if reason in CUT_OFF_REASONS else None


class ModelFailed(Event, frozen=True, tag="model_error"):
    """A request to the model that failed, or whose answer was interrupted. The run waits; resuming asks again.

    `partial` is the text so far. `answer` is the whole answer so far, with `stop_reason` `error` and the
    `error_message`; older recordings have none. `usage` is what the server had reported of the answer until then.
    """

    error: ErrorInfo
    partial: str = ""
    answer: Message | None = None
    usage: dict[str, float | int] = {}


class RunPaused(Event, frozen=True, tag="run_paused"):
    """A pause: nothing is in flight any more, and nothing new starts until the run is resumed.

    `by` is the cause: `human` (the pause was requested), `step` (a step of a run that plays has ended),
    `breakpoint`, or `limit` (a limit was reached, and a person decides whether the run continues). `before`: the path
    and id of the call that the breakpoint stops before; the call has not begun.
    """

    reason: str = ""
    by: str = "human"
    before: tuple[str, str] | None = None


class RunResumed(Event, frozen=True, tag="run_resumed"):
    """The run continues: after a pause, after a failure of the model, or in a restored run after the end `suspended`.

    `again` are the failed calls that are made again, by the path of their loop: those whose failure had ended the run.
    `approve`, `limits`, `model_options`, `on_limit`: those that apply from now on, if the run was restored with others,
    or was resumed after it had reached a limit. `raised`: resuming has raised the limits, and nobody has given others.
    `usage`: of answers that an end had interrupted, which a restored run has dropped.
    """

    suspended: bool = False
    again: dict[str, list[str]] = {}
    approve: Any = None
    limits: dict[str, float | int] | None = None
    raised: bool = False
    usage: dict[str, float | int] = {}
    model_options: dict[str, Any] | None = None
    on_limit: Literal["end", "ask"] | None = None


class CancelRequested(Event, frozen=True, tag="cancel"):
    """A request to end the run. No effect is required from here on."""

    reason: str = ""


class RunEnd(Event, frozen=True, tag="run_end"):
    """The end of the loop, with its reason.

    If the reason is `suspended`, calls may be open, and a restored run resumes from there. `answer` is the answer that
    this end interrupted, as far as it arrived, with `stop_reason` `aborted` and the reason as its `error_message`, and
    `usage` is what the server had reported of it.
    """

    reason: StopReason
    output: Any = None
    error: ErrorInfo | None = None
    answer: Message | None = None
    usage: dict[str, float | int] = {}

    @property
    def terminal(self) -> bool:
        """True if this is the end of the outermost loop."""
        return self.path == ""


AnyEvent = (
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
    | RunEnd
)

EVENT_TYPES: tuple[str, ...] = tuple(str(kind.__struct_config__.tag) for kind in get_args(AnyEvent))

_decoder: Decoder[Event] = Decoder(AnyEvent, dec_hook=read_field)


def plain_event(event: Event | Delta) -> dict[str, Any]:
    """Return the event as plain JSON data, without the fields at their default."""
    if isinstance(event, Event):
        return event.to_dict()
    plain: dict[str, Any] = to_builtins(event)
    return plain


def encode_event(event: Event, *, without: Collection[str] = ()) -> bytes:
    """Return the event as one line of JSON (UTF-8), without the fields at their default and those in `without`.

    Raises ValueError for a value that is not JSON.
    """
    try:
        plain = event.to_dict()
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    for name in without:
        plain.pop(name, None)
    return to_json(plain)


def encode_body(event: Event) -> bytes:
    """Return the event as one line of JSON without its run and its position, for a store that has these as keys."""
    return encode_event(event, without=("run_id", "seq"))


def decode_event(line: bytes | str) -> Event:
    """Return the event in one line of JSON. Raises msgspec.ValidationError, a ValueError, with the field at fault."""
    try:
        check_levels(line)
        return _decoder.decode(line)
    except ValueError:  # it may have numbers that msgspec refuses
        pass
    try:
        plain = from_json(line)
    except ValueError as error:
        raise ValidationError(str(error)) from error
    event: Event = convert(plain, AnyEvent, dec_hook=read_field)
    return event


def decode_body(line: bytes | str, run_id: str, seq: int) -> Event:
    """Return the event in one line of JSON at this position of this run. Raises as `decode_event` does."""
    return replace(decode_event(line), run_id=run_id, seq=seq)
