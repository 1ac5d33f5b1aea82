"""The design's own events: their types, their projection from a run's events, the stream (SEMANTICS.md, 12. Events).

`Projection` folds the events of a run and yields those of the design, so that the streams of a live run and of its
recording are equal. Each request and each call that is reported also ends, and `loop_completed` is the last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
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

# -- the events ----------------------------------------------------------------------------------------------------

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
    **{type: ("id",) for type in get_args(Type) if type.startswith("call_")},
    "call_started": ("id", "args"),
    "call_failed": ("id", "phase"),
    "errors_appended": ("count",),
    "request_started": ("n",),
    "request_completed": ("n", "output"),
    "loop_completed": ("reason",),
}
"""The fields of each type in the JSON of an event."""


class ExecutionEvent(Record):
    """One event of an execution loop. Its type determines the fields in its JSON (SEMANTICS.md, 12. Events).

    In Python there are more: `call` is the call as the model wrote it, `result` its result, `error` what went wrong,
    `errors` the errors of the last round, which no request has sent.
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


# -- the projection ------------------------------------------------------------------------------------------------


class ProjectedCalls(Protocol):
    """What the projection needs of the loop's calls: which may start, and whether their tools accept them."""

    def flow(self, state: State) -> Dataflow:
        """Return the dataflow of the calls at a state."""

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Return the call, ready to run. Raises InvalidArguments if the tool does not accept the arguments."""


class ProjectedLoop(Protocol):
    """A loop that knows the calls of its latest run."""

    @property
    def current_calls(self) -> ProjectedCalls:
        """The calls of the latest run."""


class Projection:
    """Yields the design's events for the events of a run."""

    def __init__(self, calls: ProjectedCalls) -> None:
        self._calls = calls
        self._state = State()
        self._in_request = False
        self._received: set[str] = set()
        self._unblocked: set[str] = set()
        self._errors: list[ErrorMessage] = []

    def say(self, event: Event | Delta) -> Iterator[ExecutionEvent]:
        """Yield the design's events for one event of the run. Deltas and events of nested loops have none."""
        if isinstance(event, Delta):
            return

        # A request, unless it is repeated, ends the one before it. Calls that are still open are detached.
        if isinstance(event, ModelStart) and not event.path and event.attempt == 1:
            yield from self._end_request(None)
            self._received, self._unblocked, self._errors = set(self._state.open), set(self._state.open), []
            self._in_request = True
            yield ExecutionEvent(type="request_started", n=event.turn)

        state = self._state
        evolve(state, event)
        if event.path:
            return

        # Calls that are new.
        if len(self._received) != len(state.calls):
            for call in state.calls.values():
                if call.id not in self._received:
                    self._received.add(call.id)
                    made = Call.made_of(call.proposed.name, call.proposed.arguments)
                    yield ExecutionEvent(type="call_received", id=call.id, call=dict(made))

        # What the event itself reports.
        if isinstance(event, MessageAdded) and event.message.get("kind") == "error":
            self._errors.append(ErrorMessage(data=event.message["data"]))
        elif isinstance(event, ApprovalDecision) and event.is_checked_again and event.decision == "replace":
            self._unblocked.discard(event.call_id)
        elif isinstance(event, CallStart) and event.attempt == 1:  # not when it runs again after a crash
            yield ExecutionEvent(type="call_started", id=event.call_id, args=event.arguments)
        elif isinstance(event, CallEnd):
            yield self._end_call(event, state.calls[event.call_id])
        elif isinstance(event, RunEnd):
            yield from self._end_request(event.output)
            reason = "output" if event.reason == "completed" else event.reason
            error = event.error.message if event.error is not None else None
            yield self._completed(reason, error, event.output)
            return

        # Calls that may start now. A call that its tool does not accept is a structural error, and never unblocked.
        flow: Dataflow | None = None
        for call in state.open.values():
            if call.id in self._unblocked or call.status not in ("proposed", "ready"):
                continue
            flow = flow or self._calls.flow(state)
            tool = (flow.tools or {}).get(call.name)
            if flow.readiness(call) != "free" or tool is None:
                continue
            try:
                self._calls.bind(tool, call, flow.arguments(call), state)
            except InvalidArguments:
                continue
            self._unblocked.add(call.id)
            yield ExecutionEvent(type="call_unblocked", id=call.id)

    def fail(self, failure: ErrorInfo) -> Iterator[ExecutionEvent]:
        """Yield the end of the stream after a model has failed. The run itself may be resumed."""
        error = f"{failure.type}: {failure.message}"
        for call in self._state.open.values():
            if call.status == "running":  # the model of a nested loop failed
                yield ExecutionEvent(type="call_failed", id=call.id, phase="runtime", error=error)
        yield from self._end_request(None, error=error)
        yield self._completed("error", error)

    @staticmethod
    def _end_call(event: CallEnd, call: CallState) -> ExecutionEvent:
        if not event.is_error:
            return ExecutionEvent(type="call_completed", id=call.id, result=event.result)
        if event.outcome in ("rejected", "blocked"):
            return ExecutionEvent(type="call_rejected", id=call.id, reason=rejection(call))
        has_not_run = event.outcome in ("invalid", "skipped") or (event.outcome == "aborted" and call.attempt == 0)
        phase: Literal["structural", "runtime"] = "structural" if has_not_run else "runtime"
        return ExecutionEvent(type="call_failed", id=call.id, phase=phase, error=event.result)

    def _end_request(self, output: Any, error: str | None = None) -> Iterator[ExecutionEvent]:
        if self._in_request:
            self._in_request = False
            if self._errors:
                yield ExecutionEvent(type="errors_appended", count=len(self._errors))
            yield ExecutionEvent(type="request_completed", n=self._state.turn, output=output, error=error)

    def _completed(self, reason: str, error: str | None, output: Any = None) -> ExecutionEvent:
        """Return the last event, with the errors of the last round, also if that has not ended."""
        errors = self._errors
        if not errors:
            ended = Context.of(self._state).turn.ended
            messages = [message for call in ended if (message := error_of(call)) is not None]
            errors = [ErrorMessage(data=message["data"]) for message in messages]
        return ExecutionEvent(type="loop_completed", reason=reason, output=output, error=error, errors=errors)


