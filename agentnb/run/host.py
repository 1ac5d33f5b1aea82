"""Where runs live, and how a caller waits for one.

Outside a kernel a run is driven by whoever awaits it, in their event loop. Inside a kernel it lives on a thread and an
event loop of agentnb's own, so that it outlives the cell that started it and a cell that blocks does not stop it
(DESIGN, promise 8). The same thread serves callers without an event loop, and `play()`.

`environment` is the seam: `agentnb.notebook` puts its own in place when it finds itself in a kernel, because waiting
there has to let clicks in (see `agentnb.notebook.gate`). Nothing here knows of Jupyter.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Environment(Protocol):
    """Where agentnb runs: whether runs live on the host thread, and how a caller waits."""

    hosted: bool

    def wait(self, future: concurrent.futures.Future[Any], timeout: float | None = None) -> None:
        """Block until the future is done or the time is up; raises nothing of the future's own."""

    async def wait_async(self, future: concurrent.futures.Future[Any]) -> None:
        """Await until the future is done; raises nothing of the future's own."""


class PlainPython:
    """Outside a kernel."""

    hosted = False

    def wait(self, future: concurrent.futures.Future[Any], timeout: float | None = None) -> None:
        concurrent.futures.wait([future], timeout)

    async def wait_async(self, future: concurrent.futures.Future[Any]) -> None:
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        future.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
        await done


class Host:
    """One daemon thread with an event loop, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # The context carries IPython's parent header: output made over there belongs to the cell that started it.
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run, args=(self._serve, self._loop), name="agentnb", daemon=True
                )
                thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run the coroutine over there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


host = Host()
environment: Environment = PlainPython()


def use_environment(new: Environment) -> None:
    """Put another environment in place; runs made from now on use it."""
    global environment
    environment = new
