"""The host thread, and the environment: which event loop drives a run, and how a caller waits for it.

Outside a kernel, a run is driven in the event loop of the caller that awaits it. Inside a kernel, it is driven in an
event loop on agentnb's own thread, so that it outlives the cell that started it and a cell that blocks does not stop it
(ARCHITECTURE.md, 4. Promises). The same thread serves callers without an event loop, and `play()`.

`environment` can be replaced: inside a kernel, `agentnb.notebook` installs one that processes clicks while a caller
waits (see `agentnb.notebook.comm_gate`). This module does not depend on Jupyter.
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
from agentnb.threads import forgotten_in_a_fork

if TYPE_CHECKING:
    from agentnb.run.approvals.decisions import Decisions

T = TypeVar("T")
logger = logging.getLogger("agentnb")


STOPPED = (
    "The run is cancelled with the cell. What it did is kept: agentnb.restore(run.snapshot(), loop) goes on from there."
)
"""The message after Stop in a cell that waits for a run."""
STEP_STOPPED = "The step goes on to its end in the background, and another can begin then. run.cancel() ends the run."
"""The message after Stop in a cell that waits for a step."""


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call `function` in an event loop, from any thread. If the loop was closed, do nothing: no task can wait there."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


class Environment(Protocol):
    """The environment of agentnb: `hosted` is True if runs are driven on the host thread; and how a caller waits.

    `asks` are the decisions of the run that the caller waits for: its questions have to reach a person meanwhile. If
    they cannot, a wait raises UsageError with the remedy.
    """

    hosted: bool

    def wait(
        self, future: concurrent.futures.Future[Any], timeout: float | None = None, asks: Decisions | None = None
    ) -> None:
        """Block until the future is done. Raises TimeoutError after `timeout` seconds, but not the future's error."""

    async def wait_async(self, future: concurrent.futures.Future[Any], asks: Decisions | None = None) -> None:
        """Wait until the future is done, without blocking. Does not raise the future's error."""

    def stopped(self, stop: BaseException, words: str) -> None:
        """Report that a waiting caller was stopped by `stop`. `words`: the effect on the run or the step."""

    def absence(self) -> str | None:
        """Return the reason why no person can be asked here; None if a person may be present."""


class PlainPython:
    """The environment outside a kernel and an IPython shell: a run is driven in the event loop of its caller."""

    hosted = False

    def wait(
        self, future: concurrent.futures.Future[Any], timeout: float | None = None, asks: Decisions | None = None
    ) -> None:
        """Block until the future is done. Raises TimeoutError after `timeout` seconds."""
        if not concurrent.futures.wait([future], timeout).done:
            raise TimeoutError

    async def wait_async(self, future: concurrent.futures.Future[Any], asks: Decisions | None = None) -> None:
        """Wait until the future is done, in any event loop."""
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        future.add_done_callback(lambda _: call_in(loop, wake))
        await done

    def stopped(self, stop: BaseException, words: str) -> None:
        """Add `words` as a note to the exception, which Python shows with the traceback."""
        stop.add_note(words)

    def absence(self) -> str | None:
        """Return the reason in a script; None in an interpreter with a prompt."""
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return None
        return "this is a script, without a notebook or a prompt"


class Host:
    """A daemon thread with an event loop, started on first use."""

    def __init__(self) -> None:
        self._forget()
        forgotten_in_a_fork(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

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
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):  # raised by a task that a tool left behind; runs must continue
                logger.exception("Something called sys.exit() on agentnb's thread, which goes on")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run the coroutine in the thread's event loop, and return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


host = Host()
environment: Environment = PlainPython()


class Presenter(Protocol):
    """The interface of a package that displays runs; `agentnb.widgets` is one."""

    def panel(self, run: Any, parts: Sequence[str] | None = None) -> Any:
        """Return the panel of the run as a widget, with all parts or only these."""

    def present(self, run: Any) -> None:
        """Display the run in the output of the caller."""


def _no_presenter() -> Presenter:
    raise UsageError("Nothing here can show a run; `import agentnb` brings what can.")


presenter: Callable[[], Presenter] = _no_presenter


def use_presenter(find: Callable[[], Presenter]) -> None:
    """Display runs with the presenter that `find` returns.

    `find` is called only when a run is displayed, so that it can import the modules that it needs.
    """
    global presenter
    presenter = find


def use_environment(new: Environment) -> None:
    """Replace the environment."""
    global environment
    environment = new
