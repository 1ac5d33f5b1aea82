"""Reading ahead: the run continues while its reader is busy (SEMANTICS.md, 13. Reading ahead).

Calls of an execution loop run while the answer streams and beside each other, whatever whoever reads the events does in
the meantime. So the run is pulled by a task of its own, which hands on each event at once: a reader that keeps up sees
things as they happen, and one that does not holds nothing up.


ExecutionLoop's own vocabulary: its ten kinds of events (SEMANTICS.md, 12. Events).

The events are a projection of the run's: `Projection` folds the same facts and says them in the design's words, so that
the stream of a live run and of a recording are the same. `call_unblocked` is no fact of its own: it is said when the
facts so far let a call start. Every request and every call that is told of also ends, and `loop_completed` is the last.


The stream of an execution loop's events: a run that is read in the design's words (`projection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args

from pydantic import model_serializer

from agentnb.core.errors import InvalidArguments
from agentnb.core.events import (
    ApprovalDecision,
    CallEnd,
    CallStart,
    Delta,
    ErrorInfo,
    Event,
    MessageAdded,
    ModelStart,
    RunEnd,
)
from agentnb.core.evolve import evolve
from agentnb.core.record import Record
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.dataflow import Dataflow
from agentnb.loops.execution_loop.types import Call, ErrorMessage
from agentnb.loops.execution_loop.writes import error_of, rejection
from agentnb.loops.streaming import DesignStream, Telling

if TYPE_CHECKING:
    from agentnb.run import Run

T = TypeVar("T")


class Ahead(Generic[T], AsyncIterator[T]):
    """The items of a generator, in their order. Raises what it raises; closing this has closed it.

    No generator itself: an event loop that ends closes all generators that were left at once, and of two that stand
    one inside the other, and both wait, one would complain.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._ready: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def __anext__(self) -> T:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        if (item := await self._ready.get()) is not None:
            return item[0]
        self._ready.put_nowait(None)  # for whoever asks again
        await self._reading
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            async with aclosing(self._items):
                async for item in self._items:
                    self._ready.put_nowait((item,))
        finally:
            self._ready.put_nowait(None)

    async def aclose(self) -> None:
        """Stop reading, and wait until the generator has stopped."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)  # what it raises was raised, or nobody listens


Type = Literal[
    "request_started",
    "call_received",
    "call_unblocked",
    "call_rejected",
    "call_started",
    "call_completed",
    "call_failed",
    "errors_appended",
    "request_completed",
    "loop_completed",
]

FIELDS: dict[Type, tuple[str, ...]] = {
    **{said: ("id",) for said in get_args(Type) if said.startswith("call_")},
    "call_started": ("id", "args"),
    "call_failed": ("id", "phase"),
    "errors_appended": ("count",),
    "request_started": ("n",),
    "request_completed": ("n", "output"),
    "loop_completed": ("reason",),
}
"""What the design says each of its events has."""


class ExecutionEvent(Record):
    """One event of an execution loop. Its type determines its fields and its JSON (SEMANTICS.md, 12. Events).

    For whoever reads it in Python there is more: `call` is the call as the model wrote it, `result` what it gave,
    `error` what went wrong, `errors` those of the last tick, which no request has seen.
    """

    type: Type
    n: int | None = None
    id: str | None = None
    call: dict[str, Any] | None = None
    args: dict[str, Any] | None = None
    result: Any = None
    phase: Literal["structural", "runtime"] | None = None
    error: Any = None
    count: int | None = None
    output: Any = None
    reason: str | None = None
    errors: list[ErrorMessage] | None = None

    @model_serializer
    def _own_fields(self) -> dict[str, Any]:
        return {"type": self.type, **{name: getattr(self, name) for name in FIELDS[self.type]}}


class Projected(Protocol):
    """What the projection asks of its loop: which calls may start, and whether their tools accept them."""

    @property
    def tools_by_name(self) -> Mapping[str, Tool] | None:
        """The tools of the run; None before they are known."""

    def flow(self, state: State) -> Dataflow:
        """Return the dataflow of the calls at this state."""

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Return the call, ready to run. Raises InvalidArguments if the tool does not accept the arguments."""


