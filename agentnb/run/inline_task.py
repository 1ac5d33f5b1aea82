"""Inline task: performs one effect inside the driver's own task, in steps, and so that it can be interrupted.

An effect that is alone in flight is performed here, because a task for each would cost more than the rest of an
iteration. If a consumer's task drives, this is a model request or a call of the loop's own, which can be repeated when
the consumer is cancelled; in a task that only drives, it may also be a tool.

Cancelling the driver's task would cancel the driver too. `InlineTask` instead cancels the one future that the effect is
suspended on, as cancelling a task of its own would: the effect sees a CancelledError at its await and runs its
`finally`. The driver's task does not await that future, but a second one, which is set when the first is done. If the
effect does not end, the driver can therefore stop waiting, and a task of its own performs the rest of the effect
(`hand_over`).

The effect has a context (`contextvars`) of its own, as in a task: a consumer may request each item in another task.

An effect that has an item to show to a consumer that pulls awaits `show()`: this suspends it until the consumer asks
for the next item.

The driver's task may be cancelled while it waits for an interrupted effect, for example because `asyncio.run` ends. The
effect gets this cancellation too, because it may be that of a time limit in its `finally`. It is performed to its end
nevertheless, and the task is cancelled then (`raise_if_cancelled`).
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
    """Let the consumer that pulls take the next item. Only in an effect that is performed by `InlineTask`."""
    yield _SHOW


def task_here() -> asyncio.Task[Any] | None:
    """Return the task that the caller runs in; None in a thread without an event loop, in which a sync tool runs."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def is_thrown_in(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return True if this error has ended the code of the task from outside; False if the code has raised it itself.

    Ctrl-C is raised in the main thread only, by Python's own handler or by that of a program; `asyncio.run` turns it
    into a cancellation. A GeneratorExit comes from outside if code of another task closes the coroutine.
    """
    if isinstance(error, KeyboardInterrupt):
        handler = signal.getsignal(signal.SIGINT)
        its_own = getattr(handler, "__code__", None)
        is_of_handler = any(frame.f_code is its_own for frame, _ in traceback.walk_tb(error.__traceback__))
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and (handler is signal.default_int_handler or is_of_handler)
    return isinstance(error, GeneratorExit) and (task is None or task_here() is not task)


class InlineTask:
    """Performs one effect at a time. `interrupt` ends it early; call it in the event loop that performs it."""

    def __init__(self) -> None:
        self._effect: Coroutine[Any, Any, None] | None = None
        self._waits_for: Any = None
        """The future that the effect is suspended on."""
        self._wakes: asyncio.Future[None] | None = None
        """The future that the driver waits for instead."""
        self._interrupted = False
        self._throw: BaseException | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._cancelled: tuple[asyncio.CancelledError, int] | None = None
        """The first cancellation of the driver's task that the effect has received, and the number of requests for
        cancelling this task before it."""
        self.is_late = False
        """Whether the effect was interrupted and has not ended in time."""
        self._run: Callable[..., Any] = copy_context().run

    @property
    def is_busy(self) -> bool:
        """Whether there is an effect that has not ended yet."""
        return self._effect is not None

    def interrupt(self, seconds: float | None = None) -> None:
        """Interrupt the effect, if there is one. A second call does nothing, so that the `finally` runs undisturbed.

        If it has not ended after `seconds`, `is_late` is set and `perform` returns.
        """
        if self._effect is not None and not self._interrupted:
            self._interrupted = True
            # As in a task: an effect that is not suspended on a pending future is interrupted when it continues.
            if self._waits_for is None or not self._waits_for.cancel():
                self._throw = asyncio.CancelledError()
            if seconds is not None:
                self._clock = asyncio.get_running_loop().call_later(seconds, self._note_late)

    def _note_late(self) -> None:
        self.is_late = True
        self._wake()

    def _wake(self, _: object = None) -> None:
        if self._wakes is not None and not self._wakes.done():
            self._wakes.set_result(None)

    @types.coroutine
    def perform(self, effect: Coroutine[Any, Any, None]) -> Generator[Any, Any, bool]:
        """Perform the effect up to its next item (`show`). Returns False if it has ended or is late."""
        if self._effect is not effect:
            self._begin(effect)
        error: BaseException | None = None
        while not self.is_late:
            if self._waits_for is not None:
                yield from self._wait(self._waits_for)
                continue
            if self._throw is not None:
                error, self._throw = self._throw, None
            try:
                suspended_on = self._run(effect.send, None) if error is None else self._run(effect.throw, error)
            except StopIteration:
                self._end()
                return False
            except asyncio.CancelledError:
                interrupted = self._interrupted
                self._end()
                if interrupted:  # its result is recorded by the code that has interrupted it
                    return False
                raise
            except BaseException:
                self._end()
                raise
            error = None
            if suspended_on is _SHOW:
                return True
            if _can_be_waited_for(suspended_on):
                suspended_on._asyncio_future_blocking = False  # as a task does when it awaits a future
                self._waits_for = suspended_on
                continue
            try:
                yield suspended_on  # None, if it lets the event loop take a turn
            except BaseException as thrown:  # the effect handles what the event loop throws in
                error = thrown
                self._note_cancelled(thrown)
        return False

    def _wait(self, future: Any) -> Generator[Any, Any, None]:
        """Wait until the future is done, or the effect is late."""
        while not future.done() and not self.is_late:
            self._wakes = asyncio.get_running_loop().create_future()
            future.add_done_callback(self._wake)
            try:
                yield from self._wakes
            except asyncio.CancelledError as error:  # the effect handles what the event loop throws in
                self._note_cancelled(error)
                # With its message, as a task does: anyio recognizes the cancellation of its own time limit by it.
                if not future.cancel(*error.args[:1]):
                    self._throw = error
                    break
            finally:
                future.remove_done_callback(self._wake)
                self._wakes = None
        if not self.is_late:
            self._waits_for = None

    def _note_cancelled(self, thrown: BaseException) -> None:
        if self._cancelled is None and isinstance(thrown, asyncio.CancelledError):
            task = task_here()
            self._cancelled = thrown, task.cancelling() - 1 if task is not None else 0

    def raise_if_cancelled(self) -> None:
        """Cancel the driver's task if it was cancelled while the last effect, which was interrupted, has ended.

        A time limit of the effect has cancelled the task too, but has withdrawn that.
        """
        if self._cancelled is not None:
            (error, earlier), self._cancelled = self._cancelled, None
            task = task_here()
            if task is not None and task.cancelling() > earlier:
                raise error

    def _begin(self, effect: Coroutine[Any, Any, None]) -> None:
        self._end()
        self._cancelled = None
        self._effect, self._run = effect, copy_context().run

    def _end(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        if not self._interrupted:  # the effect itself has raised its cancellation, or has handled it
            self._cancelled = None
        self._effect = self._waits_for = self._throw = self._clock = None
        self._interrupted = self.is_late = False

    async def close(self, seconds: float) -> None:
        """Interrupt the effect, if there is one, and wait until it has run its `finally` or is late."""
        if self._effect is not None:
            self.interrupt(seconds)
            while await self.perform(self._effect):
                pass

    def hand_over(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a function that performs the rest of the effect; it is called in a task of its own."""
        rest = InlineTask()
        effect, rest._effect, rest._run = self._effect, self._effect, self._run
        rest._waits_for, rest._throw, rest._interrupted = self._waits_for, self._throw, self._interrupted
        self._end()

        async def go_on() -> None:
            if effect is None:
                return
            while True:
                try:
                    while await rest.perform(effect):  # noqa: ASYNC110 - it performs, and does not poll
                        await asyncio.sleep(0)  # no consumer takes its items one by one any longer
                    return
                except asyncio.CancelledError:  # of this task: it is meant for the effect
                    if not rest.is_busy:
                        raise
                    rest.interrupt()

        return go_on


def _can_be_waited_for(suspended_on: Any) -> bool:
    """Return True if this is a future of this event loop that was awaited."""
    if not getattr(suspended_on, "_asyncio_future_blocking", False):
        return False
    return suspended_on.get_loop() is asyncio.get_running_loop()
