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
"""Seconds between two checks of the cancel token during an approval, when no events arrive."""


class _Stopping:
    """A check that cancels a run when `cancelled()` is true.

    The run is not cancelled while `ends_first(state)` is true, because it is about to end normally.
    """

    def __init__(self, run: Run, cancelled: Callable[[], bool] | None, ends_first: Callable[[State], bool]) -> None:
        self._run = run
        self._cancelled = cancelled
        self._ends_first = ends_first
        self._next: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Check the cancel token once."""
        state = self._run.state
        if self._cancelled is not None and self._cancelled() and state.failure is None and not self._ends_first(state):
            self._run.cancel("the cancel token is set")

    def look_after(self, news: Event | Delta) -> None:
        """Check the cancel token after an event. During an approval, check it repeatedly until the decision."""
        self.look()
        if news.type == "approval_request" and self._cancelled is not None and self._next is None:
            self._look_while_asking()

    def _look_while_asking(self) -> None:
        self.look()
        again = asyncio.get_running_loop().call_later
        self._next = again(LOOKS_EVERY, self._look_while_asking) if self._run.pending else None

    def leave_off(self) -> None:
        """Stop the repeated checks."""
        if self._next is not None:
            self._next.cancel()


async def stream(
    run: Run,
    cancelled: Callable[[], bool] | None,
    ends_first: Callable[[State], bool],
    turn: TurnState | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """Yield the agent's events of a run. The run advances when an event is requested; closing the stream cancels it.

    cancelled: returns True to cancel the run; None for no check. It is called first before the run advances.
    ends_first: returns True if the run is about to end normally and must not be cancelled. turn: the first turn of the
    run, None for turn 0. Raises RunFailed if the loop itself has failed.
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
        if (failure := run.state.failure) is None:  # the loop itself has failed, not a model
            raise
        for event in projection.fail(failure):
            yield event
    finally:
        stopping.leave_off()


def asks_token(token: Any) -> Callable[[], bool] | None:
    """Return a function that checks a cancel token, or None for no token.

    token: an object with `is_set`, `is_cancelled` or `cancelled` (a method or an attribute), or a function. Raises
    UsageError for any other object.
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
