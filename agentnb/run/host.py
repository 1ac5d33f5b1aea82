"""Where runs live, and how a caller waits for one.

Outside a kernel a run is driven by whoever awaits it, in their event loop. Inside a kernel it lives on a thread and an
event loop of agentnb's own, so that it outlives the cell that started it and a cell that blocks does not stop it
(ARCHITECTURE.md, 4. Promises). The same thread serves callers without an event loop, and `play()`.

`environment` is the seam: `agentnb.notebook` puts its own in place when it finds itself in a kernel, because waiting
there has to let clicks in (see `agentnb.notebook.gate`). Nothing here knows of Jupyter.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentnb.core.errors import UsageError
from agentnb.core.threads import forgotten_in_a_fork

if TYPE_CHECKING:
    from agentnb.run.approvals.decisions import Decisions

T = TypeVar("T")
logger = logging.getLogger("agentnb")


STOPPED = (
    "The run is cancelled with the cell. What it did is kept: agentnb.restore(run.snapshot(), loop) goes on from there."
)
"""What Stop in a cell that waits for a run has done."""
STEP_STOPPED = "The step goes on to its end in the background, and another can begin then. run.cancel() ends the run."
"""What Stop in a cell that waits for a step has done."""


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call it in that event loop, from any thread. One that was closed meanwhile has nobody left who waits for it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Environment(Protocol):
    """Where agentnb runs: whether runs live on the host thread, and how a caller waits.

    `asks` is the run that is waited for, whose questions have to reach a person meanwhile. Where they cannot, a wait
    raises UsageError, which says what to do.
    """

    hosted: bool

    def wait(
        self, future: concurrent.futures.Future[Any], timeout: float | None = None, asks: Decisions | None = None
    ) -> None:
        """Block until the future is done. Raises TimeoutError when the time is up, nothing of the future's own."""

    async def wait_async(self, future: concurrent.futures.Future[Any], asks: Decisions | None = None) -> None:
        """Await until the future is done; raises nothing of the future's own."""

    def stopped(self, stop: BaseException, words: str) -> None:
        """Whoever waited was stopped, and with it what they waited for: `words` say so beside `stop`."""

    def absence(self) -> str | None:
        """Why nobody can be asked here, in words; None where somebody may be there."""


class PlainPython:
    """Outside a kernel and a shell: whoever starts a run there has said who decides."""

    hosted = False

    def wait(
        self, future: concurrent.futures.Future[Any], timeout: float | None = None, asks: Decisions | None = None
    ) -> None:
        """Block until the future is done. Raises TimeoutError when the time is up."""
        if not concurrent.futures.wait([future], timeout).done:
            raise TimeoutError

    async def wait_async(self, future: concurrent.futures.Future[Any], asks: Decisions | None = None) -> None:
        """Await until the future is done, in any event loop."""
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        future.add_done_callback(lambda _: call_in(loop, wake))
        await done

    def stopped(self, stop: BaseException, words: str) -> None:
        """Python tells it, with its traceback."""
        stop.add_note(words)

    def absence(self) -> str | None:
        """A script has nobody; an interpreter with a prompt has."""
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return None
        return "this is a script, without a notebook or a prompt"


class Host:
    """One daemon thread with an event loop, started when it is first needed."""

    def __init__(self) -> None:
        self._forget()
        forgotten_in_a_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The thread's event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # The context carries IPython's parent header: output made over there belongs to the cell that started
                # it.
                context = contextvars.copy_context()
                thread = threading.Thread(
                    target=context.run, args=(self._serve, self._loop), name="agentnb", daemon=True
                )
                thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # a task that a tool has left behind; the runs go on
                logger.exception("Something called sys.exit() on agentnb's thread, which goes on")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run the coroutine over there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


host = Host()
environment: Environment = PlainPython()


class Presenter(Protocol):
    """What shows a run to a person; `agentnb.widgets` is one."""

    def panel(self, run: Any, parts: Sequence[str] | None = None) -> Any:
        """The run's panel, as a widget: whole, or of these parts."""

    def present(self, run: Any) -> None:
        """Show the run where the caller's output goes."""


def _no_presenter() -> Presenter:
    raise UsageError("Nothing here can show a run; `import agentnb` brings what can.")


presenter: Callable[[], Presenter] = _no_presenter


def use_presenter(find: Callable[[], Presenter]) -> None:
    """Show runs with what `find` gives; it is asked when a run is first shown, so that it may import what it needs."""
    global presenter
    presenter = find


def use_environment(new: Environment) -> None:
    """Put another environment in place; runs made from now on use it."""
    global environment
    environment = new