# -- the stream ----------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Prefetch(Generic[T], AsyncIterator[T]):
    """Reads a generator ahead of its consumer, which delays no call if it is slow (SEMANTICS.md, 13. Reading ahead).

    A task pulls the generator and passes on each item immediately, in order. Raises what the generator raises; `aclose`
    closes the generator too.

    This is not an async generator itself: when an event loop ends it closes all generators that are left, in no order,
    and of two nested ones that both wait one would report an error.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._queue: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def __anext__(self) -> T:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        if (item := await self._queue.get()) is not None:
            return item[0]
        self._queue.put_nowait(None)  # for the next request after the end
        await self._reading
        raise StopAsyncIteration

    async def _read(self) -> None:
        try:
            async with aclosing(self._items):
                async for item in self._items:
                    self._queue.put_nowait((item,))
        finally:
            self._queue.put_nowait(None)

    async def aclose(self) -> None:
        """Stop reading, and wait until the generator has stopped. Its exceptions are ignored."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class ExecutionTelling(Telling[ExecutionEvent]):
    """The design's events of one run, up to `loop_completed`."""

    last = "loop_completed"

    def facts(self) -> Prefetch[Any]:
        """Return the run's own events, read ahead."""
        return Prefetch(aiter(self.run))


class ExecutionStream(DesignStream[ExecutionEvent]):
    """The design's events of one run of an execution loop; `result()` returns the output."""

    def __init__(self, run: Run, loop: ProjectedLoop) -> None:
        projection = Projection(loop.current_calls)
        super().__init__(ExecutionTelling(run, projection.say, projection.fail))

    async def result(self) -> Any:
        """Run to the end and return the output. Raises what awaiting the run raises."""
        return await self
