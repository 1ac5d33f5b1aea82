"""The stream of a design's own events: an async iterator over a run that is read in the design's words."""

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
    """A run that is told in a design's words; `ended` is whether the last of them has been said.

    A loop holds on to this and not to the stream, so that a stream that nobody has any more (a `break` has left it) is
    closed as any async generator is, and the loop can be run again.
    """

    last: ClassVar[str]
    """The type of the event that is the last."""

    def __init__(
        self,
        run: Run,
        say: Callable[[Event | Delta], Iterable[Said]],
        fail: Callable[[ErrorInfo], Iterable[Said]],
    ) -> None:
        """say, fail: what a fact is in those words, and the end where a model has failed."""
        self.run = run
        self.ended = False
        self.stream: weakref.ref[Any] | None = None
        self.is_read = False
        """Whether somebody has begun to read the stream."""
        self._say, self._fail = say, fail

    def facts(self) -> Any:
        """The run's own events, as an async iterator that can be closed."""
        return Inside(aiter(self.run))

    def is_said(self, error: RunFailed) -> bool:
        """Whether this, which is no model's failure, is what the design's last event says."""
        return False

    async def events(self) -> AsyncGenerator[Said, None]:
        """What the run says in the design's words, to the last. Raises RunFailed where the loop itself has failed."""
        last, say = self.last, self._say
        try:
            async with aclosing(self.facts()) as facts:
                async for fact in facts:
                    for said in say(fact):
                        self.ended = said.type == last
                        yield said
        except RunFailed as error:
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
        """Whether somebody may go on with it. Where its reader has left it, its run is cancelled."""
        if not self.ended and self.stream is not None and self.stream() is None:
            if self.is_read:
                self.close()
            elif not self.run.events:  # nobody has it, and nothing has happened
                self.ended = True
        return not self.ended

    def close(self) -> None:
        """Cancel the run, where it is not over."""
        self.run.cancel("the stream was closed")
        self.ended = True


class DesignStream(Generic[Said]):
    """The events of one run, as it goes on; it begins when the first is asked for.

    Closing it before its end cancels the run, and so does leaving it where nobody else has it. Awaiting it goes on to
    the end, and gives the run's output, or raises why there is none. `run` is the run, `ended` whether the last event
    has been said.
    """

    def __init__(self, telling: Telling[Said]) -> None:
        self.run = telling.run
        self.telling = telling
        telling.stream = weakref.ref(self)
        self._events = telling.events()

    @property
    def ended(self) -> bool:
        """Whether the last event has been said."""
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
        """Cancel the run, where it is not over, and wait until all of it has stopped."""
        await self._events.aclose()
        if not self.ended:  # it was closed before it began
            self.telling.close()
