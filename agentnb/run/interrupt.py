"""Breaking off one await, and nothing else.

The driver performs an effect that is alone in flight inside its own task: making a task for it would cost as much as
the rest of an iteration. Cancelling that task would cancel the driver, and whoever awaits it. `Interruptible` instead
cancels the one future that the effect is suspended on, which is what cancelling a task of its own would do: the effect
sees a CancelledError at its await and runs its `finally`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The await was broken off by `Interruptible.interrupt`."""


class Interruptible:
    """Awaits one thing at a time. `interrupt` breaks it off; call it in the event loop that awaits."""

    def __init__(self) -> None:
        self._suspended_on: Any = None
        self._waiting = False
        self._interrupted = False
        self._must_break = False

    def interrupt(self) -> None:
        """Break off what is being awaited, if anything is."""
        if self._waiting:
            self._interrupted = True
            cancel = getattr(self._suspended_on, "cancel", None)
            # As in a task: what is suspended on nothing, or on something that is done, is broken off when it goes on.
            self._must_break = cancel is None or not cancel()

    @types.coroutine
    def wait(self, awaitable: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await `awaitable`. Raises Interrupted where `interrupt` broke it off."""
        self._interrupted = False
        steps: Any = awaitable.__await__()
        value: tuple[BaseException, ...] = ()
        resume = steps.__next__
        try:
            while True:
                suspended_on = resume(*value)
                self._suspended_on, self._waiting, self._must_break = suspended_on, True, False
                resume, value = steps.__next__, ()
                try:
                    yield suspended_on
                except BaseException as error:  # what the event loop throws in is the effect's to handle
                    resume, value = steps.throw, (error,)
                self._suspended_on, self._waiting = None, False
                if self._must_break:
                    resume, value = steps.throw, (asyncio.CancelledError(),)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except asyncio.CancelledError as error:
            if self._interrupted:
                raise Interrupted from error
            raise
