"""Displays under a cell: the output of a panel, the copy that the notebook file keeps, and what happens after cells.

A front end shows a widget and nothing else of its output, and if the widget's kernel has exited it shows an error. A
run that still waits when the notebook is saved would be lost to readers. So the static panel has an output of its own
below the live one. It is updated whenever the run comes to rest and after each cell, and is hidden while the live panel
is on the page: the live panel brings the rule that hides it (`page/panel.js`), and removes it when it goes.

A page that was loaded again does not know the ids of the outputs. It receives neither updates of the copy nor, when the
run has ended, the static panel that replaces the live one. So the copy has a note with the time of its last update and
the code that shows the current state.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Protocol

from agentnb.run import Recording, Replay
from agentnb.widgets.static.panel import plain_text, static_html
from agentnb.widgets.text import one_line
from agentnb.widgets.views.status import status_word

REST = 2.0
"""Seconds from an event to the check whether the run is at rest."""
NOTHING = {"text/plain": ""}
HIDDEN_ERROR = (
    "<style>.jp-OutputArea-child:has(+ .jp-OutputArea-child [data-agentnb-copy] > .agentnb-static) > "
    ".jupyter-widgets:not(:has(*)){display:none}</style>"
)
"""Above the copy of a live panel JupyterLab says that the widget's model is not found; the copy says more."""

logger = logging.getLogger("agentnb")


class Displayed(Protocol):
    """A panel that can be displayed."""

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]: ...


class LivePanel(Displayed, Protocol):
    """The panel of a run."""

    run: Recording
    key: Any
    comm: Any


class SavedCopy:
    """The copy of one panel, displayed below it. `key` is the panel's.

    to_the_end: update the copy also when the run has ended, because the panel is not replaced by a static one then.
    """

    def __init__(self, run: Recording, key: str, *, to_the_end: bool = False) -> None:
        from IPython.display import display

        self._run, self._key, self._to_the_end = run, key, to_the_end
        self._shown: tuple[str, int, bool] = ("", -1, False)
        self._timer: threading.Timer | None = None
        self._is_stopped = False
        self._is_due = threading.Lock()  # held from an event to the check; further events do not wait for it
        self._sending = threading.Lock()  # not held while the page is drawn, which takes time
        self._context = copy_context()  # ipykernel finds the cell of an output by a context variable
        self._handle: Any = display(NOTHING, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]
        self._unwatch = run.watch(self._check_soon)
        self._check_soon()

    def update(self) -> None:
        """Show the current state of the run. If nothing has changed, nothing is sent."""
        shown = (status_word(self._run), len(self._run.events), self._run.diverged is not None)
        over = bool(self._run.state.over)
        with self._sending:
            if self._is_stopped or shown == self._shown or (over and not self._to_the_end):
                return
            self._shown = shown
        name = one_line(str(self._run.name or self._run.id), 80)
        made = time.strftime("%Y-%m-%d at %H:%M:%S")
        since = f"State of {made}. agentnb.attach({name!r}) shows the current state."
        note = "" if over or isinstance(self._run, Replay) else since
        page = f'<div data-agentnb-copy="{self._key}">{static_html(self._run, note)}{HIDDEN_ERROR}</div>'
        with self._sending:
            if self._shown is shown and not self._is_stopped:  # otherwise a later state is being drawn
                self._handle.update({"text/plain": plain_text(self._run), "text/html": page}, raw=True)

    def stop(self) -> None:
        """Leave the copy unchanged from now on: its output no longer exists."""
        self._unwatch()
        with self._sending:
            self._is_stopped = True
        if (timer := self._timer) is not None:
            timer.cancel()

    def remove(self) -> None:
        """Make the output empty: the panel above has become static."""
        self.stop()
        self._handle.update(NOTHING, raw=True)

    def _check_soon(self, *_: object) -> None:
        if self._is_due.acquire(blocking=False):
            self._timer = timer = threading.Timer(REST, self._check)
            timer.daemon = True
            timer.start()

    def _check(self) -> None:
        self._timer = None
        self._is_due.release()
        if isinstance(self._run, Replay) or status_word(self._run) not in ("running", "pausing", "cancelling"):
            try:
                self._context.run(self.update)
            except Exception:
                # A timer has no caller. The copy stays unchanged.
                logger.exception("The saved copy of run %s could not be updated", self._run.id)


def display_live(panel: LivePanel) -> None:
    """Display a panel that stays live when its run has ended; the copy below it shows the end."""
    if print_in_terminal(panel.run):
        return
    copy = display_with_copy(panel)

    def after_cell() -> bool:
        copy.update()
        return panel.comm is not None and not panel.run.state.over

    after_cells(after_cell, copy.stop)


def display_with_copy(panel: LivePanel) -> SavedCopy:
    """Display a panel, and a copy below it that is updated also when the run has ended."""
    display_panel(panel)
    return SavedCopy(panel.run, panel.key, to_the_end=True)


def display_panel(panel: Displayed) -> Any:
    """Display a panel, and return the handle of its output."""
    from IPython.display import display

    bundle, _ = panel._repr_mimebundle_()
    bundle = {**bundle, "text/html": "", "text/plain": ""}  # a front end without widgets shows the copy below
    return display(bundle, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]  # IPython's is untyped


def print_in_terminal(run: Recording) -> bool:
    """If the front end shows text only, print the run and return True."""
    if not shows_text_only():
        return False
    print(plain_text(run))  # noqa: T201
    return True


def shows_text_only() -> bool:
    """Return True if the front end shows text only: IPython in a terminal."""
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell is not None and type(shell.display_pub) is DisplayPublisher


def after_cells(each: Callable[[], bool], run_again: Callable[[], object]) -> None:
    """Call `each` after every cell while it returns True; then `run_again`, if the current cell is run again.

    Only a front end that gives ids to its cells can tell that a cell is run again.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return

    def running() -> tuple[str | None, str | None]:
        """Return the cell that runs, and which execution of it this is."""
        request = shell.get_parent() if hasattr(shell, "get_parent") else {}
        return request.get("metadata", {}).get("cellId"), request.get("header", {}).get("msg_id")

    cell, execution = running()

    def after_cell(*_: object) -> None:
        now, current = running()
        is_again = cell is not None and now == cell and current != execution
        if is_again or not each():
            shell.events.unregister("post_run_cell", after_cell)
        if is_again:
            run_again()

    shell.events.register("post_run_cell", after_cell)
