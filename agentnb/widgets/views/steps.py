"""The steps of a resampling: how often the samples of each differ from the recorded run, for the bars of its panel."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from agentnb.core.events import ModelStart
from agentnb.core.json import repair_text
from agentnb.studies.resampling import Resampling, StepSum
from agentnb.widgets.text import one_line
from agentnb.widgets.views.about import NAME
from agentnb.widgets.views.shares import interval

VALUES, VALUE = 6, 60
"""The maximum number of values whose share is offered, and of characters of each."""

logger = logging.getLogger("agentnb")


class Steps:
    """What the samples of each step have shown. The measure of the user is called in a thread of its own.

    changed: called without arguments, in that thread, when `data` has changed.
    """

    def __init__(self, drawn: Resampling, changed: Callable[[], object]) -> None:
        self._drawn = drawn
        self._changed = changed
        self._ended = -1  # the number of samples that had ended when `data` was made
        self._thread: threading.Thread | None = None
        self.data = steps_data(drawn, [])

    def follow(self) -> None:
        """Begin to measure the samples that have ended meanwhile, if there are some."""
        counts = self._drawn.counts
        ended = counts["done"] + counts["failed"]
        if ended == self._ended or (self._thread is not None and self._thread.is_alive()):
            return
        self._ended = ended
        self._thread = threading.Thread(target=self._measure, name="agentnb measure", daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        try:
            self.data = steps_data(self._drawn, self._drawn.step_sums())
        except Exception:
            # The thread has no caller. The bars stay as they are.
            logger.exception("The samples of %s could not be measured", self._drawn.name)
        finally:
            self._thread = None
            self._changed()


def step_name(step: ModelStart | StepSum) -> str:
    """Return the name of a step: its turn, after the name of its loop if that is a nested one."""
    loop = step.path.rpartition("/")[2]
    return one_line(repair_text(f"{loop} turn {step.turn}" if loop else f"turn {step.turn}"), NAME)


def steps_data(drawn: Resampling, sums: list[StepSum]) -> dict[str, Any]:
    """Return the steps of a resampling, each with the shares of its samples and their intervals.

    sums: of each step; if it is empty, nothing was measured yet.
    """
    found: Counter[str] = Counter()
    by_step = {step.at: Counter[str]() for step in sums}
    for step in sums:
        for value, number in step.values.items():
            by_step[step.at][value_in_words(value)] += number
        found += by_step[step.at]
    values = [text for text, _ in found.most_common(VALUES)]
    known = {step.at: step for step in sums}
    return {
        "run": one_line(repair_text(drawn.recording.name or drawn.recording.id[:8]), NAME),
        "until": drawn.until,
        "values": values,
        "steps": [
            _step(at, step, known.get(at), by_step.get(at, Counter()), values) for at, step in drawn.steps.items()
        ],
    }


def _step(at: int, step: ModelStart, known: StepSum | None, values: Counter[str], offered: list[str]) -> dict[str, Any]:
    n, flips = (known.n, known.flips) if known else (0, 0)
    total = values.total()
    return {
        "at": at,
        "name": step_name(step),
        "recorded": value_in_words(known.recorded) if known else "",
        "n": n,
        "failed": known.failed if known else 0,
        "flips": [flips, *interval(flips, n)],
        "total": total,
        "shares": [[values[text], *interval(values[text], total)] for text in offered],
    }


def value_in_words(value: Any) -> str:
    """Return a measured value on one line."""
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value)
    return one_line(repair_text(text), VALUE) or "empty"
