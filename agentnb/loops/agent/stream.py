"""Agent's own stream of AgentEvents, and its cancellation (SEMANTICS.md, 8. Errors and cancellation)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import RunFailed, UsageError
from agentnb.core.maybe_async import Inside
from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.projection import Projection
from agentnb.loops.agent.turns import TurnState

if TYPE_CHECKING:
    from agentnb.core.events import Delta, Event
    from agentnb.core.state import State
    from agentnb.run import Run


LOOKS_EVERY = 0.05
"""Seconds between two looks at a cancel token while a person is asked, and nothing else happens."""


class _Stopping:
    """Cancels a run once `cancelled` says so, unless the run `ends_first` of itself."""

    def __init__(self, run: Run, cancelled: Callable[[], bool] | None, ends_first: Callable[[State], bool]) -> None:
        self._run = run
        self._cancelled = cancelled
        self._ends_first = ends_first
        self._next: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Ask whether to go on."""
        state = self._run.state
        if self._cancelled is not None and self._cancelled() and state.failure is None and not self._ends_first(state):
            self._run.cancel("the cancel token is set")

    def look_after(self, news: Event | Delta) -> None:
        """Ask it after this; and, where a person is asked, until that is decided."""
        self.look()
        if news.type == "approval_request" and self._cancelled is not None and self._next is None:
            self._look_while_asking()

    def _look_while_asking(self) -> None:
        self.look()
        again = asyncio.get_running_loop().call_later
        self._next = again(LOOKS_EVERY, self._look_while_asking) if self._run.pending else None

    def leave_off(self) -> None:
        """Ask no more."""
        if self._next is not None:
            self._next.cancel()


async def stream(
    run: Run,
    cancelled: Callable[[], bool] | None,
    ends_first: Callable[[State], bool],
    turn: TurnState | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """The run's events as they happen: the run moves as they are asked for, and closing the stream cancels it.

    Before anything else happens `cancelled` is asked whether to go on, unless the run `ends_first` of itself. turn: the
    one that the run begins with.
    """
    stopping = _Stopping(run, cancelled, ends_first)
    projection = Projection(turn)
    try:
        stopping.look()
        async with aclosing(Inside(aiter(run))) as news:
            async for item in news:
                for event in projection.say(item):
                    yield event
                stopping.look_after(item)
    except RunFailed:
        if (failure := run.state.failure) is None:  # not a model's failure, but the loop's own
            raise
        for event in projection.fail(failure):
            yield event
    finally:
        stopping.leave_off()


def asks_token(token: Any) -> Callable[[], bool] | None:
    """What asks a cancel token: anything with `is_set`, `is_cancelled` or `cancelled`, or a function that is asked.

    Raises UsageError otherwise.
    """
    if token is None:
        return None
    for name in ("is_set", "is_cancelled", "cancelled"):
        if hasattr(token, name):
            if callable(ask := getattr(token, name)):
                return lambda: bool(ask())
            return lambda: bool(getattr(token, name))
    if callable(token):
        return lambda: bool(token())
    raise UsageError(f"{type(token).__name__} is no cancel token: it has no is_set(), is_cancelled() or cancelled.")