class Projection:
    """Says a run's events in the words of the execution loop."""

    def __init__(self, loop: Projected) -> None:
        self._loop = loop
        self._state = State()
        self._in_request = False
        self._received: set[str] = set()
        self._unblocked: set[str] = set()
        self._errors: list[ErrorMessage] = []

    def say(self, event: Event | Delta) -> Iterator[ExecutionEvent]:
        """The loop's events that this one is."""
        if isinstance(event, Delta):
            return
        if isinstance(event, ModelStart) and not event.path:
            yield from self._start_request(event)
        evolve(self._state, event)
        if event.path:  # of a loop inside this one
            return
        yield from self._receive()
        if isinstance(event, MessageAdded) and event.message.get("kind") == "error":
            self._errors.append(ErrorMessage(data=event.message["data"]))
        elif isinstance(event, ApprovalDecision) and event.is_checked_again and event.decision == "replace":
            self._unblocked.discard(event.call_id)
        elif isinstance(event, CallStart) and event.attempt == 1:  # and not of what runs again after a crash
            yield _event("call_started", id=event.call_id, args=event.arguments)
        elif isinstance(event, CallEnd):
            yield self._end_call(event, self._state.calls[event.call_id])
        elif isinstance(event, RunEnd):
            yield from self._end(event)
            return
        yield from self._unblock()

    def _start_request(self, event: ModelStart) -> Iterator[ExecutionEvent]:
        if event.attempt == 1:
            yield from self._end_request(None)  # what is still open is detached, and goes on
            self._received, self._unblocked, self._errors = set(self._state.open), set(self._state.open), []
            self._in_request = True
            yield _event("request_started", n=event.turn)

    def _receive(self) -> Iterator[ExecutionEvent]:
        if len(self._received) == len(self._state.calls):
            return
        for call in self._state.calls.values():
            if call.id not in self._received:
                self._received.add(call.id)
                yield _event("call_received", id=call.id, call=_written(call))

    def _unblock(self) -> Iterator[ExecutionEvent]:
        flow: Dataflow | None = None
        for call in self._state.open.values():
            if call.id not in self._unblocked and call.status in ("proposed", "ready"):
                flow = flow or self._loop.flow(self._state)
                if flow.standing(call) == "free" and self._fits(flow, call):
                    self._unblocked.add(call.id)
                    yield _event("call_unblocked", id=call.id)

    def _fits(self, flow: Dataflow, call: CallState) -> bool:
        """Whether its tool takes what the call has come to: otherwise it is a structural error, and never unblocked."""
        tool = (self._loop.tools_by_name or {}).get(call.name)
        if tool is None:
            return False
        try:
            self._loop.bind(tool, call, flow.arguments(call), self._state)
        except InvalidArguments:
            return False
        return True

    @staticmethod
    def _end_call(event: CallEnd, call: CallState) -> ExecutionEvent:
        if not event.is_error:
            return _event("call_completed", id=call.id, result=event.result)
        if event.outcome in ("rejected", "blocked"):
            return _event("call_rejected", id=call.id, reason=rejection(call))
        structural = event.outcome in ("invalid", "skipped") or (event.outcome == "aborted" and call.attempt == 0)
        phase = "structural" if structural else "runtime"
        return _event("call_failed", id=call.id, phase=phase, error=event.result)

    def _end_request(self, output: Any, **fields: Any) -> Iterator[ExecutionEvent]:
        if self._in_request:
            self._in_request = False
            if self._errors:
                yield _event("errors_appended", count=len(self._errors))
            yield _event("request_completed", n=self._state.turn, output=output, **fields)

    def _end(self, event: RunEnd) -> Iterator[ExecutionEvent]:
        yield from self._end_request(event.output)
        reason = "output" if event.reason == "completed" else event.reason
        error = event.error.message if event.error is not None else None
        yield _event("loop_completed", reason=reason, output=event.output, error=error, errors=self._all_errors())

    def fail(self, failure: ErrorInfo) -> Iterator[ExecutionEvent]:
        """A model failed: the end of the stream, though the run may be resumed."""
        said = f"{failure.type}: {failure.message}"
        for call in self._state.open.values():
            if call.status == "running":  # it was the model of a loop inside
                yield _event("call_failed", id=call.id, phase="runtime", error=said)
        yield from self._end_request(None, error=said)
        yield _event("loop_completed", reason="error", error=said, errors=self._all_errors())

    def _all_errors(self) -> list[ErrorMessage]:
        """The errors of the last tick; also of one that has not ended, of which no request would be told any more."""
        untold = (error for call in Context.of(self._state).turn.ended if (error := error_of(call)) is not None)
        return self._errors or [ErrorMessage(data=error["data"]) for error in untold]


def _written(call: CallState) -> dict[str, Any]:
    made = call.proposed
    return dict(Call.made_of(made.name, made.arguments))


def _event(type: Type, **fields: Any) -> ExecutionEvent:
    return ExecutionEvent(type=type, **fields)


class ExecutionTelling(Telling[ExecutionEvent]):
    """A run in the words of an execution loop, to `loop_completed`."""

    last = "loop_completed"

    def facts(self) -> Ahead[Any]:
        """The run's own events, read ahead."""
        return Ahead(aiter(self.run))


class ExecutionStream(DesignStream[ExecutionEvent]):
    """The events of one run of an execution loop; `result()` gives the output once it is over."""

    def __init__(self, run: Run, loop: Projected) -> None:
        projection = Projection(loop)
        super().__init__(ExecutionTelling(run, projection.say, projection.fail))

    async def result(self) -> Any:
        """Go on to the end; gives the output. Raises as awaiting the run does."""
        return await self
