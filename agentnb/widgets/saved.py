"""The copy of a live panel that the notebook file keeps.

A front end shows a widget and nothing else of its output, and where the widget's kernel is gone it shows an error. A
run that still waits when the notebook is saved would then be lost to readers. So the static panel stands in an output
of its own below the live one, is brought up to date whenever the run comes to rest and after each cell, and is hidden
for as long as the live panel is on the page: that one brings the rule that hides it (`page/panel.js`), and takes it
away with it.

A page that was loaded again does not know the outputs' ids, and so takes neither news of the copy nor, when the run is
over, the frozen panel in its place. So the copy says when it was made, and what shows the run as it stands now.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from contextvars import copy_context
from typing import Any

from agentnb.run import Replay
from agentnb.run.recording import Recording
from agentnb.widgets.frozen.panel import SMALL, plain_text, static_html
from agentnb.widgets.text import one_line
from agentnb.widgets.views.standing import standing

REST = 2.0
"""Seconds from news to looking whether the run is at rest."""
NOTHING = {"text/plain": ""}

logger = logging.getLogger("agentnb")


class SavedCopy:
    """The copy of one panel, displayed below it; `key` is the panel's."""

    def __init__(self, run: Recording, key: str, *, to_the_end: bool = False) -> None:
        """to_the_end: nobody freezes the panel when the run is over, so the copy is brought up to that too."""
        from IPython.display import display

        self._run, self._key, self._to_the_end = run, key, to_the_end
        self._told: tuple[str, int, bool] = ("", -1, False)
        self._timer: threading.Timer | None = None
        self._is_left = False
        self._is_due = threading.Lock()  # held from news to the look; whoever brings more does not wait for it
        self._sending = threading.Lock()  # not held while the page is drawn, which takes its time
        self._context = copy_context()  # ipykernel finds the cell an output belongs to by a context variable
        self._handle: Any = display(NOTHING, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]
        self._stop = run.watch(self._news)
        self._news()

    def bring_up_to_date(self) -> None:
        """Make it the run as it stands now; without news nothing is sent."""
        departs = self._run.diverged is not None
        told = (standing(self._run), len(self._run.events), departs)
        over = bool(self._run.state.over)
        with self._sending:
            if self._is_left or told == self._told or (over and not self._to_the_end):
                return
            self._told = told
        name = one_line(str(self._run.name or self._run.id), 80)
        is_replay = isinstance(self._run, Replay)
        since = f"As it stood on {time.strftime('%Y-%m-%d at %H:%M:%S')}. agentnb.attach({name!r}) shows it anew."
        page = static_html(self._run, bounds=SMALL, note="" if over or is_replay else since)
        page = f'<div data-agentnb-copy="{self._key}">{page}</div>'
        bundle = {"text/plain": plain_text(self._run), "text/html": page}
        with self._sending:
            if self._told is told and not self._is_left:  # else a later one is being drawn, or none is wanted any more
                self._handle.update(bundle, raw=True)

    def stop(self) -> None:
        """Leave it as it is: its output is gone."""
        self._stop()
        with self._sending:
            self._is_left = True
        if (timer := self._timer) is not None:
            timer.cancel()

    def remove(self) -> None:
        """Leave nothing of it: the panel above is frozen."""
        self.stop()
        self._handle.update(NOTHING, raw=True)

    def _news(self, *_: object) -> None:
        if self._is_due.acquire(blocking=False):
            self._timer = timer = threading.Timer(REST, self._look)
            timer.daemon = True
            timer.start()

    def _look(self) -> None:
        self._timer = None
        self._is_due.release()
        if isinstance(self._run, Replay) or standing(self._run) not in ("running", "pausing", "cancelling"):
            try:
                self._context.run(self.bring_up_to_date)
            except Exception:
                # A timer has no caller. The copy stays as it was.
                logger.exception("The saved copy of run %s could not be brought up to date", self._run.id)
