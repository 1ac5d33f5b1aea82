"""The design's own events: their types, their projection from a run's events, the stream (SEMANTICS.md, 12. Events).

`ExecutionProjection` folds the events of a run and yields those of the design, so that the streams of a live run and of
its recording are equal. Each request and each call in the stream has an end, and `loop_completed` is the last event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

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
from agentnb.core.record import Record
from agentnb.core.state import CallState, State
from agentnb.core.tools import Invocation, Tool
from agentnb.loops.execution_loop.context import Context
from agentnb.loops.execution_loop.dataflow import Dataflow
from agentnb.loops.execution_loop.types import Call, ErrorMessage
from agentnb.loops.execution_loop.writes import error_of, rejection
from agentnb.loops.projection import Handlers, Projection
from agentnb.loops.streaming import RunStream
from agentnb.run import Run
from agentnb.run.tasks import until_done

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

    The Python object has more fields: `call` is the call as the model wrote it, `result` is its result, `error` is the
    error of a call, a request or the loop, and `errors` are the errors of the last round, which no request has sent.
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
    """The calls of the loop, as the projection needs them: which may start, and which their tools accept."""

    def flow(self, state: State) -> Dataflow:
        """Return the dataflow of the calls at a state."""

    def bind(self, tool: Tool, call: CallState, arguments: dict[str, Any], state: State) -> Invocation:
        """Return the call, ready to run. Raises InvalidArguments if the tool does not accept the arguments."""


class ProjectedLoop(Protocol):
    """A loop that knows the calls of its latest run."""

    @property
    def current_calls(self) -> ProjectedCalls:
        """The calls of the latest run."""


class ExecutionProjection(Projection[ExecutionEvent]):
    """Yields the design's events for the events of a run. Deltas and events of nested loops have none."""

    def __init__(self, calls: ProjectedCalls) -> None:
        super().__init__()
        self._calls = calls
        self._request: int | None = None
        """The number of the request that has not ended."""
        self._received: set[str] = set()
        self._unblocked: set[str] = set()
        self._errors: list[ErrorMessage] = []
        """The errors that the open request has caused so far."""

    def handle(self, item: Event | Delta) -> Iterator[ExecutionEvent]:
        """Yield the design's events for one event of the run."""
        if isinstance(item, Delta):
            return
        if len(self._received) != len(self.state.calls):
            yield from self._receive_calls()
        yield from super().handle(item)
        if self.state.open and not isinstance(item, RunEnd):
            yield from self._unblock_calls()

    # -- events of the run ---------------------------------------------------------------------------------------------

    def _model_start(self, event: ModelStart) -> Iterator[ExecutionEvent]:
        """Yield the end of the request before, and the start of this one, unless it is repeated.

        Calls that are open at this time are detached.
        """
        if event.attempt == 1:
            yield from self._end_request(None)
            self._received, self._unblocked, self._errors = set(self.state.open), set(self.state.open), []
            self._request = event.turn
            yield ExecutionEvent(type="request_started", n=event.turn)

    def _message_added(self, event: MessageAdded) -> Iterable[ExecutionEvent]:
        if event.message.get("kind") == "error":
            self._errors.append(ErrorMessage(data=event.message["data"]))
        return ()

    def _approval_decision(self, event: ApprovalDecision) -> Iterable[ExecutionEvent]:
        if event.is_checked_again and event.decision == "replace":
            self._unblocked.discard(event.call_id)
        return ()

    def _call_start(self, event: CallStart) -> Iterator[ExecutionEvent]:
        if event.attempt == 1:  # not when it runs again after a crash
            yield ExecutionEvent(type="call_started", id=event.call_id, args=event.arguments)

    def _call_end(self, event: CallEnd) -> Iterator[ExecutionEvent]:
        if not event.is_error:
            yield ExecutionEvent(type="call_completed", id=event.call_id, result=event.result)
            return
        call = self.state.calls[event.call_id]
        if event.outcome in ("rejected", "blocked"):
            yield ExecutionEvent(type="call_rejected", id=call.id, reason=rejection(call))
            return
        has_not_run = event.outcome in ("invalid", "skipped") or (event.outcome == "aborted" and call.attempt == 0)
        phase: Literal["structural", "runtime"] = "structural" if has_not_run else "runtime"
        yield ExecutionEvent(type="call_failed", id=call.id, phase=phase, error=event.result)

    def _run_end(self, event: RunEnd) -> Iterator[ExecutionEvent]:
        yield from self._end_request(event.output)
        reason = "output" if event.reason == "completed" else event.reason
        error = event.error.message if event.error is not None else None
        yield self._completed(reason, error, event.output)

    def fail(self, failure: ErrorInfo) -> Iterator[ExecutionEvent]:
        """Yield the end of the stream after a model has failed. The run itself may be resumed."""
        error = f"{failure.type}: {failure.message}"
        for call in self.state.open.values():
            if call.status == "running":  # the model of a nested loop failed
                yield ExecutionEvent(type="call_failed", id=call.id, phase="runtime", error=error)
        yield from self._end_request(None, error=error)
        yield self._completed("error", error)

    # -- calls and requests --------------------------------------------------------------------------------------------

    def _receive_calls(self) -> Iterator[ExecutionEvent]:
        """Yield `call_received` for each new call."""
        for call in self.state.calls.values():
            if call.id not in self._received:
                self._received.add(call.id)
                made = Call.made_of(call.proposed.name, call.proposed.arguments)
                yield ExecutionEvent(type="call_received", id=call.id, call=dict(made))

    def _unblock_calls(self) -> Iterator[ExecutionEvent]:
        """Yield `call_unblocked` for each call that may start now.

        A call that its tool does not accept fails with a structural error, and is never unblocked.
        """
        state, flow = self.state, None
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

    def _end_request(self, output: Any, error: str | None = None) -> Iterator[ExecutionEvent]:
        if self._request is not None:
            number, self._request = self._request, None
            if self._errors:
                yield ExecutionEvent(type="errors_appended", count=len(self._errors))
            yield ExecutionEvent(type="request_completed", n=number, output=output, error=error)

    def _completed(self, reason: str, error: str | None, output: Any = None) -> ExecutionEvent:
        """Return the last event, with the errors of the last round, also if that has not ended."""
        self.ended = True
        errors = self._errors
        if not errors:
            ended = Context.of(self.state).turn.ended
            messages = [message for call in ended if (message := error_of(call)) is not None]
            errors = [ErrorMessage(data=message["data"]) for message in messages]
        return ExecutionEvent(type="loop_completed", reason=reason, output=output, error=error, errors=errors)

    handlers: ClassVar[Handlers] = {
        ModelStart: _model_start,
        MessageAdded: _message_added,
        ApprovalDecision: _approval_decision,
        CallStart: _call_start,
        CallEnd: _call_end,
        RunEnd: _run_end,
    }


# -- the stream ----------------------------------------------------------------------------------------------------

T = TypeVar("T")


class Prefetch(Generic[T], AsyncIterator[T]):
    """A reader of a generator that does not wait for its slow consumer (SEMANTICS.md, 13. Reading ahead).

    A task pulls the generator and passes on each item immediately, in order. Raises what the generator raises; `aclose`
    closes the generator too.

    This is not an async generator itself. When an event loop ends, it closes all generators that are left, in any
    order: of two nested generators that both wait, one would report an error.
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
            cancelled = await until_done([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # asyncio logs an exception that nobody retrieves
            if cancelled is not None:
                raise cancelled


class ExecutionStream(RunStream[ExecutionEvent]):
    """The design's events of one run of an execution loop; `result()` returns the output."""

    def __init__(self, run: Run, loop: ProjectedLoop) -> None:
        super().__init__(run, ExecutionProjection(loop.current_calls), items_of=lambda run: Prefetch(aiter(run)))

    async def result(self) -> Any:
        """Run to the end and return the output. Raises what awaiting the run raises."""
        return await self
