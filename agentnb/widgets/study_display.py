"""Shows a study under a cell: a live panel on the page, and a static copy below it in the notebook file.

The copy is updated when the study has ended and after each cell. The live panel hides it while it is on the page. If no
person is present, there is no page: then only the copy is displayed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary, ref

from agentnb.run.headless import in_force
from agentnb.studies import Study
from agentnb.widgets.display import HIDDEN_ERROR, NOTHING, after_cells, display_panel, shows_text_only
from agentnb.widgets.static.study import plain_study, static_study
from agentnb.widgets.study_widget import StudyPanel

logger = logging.getLogger("agentnb")

_panels: WeakKeyDictionary[Study, ref[StudyPanel]] = WeakKeyDictionary()
"""The panel of each study. It refers to its study, so it must not be held here; while it is open, ipywidgets does."""


def study_panel(study: Study) -> StudyPanel:
    """Return the study's live panel; the same panel each time until it is closed."""
    known = _panels.get(study)
    live = known() if known is not None else None
    if live is None or live.comm is None:
        live = StudyPanel(study)
        _panels[study] = ref(live)
    return live


def study_inbox(study: Study) -> StudyPanel:
    """Return the questions of all runs of a study as a widget."""
    return StudyPanel(study, parts=["inbox"])


def present_study(study: Study) -> None:
    """Display the panel of a study, and below it the copy that the notebook file keeps."""
    if shows_text_only():
        print(plain_study(study))  # noqa: T201
        return
    live = StudyPanel(study) if in_force().absence is None else None
    if live is not None:
        display_panel(live)
    copy = _Copy(study, live)

    def after_cell() -> bool:
        copy.update()
        return study.is_running or (live is not None and live.comm is not None)

    def run_again() -> None:
        copy.stop()
        if live is not None:
            live.close_unseen()

    after_cells(after_cell, run_again)


class _Copy:
    """The copy of the panel of a study."""

    def __init__(self, study: Study, live: StudyPanel | None) -> None:
        from IPython.display import display

        self._study = study
        self._population = live.population if live is not None else None
        self._key = live.key if live is not None else ""
        self._shown: Any = None
        self._is_stopped = False
        self._context = copy_context()  # ipykernel finds the cell of an output by a context variable
        self._handle: Any = display(NOTHING, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]
        self.update()
        self._unwatch: Callable[[], object] = study.watch(self._look)
        self._was_running = study.is_running

    def update(self) -> None:
        """Show the current state of the study. If nothing has changed, nothing is sent."""
        study = self._study
        shown = (study.counts, study.is_running)
        if self._is_stopped or shown == self._shown:
            return
        self._shown = shown
        made = time.strftime("%Y-%m-%d at %H:%M:%S")
        note = f"State of {made}; the study was still running." if study.is_running else ""
        # The panel reads the runs of the store in a thread of its own; until it has, they are read here.
        known = self._population if self._population is not None and self._population.is_read else None
        page = static_study(study, known, note)
        if self._key:
            page = f'<div data-agentnb-copy="{self._key}">{page}{HIDDEN_ERROR}</div>'
        self._handle.update({"text/plain": plain_study(study), "text/html": page}, raw=True)

    def stop(self) -> None:
        """Leave the copy unchanged from now on: its output no longer exists."""
        self._is_stopped = True
        self._unwatch()

    def _look(self) -> None:
        """Update the copy when the study has ended. This is called on agentnb's own thread."""
        was_running, self._was_running = self._was_running, self._study.is_running
        if was_running and not self._was_running:
            try:
                self._context.run(self.update)
            except Exception:
                # The thread has no caller. The copy stays unchanged.
                logger.exception("The saved copy of the study %s could not be updated", self._study.name)
