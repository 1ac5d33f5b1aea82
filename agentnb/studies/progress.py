"""The progress of a study: one line with a bar, in a notebook or in a terminal, as of tqdm.

In a notebook it is an output of the cell that starts the study. The output is updated while the study runs, and a saved
notebook keeps its last text. In a terminal the line is rewritten. A script whose output is not a terminal gets no line.
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

_WORDS = {"running": "running", "waiting": "waiting for you", "failed": "failed", "cancelled": "cancelled"}


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

    def update(self, counts: Mapping[str, int], *, last: bool = False) -> None:
        """Show these counts. last: end the line."""
        if self._handle is not None or self._is_terminal:
            with self._lock, suppress(Exception):  # a front end that is gone must not stop the study
                self._draw(counts, last=last)

    def _draw(self, counts: Mapping[str, int], *, last: bool) -> None:
        ended = counts["done"] + counts["failed"]
        text = f"{summary(counts, self._total)} · {self._times(ended, last=last)}"
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
