"""Agent's own stream of AgentEvents, and its cancellation (SEMANTICS.md, 8. Errors and cancellation)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Delta, Event
from agentnb.core.maybe_async import InnerGenerator
from agentnb.core.state import State
from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.projection import AgentProjection
from agentnb.loops.agent.turns import TurnState
from agentnb.loops.streaming import translated
from agentnb.run import Run

CHECK_INTERVAL = 0.05
"""Seconds between two checks of the cancel token during an approval, when no events arrive."""


class _TokenCheck:
    """The check of a cancel token. It cancels the run when `cancelled()` is true.

    The run is not cancelled while `ends_first(state)` is true, because it is about to end normally.
    """

    def __init__(self, run: Run, cancelled: Callable[[], bool], ends_first: Callable[[State], bool]) -> None:
        self._run = run
        self._cancelled = cancelled
        self._ends_first = ends_first
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Check the cancel token once."""
        state = self._run.state
        if self._cancelled() and state.failure is None and not self._ends_first(state):
            self._run.cancel("the cancel token is set")

    def check_after(self, item: Event | Delta) -> None:
        """Check the cancel token after an event. During an approval, check it repeatedly until the decision."""
        self.check()
        if item.type == "approval_request" and self._timer is None:
            self._check_while_asking()

    def _check_while_asking(self) -> None:
        self.check()
        call_later = asyncio.get_running_loop().call_later
        self._timer = call_later(CHECK_INTERVAL, self._check_while_asking) if self._run.pending else None

    def stop(self) -> None:
        """Stop the repeated checks."""
        if self._timer is not None:
            self._timer.cancel()


def stream(
    run: Run,
    cancelled: Callable[[], bool] | None,
    ends_first: Callable[[State], bool],
    turn: TurnState | None = None,
) -> AsyncGenerator[AgentEvent, None]:
    """Return the stream of the agent's events of a run, which advances when an event is requested.

    Closing the stream cancels the run. cancelled: returns True to cancel the run; None for no check. The first call
    comes before the run advances. ends_first: returns True if the run is about to end normally and must not be
    cancelled. turn: the first turn of the run, None for turn 0. The stream raises RunFailed if the loop itself has
    failed.
    """
    projection = AgentProjection(turn)
    if cancelled is None:
        return translated(run, projection)
    return _checked(projection, run, _TokenCheck(run, cancelled, ends_first))


async def _checked(projection: AgentProjection, run: Run, token: _TokenCheck) -> AsyncGenerator[AgentEvent, None]:
    """Yield the agent's events of a run, and check the cancel token at the start and after each event of the run."""
    try:
        token.check()
        async with aclosing(InnerGenerator(translated(run, projection, after_each=token.check_after))) as events:
            async for event in events:
                yield event
    finally:
        token.stop()


def cancel_check(token: Any) -> Callable[[], bool] | None:
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
    raise UsageError(
        f"{type(token).__name__} is not a cancel token. Pass an object with is_set(), is_cancelled() or cancelled (such"
        " as a threading.Event), or a function that returns True to cancel."
    )
