"""RunStream: an async iterator over a run that yields the events of its design."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import aclosing
from typing import Any, Generic, Protocol

from agentnb.core.errors import RunFailed
from agentnb.core.events import Delta, Event
from agentnb.core.maybe_async import InnerGenerator
from agentnb.loops.projection import DesignEvent, Projection
from agentnb.run import Run


class RunItems(Protocol):
    """The events and deltas of a run, as an async iterator that can be closed."""

    def __aiter__(self) -> AsyncIterator[Event | Delta]: ...

    async def aclose(self) -> None:
        """Stop reading the run."""


def items_of(run: Run) -> RunItems:
    """Return the events and deltas of a run. The run advances when the next one is requested."""
    return InnerGenerator(aiter(run))


async def translated(
    run: Run,
    projection: Projection[DesignEvent],
    *,
    items_of: Callable[[Run], RunItems] = items_of,
    after_each: Callable[[Event | Delta], None] | None = None,
) -> AsyncGenerator[DesignEvent, None]:
    """Yield the design's events of a run. Closing the generator before the end of the run cancels the run.

    items_of: returns the run's events and deltas. after_each: called with each of them after its translation was taken.

    Raises RunFailed if the run has failed and the design's events do not report it.
    """
    try:
        async with aclosing(items_of(run)) as items:
            async for item in items:
                for event in projection.translate(item):
                    yield event
                if after_each is not None:
                    after_each(item)
    except RunFailed as error:
        failure = run.state.failure
        if not projection.reports(error, failure):
            raise
        if failure is not None and not projection.ended:
            for event in projection.fail(failure):
                yield event
    finally:
        projection.ended = True


class RunStream(Generic[DesignEvent]):
    """The events of one run, in the design's vocabulary. The run starts when the first event is requested.

    Closing the stream before its end cancels the run; so does abandoning it. Awaiting the stream runs to the end and
    returns the run's output, or raises the error that ended the run.
    """

    def __init__(
        self,
        run: Run,
        projection: Projection[DesignEvent],
        *,
        items_of: Callable[[Run], RunItems] = items_of,
    ) -> None:
        self.run = run
        self.projection = projection
        self.status = StreamStatus(self)
        self._events = translated(run, projection, items_of=items_of)

    @property
    def ended(self) -> bool:
        """True after the last event."""
        return self.projection.ended

    def __aiter__(self) -> AsyncIterator[DesignEvent]:
        return self

    async def __anext__(self) -> DesignEvent:
        self.status.is_read = True
        return await anext(self._events)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._run_to_end().__await__()

    async def _run_to_end(self) -> Any:
        async for _ in self:
            pass
        return await self.run

    async def aclose(self) -> None:
        """Cancel the run if it has not ended, and wait until all its work has stopped."""
        await self._events.aclose()
        if not self.ended:  # closed before the first event was requested
            self.status.close()


class StreamStatus:
    """The status of a stream. A loop keeps it to know whether the stream of its last run is open.

    The loop does not keep the stream itself. A stream that its reader abandons (by `break`) is therefore
    garbage-collected and closed like any async generator, and the loop can run again.
    """

    def __init__(self, stream: RunStream[Any]) -> None:
        self.run: Run = stream.run
        self.is_read = False
        """True after the reader has requested the first event."""
        self._projection = stream.projection
        self._stream = weakref.ref(stream)

    @property
    def ended(self) -> bool:
        """True after the last event, or after the stream was closed."""
        return self._projection.ended

    def is_open(self) -> bool:
        """Return True while the stream can continue. If its reader has abandoned it, cancel the run first."""
        if not self.ended and self._stream() is None:
            if self.is_read:
                self.close()
            elif self.run.state.over or not self.run.events:  # abandoned before the first event: nothing to cancel
                self._projection.ended = True
        return not self.ended

    def close(self) -> None:
        """Cancel the run if it has not ended."""
        self.run.cancel("the stream was closed")
        self._projection.ended = True
