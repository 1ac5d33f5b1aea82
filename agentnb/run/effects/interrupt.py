"""Performing one effect inside the driver's own task: in steps, and so that it can be broken off.

Making a task for an effect that is alone in flight would cost as much as the rest of an iteration. Cancelling the task
it is performed in would cancel the driver, and whoever awaits it. `Inline` instead cancels the one future that the
effect is suspended on, which is what cancelling a task of its own would do: the effect sees a CancelledError at its
await and runs its `finally`.

It has a context (`contextvars`) of its own, as in a task of its own: a consumer may take each of the things it shows
in another task.

An effect that has something to show to a consumer who takes things one by one awaits `show()`: that hands control back
to whoever performs it, who goes on when the consumer asks for more.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any

_SHOW = object()


@types.coroutine
def show() -> Generator[Any, Any, None]:
    """Let whoever pulls take what there is. Only in an effect that is performed by `Inline`."""
    yield _SHOW


def task_here() -> asyncio.Task[Any] | None:
    """The task that the caller runs in; None in a thread without an event loop, where a sync tool runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_thrown_in(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether this has ended the code of that task from outside, and the code has not raised it itself.

    Ctrl-C comes into the main thread only, from Python's own handler or a program's, and where asyncio minds it
    (`asyncio.run`) as a cancellation. A coroutine is closed by somebody else, who has no more use for it.
    """
    if isinstance(error, KeyboardInterrupt):
        handler = signal.getsignal(signal.SIGINT)
        its_own = getattr(handler, "__code__", None)
        is_of_handler = any(frame.f_code is its_own for frame, _ in traceback.walk_tb(error.__traceback__))
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and (handler is signal.default_int_handler or is_of_handler)
    return isinstance(error, GeneratorExit) and (task is None or task_here() is not task)


class Inline:
    """Performs one effect at a time. `interrupt` breaks it off; call it in the event loop that performs."""

    def __init__(self) -> None:
        self._effect: Coroutine[Any, Any, None] | None = None
        self._suspended_on: Any = None
        self._waiting = False
        self._interrupted = False
        self._throw: BaseException | None = None
        self._run: Callable[..., Any] = copy_context().run

    def interrupt(self) -> None:
        """Break off what is being performed, if anything is, and once: it runs its `finally` undisturbed."""
        if self._effect is not None and not self._interrupted:
            self._interrupted = True
            cancel = getattr(self._suspended_on, "cancel", None)
            # As in a task: what is suspended on nothing, or on something that is done, is broken off when it goes on.
            if not self._waiting or cancel is None or not cancel():
                self._throw = asyncio.CancelledError()

    @types.coroutine
    def perform(self, effect: Coroutine[Any, Any, None]) -> Generator[Any, Any, bool]:
        """Perform it up to where it has something to show; False at its end, also where it was broken off."""
        if self._effect is not effect:
            self._effect, self._interrupted, self._throw = effect, False, None
            self._run = copy_context().run
        run, error = self._run, None
        try:
            while True:
                if self._throw is not None:
                    error, self._throw = self._throw, None
                suspended_on = run(effect.send, None) if error is None else run(effect.throw, error)
                if suspended_on is _SHOW:
                    return True
                error = None
                self._suspended_on, self._waiting = suspended_on, True
                try:
                    yield suspended_on
                except BaseException as thrown:  # what the event loop throws in is the effect's to handle
                    error = thrown
                self._suspended_on, self._waiting = None, False
        except StopIteration:
            self._effect = None
            return False
        except asyncio.CancelledError:
            self._effect = None
            if self._interrupted:  # whoever broke it off has seen to its result
                return False
            raise
        except BaseException:
            self._effect = None
            raise

    async def close(self) -> None:
        """Break off an effect that nobody goes on with, once it has run its `finally`."""
        if self._effect is not None:
            self.interrupt()
            while await self.perform(self._effect):
                pass
