"""The stream of a design's own events: an async iterator that translates the events of a run."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from agentnb.core.errors import RunFailed
from agentnb.core.maybe_async import Inside

if TYPE_CHECKING:
    from agentnb.core.events import Delta, ErrorInfo, Event
    from agentnb.run import Run


class _Typed(Protocol):
    @property
    def type(self) -> str: ...


Said = TypeVar("Said", bound=_Typed)


class Telling(Generic[Said]):
    """The translation of one run into a design's events. `ended` is True after the last of them.

    A loop keeps a reference to this object and not to the stream. A stream that the reader abandons (by `break`) is
    then garbage-collected and closed like any async generator, and the loop can run again.
    """

    last: ClassVar[str]
    """The type of the last event of a stream."""

    def __init__(
        self,
        run: Run,
        say: Callable[[Event | Delta], Iterable[Said]],
        fail: Callable[[ErrorInfo], Iterable[Said]],
    ) -> None:
        """say: translates an event of the run. fail: returns the final events after a model failure."""
        self.run = run
        self.ended = False
        self.stream: weakref.ref[Any] | None = None
        self.is_read = False
        """True after the reader has requested the first event."""
        self._say, self._fail = say, fail

    def facts(self) -> Any:
        """Return the run's own events as an async iterator that can be closed."""
        return Inside(aiter(self.run))

    def is_said(self, error: RunFailed) -> bool:
        """Return True if the design's last event reports this error, which is not a model failure."""
        return False

    async def events(self) -> AsyncGenerator[Said, None]:
        """Yield the run's events, translated into the design's events.

        Raises RunFailed if the loop itself has failed and the design has no event for it.
        """
        last, say = self.last, self._say
        try:
            async with aclosing(self.facts()) as facts:
                async for fact in facts:
                    for said in say(fact):
                        self.ended = said.type == last
                        yield said
        except RunFailed as error:
            # Raise an error of the loop itself, unless the design's last event has reported it. After a model failure,
            # end the stream with the design's own events.
            failure = self.run.state.failure
            if failure is None and not self.is_said(error):
                raise
            if failure is not None and not self.ended:
                for said in self._fail(failure):
                    self.ended = said.type == last
                    yield said
        finally:
            self.ended = True

    @property
    def is_open(self) -> bool:
        """True while the stream can continue. If its reader has abandoned it, reading this property cancels the run."""
        if not self.ended and self.stream is not None and self.stream() is None:
            if self.is_read:
                self.close()
            elif not self.run.events:  # abandoned before the first event: there is nothing to cancel
                self.ended = True
        return not self.ended

    def close(self) -> None:
        """Cancel the run if it has not ended."""
        self.run.cancel("the stream was closed")
        self.ended = True


class DesignStream(Generic[Said]):
    """The events of one run, in the design's vocabulary. The run starts when the first event is requested.

    Closing the stream before its end cancels the run; so does abandoning it. Awaiting the stream runs to the end and
    returns the run's output, or raises the error that ended the run. `run` is the run.
    """

    def __init__(self, telling: Telling[Said]) -> None:
        self.run = telling.run
        self.telling = telling
        telling.stream = weakref.ref(self)
        self._events = telling.events()

    @property
    def ended(self) -> bool:
        """True after the last event."""
        return self.telling.ended

    def __aiter__(self) -> AsyncIterator[Said]:
        return self

    async def __anext__(self) -> Said:
        self.telling.is_read = True
        return await anext(self._events)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._to_the_end().__await__()

    async def _to_the_end(self) -> Any:
        async for _ in self:
            pass
        return await self.run

    async def aclose(self) -> None:
        """Cancel the run if it has not ended, and wait until all its work has stopped."""
        await self._events.aclose()
        if not self.ended:  # closed before the first event was requested
            self.telling.close()
