"""A page with the panel of a study in it, in headless Chromium, and no Jupyter. Otherwise as `pages.py`."""

from __future__ import annotations

import queue
from typing import Any

from agentnb.widgets import StudyPanel
from tests.widgets.pages import PanelPage

TRAITS = ("key", "parts", "study", "status", "pending", "decisions")


class RecordedStudyPanel(StudyPanel):
    """A panel whose messages to the page wait to be carried there."""

    def __init__(self, study: Any, **options: Any) -> None:
        self.outbox: queue.SimpleQueue[list[tuple[str, Any]]] = queue.SimpleQueue()
        super().__init__(study, **options)

    def send_state(self, key: Any = None) -> None:
        """The page gets the contents of one kernel message together."""
        names = {key} if isinstance(key, str) else set(TRAITS if key is None else key)
        self.outbox.put([(name, getattr(self, name)) for name in TRAITS if name in names])

    def send(self, content: Any, buffers: Any = None) -> None:
        self.outbox.put([("", content)])


class StudyPage(PanelPage):
    """`page/` on a page, with the panel of a study."""

    traits = TRAITS

    @property
    def grid(self) -> Any:
        """The table of the runs."""
        return self.page.get_by_role("treegrid", name="Runs")

    def rows(self) -> Any:
        """The visible rows of runs."""
        return self.grid.locator(".agentnb-run[data-kind]:not(.agentnb-run-heading):not(.agentnb-run-head)")
