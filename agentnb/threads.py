"""Threads for the user's sync functions, and what happens to threads in a forked process.

A thread cannot be ended from outside. If a call is abandoned, because it exceeded its time limit or its run was
cancelled, it continues in its thread, possibly for ever. This thread no longer counts: another takes its place, because
otherwise a server that hangs would use up all threads in the course of a week. It also does not keep the process from
exiting, as the threads of `concurrent.futures` would.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from agentnb.core.errors import THROWN_IN

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 256
"""The maximum number of functions that run simultaneously in this process. Threads start on demand and are kept."""
ABANDONED_SECONDS = 1.0
"""The seconds that the exit of the process waits for abandoned calls: enough to finish writing a file."""


def call_for_future(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function; convert a StopIteration to a RuntimeError, as a coroutine does.

    A future does not accept a StopIteration, so code that waits for the thread would wait for ever. A KeyboardInterrupt
    is converted too: it cannot be raised in a thread from outside, so it is the function's own failure, and must not
    stop the event loop that waits for the thread.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, *THROWN_IN) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


working_for: ContextVar[tuple[str, str, str] | None] = ContextVar("working_for", default=None)
"""The run, the path of a loop in it, and the call (or "" for the model) for which this code runs."""

_tracked: dict[Future[Any], tuple[str, str, str]] = {}
"""The functions in threads that have not ended, also abandoned ones, with what they run for (`working_for`)."""


def track(future: Future[Any]) -> None:
    """Record the call for which this function runs, the caller's one, until the function has ended."""
    if (work := working_for.get()) is not None:
        _tracked[future] = work
        future.add_done_callback(_forget)


def _forget(future: Future[Any]) -> None:
    _tracked.pop(future, None)


def unfinished_calls(run_id: str) -> dict[Future[Any], tuple[str, str]]:
    """Return the unfinished functions of this run, each with the path and the call that it runs for."""
    return {future: (path, id) for future, (run, path, id) in _tracked.copy().items() if run == run_id}


def forget_call(run_id: str, path: str, id: str) -> None:
    """Forget the functions that run for this call: it is reported elsewhere that they continue."""
    for future, work in _tracked.copy().items():
        if work == (run_id, path, id):
            _forget(future)


def reset_in_forks(forget: Callable[[], None]) -> None:
    """Call `forget` in every process that is forked from this one.

    multiprocessing forks by default on Linux before Python 3.14. Threads do not exist in the forked process, and code
    that waits for one there would wait for ever.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
        os.register_at_fork(after_in_child=forget)


def _nothing() -> None:
    """Do nothing, in place of the function of a started call, so that the call does not keep that function alive."""


class _Call(Future[Any]):
    """A call in a thread. Cancelling it while it runs abandons it."""

    def __init__(self, work: Callable[[], Any], abandon: Callable[[_Call], None]) -> None:
        super().__init__()
        self._work = work
        self._abandon = abandon

    def cancel(self) -> bool:
        """Cancel the call and return True if it has not begun; otherwise abandon it and return False."""
        if super().cancel():
            return True
        self._abandon(self)
        return False

    def perform(self) -> None:
        """Call the function, unless the call was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        work, self._work = self._work, _nothing
        try:
            result = work()
        except BaseException as error:
            del work
            self.set_exception(error)
            del self  # the error references this frame; without this, the frame would reference the error
        else:
            del work  # when the result is set, the thread must not keep any part of the call alive
            self.set_result(result)


class Threads:
    """A pool of threads for sync functions. Threads of abandoned calls do not count towards the limit `most`."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self.inline = False
        """True if functions are called immediately in the caller's own thread, for tests with virtual time."""
        self._forget()
        reset_in_forks(self._forget)
        atexit.register(self._end)

    def _forget(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._abandoned: set[_Call] = set()
        self._threads = self._idle = 0
        self._ends = False

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a thread, in a copy of the caller's context. While the process exits, no call begins.

        Raises RuntimeError if no thread can be started and none exists.
        """
        work: Callable[[], T] = partial(call_for_future, function, *args, **kwargs)
        call = _Call(partial(copy_context().run, work), self._abandon)
        track(call)
        if self.inline:
            call.perform()
            return call
        with self._condition:
            if not self._ends:
                self._waiting.append(call)
                try:
                    self._provide()
                except RuntimeError:  # the call is reported as failed, so it must not run later
                    self._waiting.remove(call)
                    _forget(call)
                    raise
        return call

    def _provide(self) -> None:
        """Wake an idle thread, or start a new one if the limit allows it."""
        if self._idle >= len(self._waiting):
            self._condition.notify()
        elif self._threads < self._most:
            self._threads += 1
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except RuntimeError:  # the system has no more threads: the existing ones take the waiting calls
                self._threads -= 1
                if not self._threads:
                    raise

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Wait for a call and perform it. Return False if it was abandoned meanwhile, which ends this thread.

        This is a method of its own so that a waiting thread does not keep its last call alive.
        """
        call = self._next()
        call.perform()
        with self._condition:
            self._running.discard(call)
            if call in self._abandoned:
                self._abandoned.discard(call)
                return False
        return True

    def _next(self) -> _Call:
        """Wait for the next call, and return it."""
        with self._condition:
            self._idle += 1
            while not self._waiting:
                self._condition.wait()
            self._idle -= 1
            call = self._waiting.popleft()
            self._running.add(call)
            return call

    def _abandon(self, call: _Call) -> None:
        with self._condition:
            if call in self._running and call not in self._abandoned:
                self._abandoned.add(call)
                self._threads -= 1
                if self._waiting:
                    self._provide()

    def _end(self) -> None:
        """Wait for running calls, as `concurrent.futures` does, but only for a short time for abandoned ones."""
        with self._condition:
            self._ends = True
            self._waiting.clear()
        while running := self._running - self._abandoned:
            wait(running, ABANDONED_SECONDS)  # then test again: some may have been abandoned meanwhile
        wait(set(self._abandoned), ABANDONED_SECONDS)


reset_in_forks(_tracked.clear)

THREADS = Threads(MAX_THREADS, "agentnb-call")
"""The threads of this process."""
