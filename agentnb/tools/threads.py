"""Threads for the functions of tools: the pool, which grows with the calls, or a thread for one tool."""

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

from agentnb.core.maybe_async import listed, settled
from agentnb.threads import THREADS, call_for_future, track

_Work = tuple[Future[Any], Callable[[], Any]]
CallInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def call_in_pool(function: Callable[[], Any]) -> Awaitable[Any]:
    """Call the function in a thread of the pool."""
    return asyncio.wrap_future(THREADS.call(function))


async def in_thread(function: Callable[[], Any], call: CallInThread = call_in_pool) -> Any:
    """Call the function in a thread, and return its result.

    A coroutine that it returns is awaited in the event loop. The items of a generator are collected into a list.
    """
    return await listed(await settled(await call(function)), call)


class OwnThread:
    """A thread for the calls of one tool, which run there one after the other.

    Some objects may be used only in the thread that created them, such as connections of sqlite3. The thread starts
    with the first call, and ends when this object is garbage-collected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._queue: SimpleQueue[_Work | None]

    def call(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call the function in the thread, in a copy of the caller's context."""
        future: Future[Any] = Future()
        work = partial(copy_context().run, call_for_future, function)
        track(future)
        with self._lock:
            if self._process != os.getpid():  # the first call, or the first call after a fork of the process
                self._process, self._queue = os.getpid(), SimpleQueue()
                threading.Thread(target=_serve, args=(self._queue,), name="agentnb-own", daemon=True).start()
                weakref.finalize(self, self._queue.put, None)
            self._queue.put((future, work))
        return asyncio.wrap_future(future)


def _serve(queue: SimpleQueue[_Work | None]) -> None:
    while _serve_one(queue):
        pass


def _serve_one(queue: SimpleQueue[_Work | None]) -> bool:
    """Wait for a call and perform it. Return False if the thread has to end.

    This is a function of its own so that the waiting thread holds no reference to its last call.
    """
    item = queue.get()
    if item is None:
        return False
    future, work = item
    del item
    if future.set_running_or_notify_cancel():
        try:
            result = work()
        except BaseException as error:
            del work
            future.set_exception(error)
            del future  # break the cycle: the error refers to this frame, and the frame would refer to the error
        else:
            del work  # before the result is set: from then on, the thread must hold nothing of the call
            future.set_result(result)
    return True


_THREADS_OF_OBJECTS: weakref.WeakKeyDictionary[Any, OwnThread] = weakref.WeakKeyDictionary()


def own_thread_of(function: Callable[..., Any]) -> OwnThread:
    """Return the thread for a tool. Methods of one object share a thread, because they share the object's state."""
    owner = getattr(function, "__self__", None)
    try:
        return _THREADS_OF_OBJECTS.setdefault(owner, OwnThread()) if owner is not None else OwnThread()
    except TypeError:  # the object cannot be a key: it is not hashable, or allows no weak references
        return OwnThread()
