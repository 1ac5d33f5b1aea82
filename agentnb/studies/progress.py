"""The progress of a study: one line with a bar, in a notebook or in a terminal, as of tqdm.

In a notebook it is an output of the cell that starts the study. The output is updated while the study runs, and a saved
notebook keeps its last text. In a terminal the line is rewritten. A log file gets a line for each tenth of the runs and
for each minute.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Any

from agentnb.core.errors import printable

PERIOD = 0.1
"""The seconds between a change and the update of the line, which shows all changes until then."""
WIDTH = 30
"""The number of characters of the bar in a terminal."""

LOG_SECONDS = 60.0
"""The seconds after which a log file gets a line if the counts have changed."""
LOG_REST = 1.0
"""The shortest time between two lines of a log file."""

_WORDS = {
    "running": "running",
    "waiting": "waiting for you",
    "paused": "paused",
    "failed": "failed",
    "cancelled": "cancelled",
}


def summary(counts: Mapping[str, int], total: int) -> str:
    """Return the counts as text: `58 of 60 done, 1 waiting for you, 1 failed`."""
    parts = [f"{counts['done']:,} of {total:,} done"]
    parts += [f"{counts[status]:,} {words}" for status, words in _WORDS.items() if counts[status]]
    return ", ".join(parts)


class ProgressLine:
    """The line of one study. It is created in the thread of the cell, and updated in any thread."""

    def __init__(self, name: str, total: int, ended: int, display: Any = None) -> None:
        """`ended` is the number of runs that ended before, which do not count for the speed. `display`: for tests."""
        self._name = name
        self._total = total
        self._ended_before = ended
        self._began = time.monotonic()
        self._width = 0
        self._lock = threading.Lock()
        self._handle: Any = display or _notebook_display()
        self._is_terminal = self._handle is None and _is_terminal()
        self._logged_at, self._logged_part = self._began, 10 * ended // max(total, 1)

    def update(self, counts: Mapping[str, int], *, note: str = "", last: bool = False) -> None:
        """Show these counts. note: what follows them. last: end the line."""
        with self._lock, suppress(Exception):  # a front end that is gone must not stop the study
            self._draw(counts, note, last=last)

    def _draw(self, counts: Mapping[str, int], note: str, *, last: bool) -> None:
        ended = counts["done"] + counts["failed"]
        text = f"{summary(counts, self._total)} · {self._times(ended, last=last)}{f' · {note}' if note else ''}"
        if self._handle is None and not self._is_terminal:
            self._log(text, 10 * ended // max(self._total, 1), last=last)
            return
        if self._handle is not None:
            bar = f'<progress value="{ended}" max="{self._total}" aria-label="progress of the study"></progress>'
            html = f'<div style="margin: 4px 0">{escape(printable(self._name))} {bar} {escape(text)}</div>'
            self._handle.update({"text/html": html, "text/plain": f"{printable(self._name)}: {text}"}, raw=True)
            return
        filled = WIDTH * ended // max(self._total, 1)
        line = f"{printable(self._name)}: |{'█' * filled}{' ' * (WIDTH - filled)}| {text}"
        padding = " " * max(0, self._width - len(line))  # the rest of a longer line before
        self._width = len(line)
        sys.stderr.write(f"\r{line}{padding}" + "\n" * last)
        sys.stderr.flush()

    def _log(self, text: str, part: int, *, last: bool) -> None:
        """Write a line if a tenth of the runs has ended since the one before, or a minute has passed."""
        now = time.monotonic()
        since = now - self._logged_at
        if last or since >= LOG_SECONDS or (part > self._logged_part and since >= LOG_REST):
            self._logged_at, self._logged_part = now, part
            sys.stderr.write(f"{printable(self._name)}: {text}\n")
            sys.stderr.flush()

    def _times(self, ended: int, *, last: bool) -> str:
        """Return the time since the start and, while runs are left, the estimated rest, as tqdm writes them."""
        passed = time.monotonic() - self._began
        new, left = ended - self._ended_before, self._total - ended
        if last or not new or not left:
            return _clock(passed)
        return f"{_clock(passed)}<{_clock(passed / new * left)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _notebook_display() -> Any:
    """Return the handle of a new output in the current cell; None outside of a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)  # type: ignore[no-untyped-call]  # IPython's is


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # stderr may be missing or closed
        return False
