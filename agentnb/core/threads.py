"""Threads: where sync functions of the user's run, and what becomes of threads in a process that is forked.

Nothing ends a thread from outside. A call that nobody waits for any more, because it took longer than it may or because
its run was cancelled, goes on in its thread, and may do so for ever. Such a thread is counted no more: another takes
its place, or a server that hangs would in the course of a week take them all. And a process is not kept from its end by
it, as by the threads of `concurrent.futures`.
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
"""Functions that run at once in this process; threads are made when they are needed and then kept."""
GIVEN_UP_SECONDS = 1.0
"""How long the end of the process waits for calls that were given up: what writes a file is soon done."""


def carried(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function; a StopIteration becomes a RuntimeError, as a coroutine's own does.

    No future takes a StopIteration, so whoever waits for the thread would wait for ever. A KeyboardInterrupt becomes
    one too: none comes into a thread from outside, so it is the function's own failure, and is not to stop the event
    loop that waits for it.
    """
    try:
        return function(*args, **kwargs)
    except (StopIteration, *THROWN_IN) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


working_for: ContextVar[tuple[str, str, str] | None] = ContextVar("working_for", default=None)
"""What the code here works for: a run, the path of a loop in it, and a call of that, or "" for its model."""

_unfinished: dict[Future[Any], tuple[str, str, str]] = {}
"""The functions in threads that have not ended, with what they work for; also those that nobody waits for any more."""


def follow(future: Future[Any]) -> None:
    """Note that this function works for what the caller works for, until it has ended."""
    if (work := working_for.get()) is not None:
        _unfinished[future] = work
        future.add_done_callback(_forget)


def _forget(future: Future[Any]) -> None:
    _unfinished.pop(future, None)


def unfinished(run_id: str) -> dict[Future[Any], tuple[str, str]]:
    """Return the functions that have not ended and work for this run, with the path and the call of each."""
    return {future: (path, id) for future, (run, path, id) in _unfinished.copy().items() if run == run_id}


def let_go(run_id: str, path: str, id: str) -> None:
    """Forget the functions that work for this: it is told elsewhere that they go on."""
    for future, work in _unfinished.copy().items():
        if work == (run_id, path, id):
            _forget(future)


def forgotten_in_a_fork(forget: Callable[[], None]) -> None:
    """Call `forget` in every process that is forked from this one (multiprocessing's way on Linux below Python 3.14).

    Threads do not go with it, and what believes in one would wait for it for ever.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        os.register_at_fork(after_in_child=forget)


def _nothing() -> None:
    """What is left of a call that was made."""


class _Call(Future[Any]):
    """A call in a thread. To cancel it while it runs is to give it up."""

    def __init__(self, work: Callable[[], Any], give_up: Callable[[_Call], None]) -> None:
        super().__init__()
        self._work = work
        self._give_up = give_up

    def cancel(self) -> bool:
        """Cancel it where it has not begun; gives whether that was so."""
        if super().cancel():
            return True
        self._give_up(self)
        return False

    def perform(self) -> None:
        """Call, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        work, self._work = self._work, _nothing
        try:
            result = work()
        except BaseException as error:
            del work
            self.set_exception(error)
            del self  # the error has this frame, and the frame is not to have the error
        else:
            del work  # whoever is told the result may count on it that the thread holds nothing of the call
            self.set_result(result)


class Threads:
    """Threads for sync functions, `most` at once beside those whose call was given up."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self.inline = False
        """Whether functions are called at once in the caller's own thread. For tests in which time is virtual."""
        self._forget()
        forgotten_in_a_fork(self._forget)
        atexit.register(self._end)

    def _forget(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._given_up: set[_Call] = set()
        self._threads = self._idle = 0
        self._ends = False

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call the function in a thread, in a copy of the caller's context; as the process ends nothing begins."""
        work: Callable[[], T] = partial(carried, function, *args, **kwargs)
        call = _Call(partial(copy_context().run, work), self._give_up)
        follow(call)
        if self.inline:
            call.perform()
            return call
        with self._condition:
            if not self._ends:
                self._waiting.append(call)
                try:
                    self._provide()
                except RuntimeError:  # what the caller is told has failed is not to run later
                    self._waiting.remove(call)
                    _forget(call)
                    raise
        return call

    def _provide(self) -> None:
        if self._idle >= len(self._waiting):
            self._condition.notify()
        elif self._threads < self._most:
            self._threads += 1
            try:
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            except RuntimeError:  # the system has no more of them: those that there are take what waits
                self._threads -= 1
                if not self._threads:
                    raise

    def _serve(self) -> None:
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Wait for a call and perform it; False where it was given up meanwhile, and with it this thread.

        In a frame of its own: a thread that waits is not to hold on to what it has called last.
        """
        call = self._next()
        call.perform()
        with self._condition:
            self._running.discard(call)
            if call in self._given_up:
                self._given_up.discard(call)
                return False
        return True

    def _next(self) -> _Call:
        with self._condition:
            self._idle += 1
            while not self._waiting:
                self._condition.wait()
            self._idle -= 1
            call = self._waiting.popleft()
            self._running.add(call)
            return call

    def _give_up(self, call: _Call) -> None:
        with self._condition:
            if call in self._running and call not in self._given_up:
                self._given_up.add(call)
                self._threads -= 1
                if self._waiting:
                    self._provide()

    def _end(self) -> None:
        """Wait for what runs, as `concurrent.futures` does, but not for long where nobody else does."""
        with self._condition:
            self._ends = True
            self._waiting.clear()
        while running := self._running - self._given_up:
            wait(running, GIVEN_UP_SECONDS)  # and look again: some may be given up meanwhile
        wait(set(self._given_up), GIVEN_UP_SECONDS)


forgotten_in_a_fork(_unfinished.clear)

THREADS = Threads(MAX_THREADS, "agentnb-call")
"""Those of this process."""
