"""Agent's own stream: AgentEvents as the run goes on, and what may stop it (SEMANTICS 5g.15, 5g.16)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentnb.core.errors import RunFailed, UsageError
from agentnb.loops.agent.events import AgentEvent
from agentnb.loops.agent.projection import Projection

if TYPE_CHECKING:
    from agentnb.core.state import State
    from agentnb.run import Run


async def stream(
    run: Run, cancelled: Callable[[], bool] | None = None, ends_first: Callable[[State], bool] = lambda state: False
) -> AsyncGenerator[AgentEvent, None]:
    """The run's events as they happen: the run moves as they are asked for, and closing the stream cancels it.

    Before anything else happens `cancelled` is asked whether to go on, unless the run `ends_first` of itself.
    """

    def look() -> None:
        state = run.state
        if cancelled is not None and cancelled() and state.failure is None and not ends_first(state):
            run.cancel("the cancel token is set")

    projection = Projection()
    try:
        look()
        async with aclosing(aiter(run)) as news:
            async for item in news:
                for event in projection.say(item):
                    yield event
                look()
    except RunFailed:
        if (failure := run.state.failure) is None:  # not a model's failure, but the loop's own
            raise
        for event in projection.fail(failure):
            yield event


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
