"""A thread for one tool: all its calls run there, one after the other, and nothing else does.

Some objects may be used only in the thread that has made them: connections of sqlite3, for one.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from agentnb.core.threads import carried, follow

_Work = tuple[Future[Any], Callable[[], Any]]


class OwnThread:
    """One thread, which begins with its first call and ends when nobody has this object any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._queue: SimpleQueue[_Work | None]

    def call(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call the function in the thread, in a copy of the caller's context."""
        future: Future[Any] = Future()
        work = partial(copy_context().run, carried, function)
        follow(future)
        with self._lock:
            if self._process != os.getpid():  # the first call, or the first in a process that was forked
                self._process, self._queue = os.getpid(), SimpleQueue()
                threading.Thread(target=_serve, args=(self._queue,), name="agentnb-own", daemon=True).start()
                weakref.finalize(self, self._queue.put, None)
            self._queue.put((future, work))
        return asyncio.wrap_future(future)


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    while _serve_one(queue):
        pass


def _serve_one(queue: SimpleQueue[_Work | None]) -> bool:
    """Wait for a call and perform it; False where there are no more.

    In a frame of its own: a thread that waits is not to hold on to what it has called last.
    """
    one = queue.get()
    if one is None:
        return False
    future, work = one
    del one
    if future.set_running_or_notify_cancel():
        try:
            result = work()
        except BaseException as error:
            del work
            future.set_exception(error)
            del future  # the error has this frame, and the frame is not to have the error
        else:
            del work  # whoever is told the result may count on it that the thread holds nothing of the call
            future.set_result(result)
    return True


_OF_OBJECTS: weakref.WeakKeyDictionary[Any, OwnThread] = weakref.WeakKeyDictionary()


def own_thread_of(function: Callable[..., Any]) -> OwnThread:
    """The thread of a tool; methods of one object share one, because they share what the object has."""
    of = getattr(function, "__self__", None)
    try:
        return _OF_OBJECTS.setdefault(of, OwnThread()) if of is not None else OwnThread()
    except TypeError:  # no such object can be a key
        return OwnThread()
