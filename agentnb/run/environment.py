"""The environment of runs: how a caller waits for a run, and which package displays it.

In plain Python, a caller waits in its own event loop or blocks its thread. Inside a kernel, `agentnb.notebook` installs
an environment that processes clicks while a caller waits (see `agentnb.notebook.environment`). `agentnb.widgets`
displays runs. This module does not depend on Jupyter.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentnb.core.errors import UsageError
from agentnb.run.approvals.decisions import Decisions
from agentnb.run.host import call_in

STOPPED = "The run was cancelled with the cell. Its events are kept: agentnb.restore(run.snapshot(), loop) resumes it."
"""The message after Stop in a cell that waits for a run."""
STOPPED_STUDY = "The study was cancelled with the cell. study.start() continues each run from its last event."
"""The message after Stop in a cell that waits for a study."""
STOPPED_FOLLOWING = "The study is no longer followed here. The process that drives it goes on."
"""The message after Stop in a cell that waits for a study of another process."""
STEP_STOPPED = "The step continues in the background; wait for its end before the next one. run.cancel() ends the run."
"""The message after Stop in a cell that waits for a step."""


class Environment(Protocol):
    """The environment of agentnb: where runs are driven, and how a caller waits for a run.

    `hosted` is True if runs are driven on the host thread (`agentnb.run.host`). `asks` are the decisions of the run
    that the caller waits for: the questions of the run have to reach a person during the wait. If they cannot, a wait
    raises UsageError with the remedy.
    """

    hosted: bool

    def wait(
        self, future: concurrent.futures.Future[Any], timeout: float | None = None, asks: Decisions | None = None
    ) -> None:
        """Block until the future is done. Raises TimeoutError after `timeout` seconds, but not the future's error."""

    async def wait_async(self, future: concurrent.futures.Future[Any], asks: Decisions | None = None) -> None:
        """Wait until the future is done, without blocking. Does not raise the future's error."""

    def stopped(self, stop: BaseException, note: str) -> None:
        """Report that a waiting caller was stopped by `stop`. `note`: what has happened to the run or the step."""

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
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        future.add_done_callback(lambda _: call_in(loop, wake))
        await done

    def stopped(self, stop: BaseException, note: str) -> None:
        """Add the note to the exception; Python shows it with the traceback."""
        stop.add_note(note)

    def absence(self) -> str | None:
        """Return the reason in a script; None in an interpreter with a prompt."""
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return None
        return "this is a script, without a notebook or a prompt"


current: Environment = PlainPython()


def use_environment(new: Environment) -> None:
    """Replace the environment."""
    global current
    current = new


class Presenter(Protocol):
    """The interface of a package that displays runs; `agentnb.widgets` is one."""

    def panel(self, run: Any, parts: Sequence[str] | None = None) -> Any:
        """Return the panel of the run as a widget, with all parts or only these."""

    def present(self, run: Any) -> None:
        """Display the run in the output of the caller."""

    def study_panel(self, study: Any) -> Any:
        """Return the panel of a study as a widget."""

    def study_inbox(self, study: Any) -> Any:
        """Return the questions of all runs of a study as a widget."""

    def present_study(self, study: Any) -> None:
        """Display a study in the output of the caller."""

    def export_html(self, run: Any, path: str | os.PathLike[str]) -> Path:
        """Write the run into an HTML file, and return the path of the file."""


def _no_presenter() -> Presenter:
    raise UsageError("No package that displays runs is loaded; `import agentnb` loads one.")


presenter: Callable[[], Presenter] = _no_presenter


def use_presenter(find: Callable[[], Presenter]) -> None:
    """Display runs with the presenter that `find` returns.

    `find` is called only when a run is displayed, so that it can import the modules that it needs.
    """
    global presenter
    presenter = find
