"""The host thread: agentnb's own thread, with an event loop that drives runs.

Outside a kernel, a run is driven in the event loop of the caller that awaits it. Inside a kernel, it is driven in the
event loop of the host thread, so that it outlives the cell that started it and a cell that blocks does not stop it
(ARCHITECTURE.md, 4. Promises). The same thread serves callers without an event loop, and `play()`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from agentnb.threads import reset_in_forks

T = TypeVar("T")
logger = logging.getLogger("agentnb")


def loop_here() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that the caller runs in; None in a thread without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call `function` in an event loop, from any thread. If the loop was closed, do nothing: no task can wait there."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Host:
    """A daemon thread with an event loop, started on first use."""

    def __init__(self) -> None:
        self._forget()
        reset_in_forks(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the thread. The first access starts the thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # The context carries IPython's parent header, so that output of the thread appears in the cell that
                # started it.
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run, args=(self._serve, self._loop), name="agentnb", daemon=True
                )
                thread.start()
                self._thread = thread.ident
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # raised by a task that a tool left behind; runs must continue
                logger.exception("Code called sys.exit() on agentnb's thread. The thread continues.")

    @property
    def thread(self) -> int | None:
        """The identifier of the thread; None if it has not been started."""
        return self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run the coroutine in the thread's event loop, and return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


host = Host()
