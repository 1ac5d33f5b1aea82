"""The line in the output of a cell that waits for a run: it says which call waits for a person.

The panel of the run may be far from the cell, and a cell that shows only `[*]` does not say that it waits for somebody.
The cell gets an empty element. The page (`widgets/page/bar.js`) writes the line into it while a call waits, so a saved
notebook keeps nothing of it. When the wait ends, the element is removed. A front end without a page that shows the run
gets no line, because it has a prompt (`notebook/keyboard.py`).
"""

from __future__ import annotations

import threading
import time
import uuid
from html import escape
from typing import TYPE_CHECKING, Any

from agentnb.notebook.kernel import in_kernel
from agentnb.widgets.comms import Audience
from agentnb.widgets.display import NOTHING

if TYPE_CHECKING:
    from agentnb.notebook.keyboard import Seen
    from agentnb.run.approvals.decisions import Decisions

PERIOD = 0.2
"""Seconds between two checks."""


class WaitingLine:
    """The line of one cell that waits for one run."""

    def __init__(self, decisions: Decisions, seen: Seen) -> None:
        """Create the line. `decisions`: of the run. `seen`: returns the audience of a run."""
        self._decisions = decisions
        self._seen = seen
        self._due = 0.0
        self._handle: Any = None  # of the output, once it is displayed

    def look(self) -> None:
        """Display the element if a call waits and a page shows the run. Called by the wait at each tick."""
        now = time.monotonic()
        if self._handle is not None or now < self._due:
            return
        self._due = now + PERIOD
        # Only the main thread is sure to be in the cell that waits.
        if threading.current_thread() is not threading.main_thread() or not in_kernel():
            return
        if self._seen(self._decisions.id) is Audience.ACTIVE and self._decisions.pending:
            from IPython.display import display

            empty = {**NOTHING, "text/html": f'<div data-agentnb-waits="{escape(str(self._decisions.id))}"></div>'}
            self._handle = display(empty, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]  # IPython's is untyped

    def remove(self) -> None:
        """Make the output empty."""
        if self._handle is not None:
            self._handle.update(NOTHING, raw=True)
