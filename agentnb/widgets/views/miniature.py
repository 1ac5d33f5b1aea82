"""A run in miniature: its figures, and a strip of marks, followed event by event.

The strip has a mark for each model request, each call, each question to a person and each failure of the model. Its
clock counts only the seconds in which the agent worked (`Figures`), so that a night in which a person was waited for
has no width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentnb.widgets.views.spans import Figures

MODEL, CALL, QUESTION, FAILURE, FAILED_CALL = range(5)
"""The kinds of marks."""
OPEN = -1.0
"""The seconds of what has not ended."""
MARKS = 400
"""The maximum number of marks of a strip. Those after it are counted, and not drawn."""


class Miniature:
    """The figures of a run, and the marks of its strip.

    marks: each with its kind, its turn (from 0), the working second in which it began, and its seconds; of a question
    these are the seconds that a person took. figures: the times and the counts of the run.
    """

    def __init__(self) -> None:
        self.position = 0
        self.figures = Figures()
        self.tokens = 0.0
        self.own_began = 0.0  # of a fork: the time of its first event that it did not inherit
        self.marks: list[list[float]] = []
        self.loop = ""
        self.reason: str | None = None
        self.output: Any = None
        self._working: dict[tuple[str, str], list[float]] = {}
        self._asked: dict[tuple[str, str], tuple[list[float], float]] = {}

    def follow(self, events: Iterable[Any]) -> None:
        """Take the events after those that were taken before."""
        for event in events:
            self._take(event)

    @property
    def turns(self) -> int:
        """The number of requests to models."""
        return self.figures.turns

    @property
    def calls(self) -> int:
        """The number of tool calls."""
        return self.figures.calls

    @property
    def began(self) -> float:
        """The time of the first event, in seconds since the epoch; 0.0 without events."""
        return self.figures.began or 0.0

    @property
    def last(self) -> float:
        """The time of the newest event."""
        return self.figures.last

    @property
    def seconds(self) -> float:
        """The seconds in which the agent worked."""
        return self.figures.seconds

    @property
    def waited(self) -> float:
        """The seconds in which at least one question was open."""
        return self.figures.waited

    def strip(self) -> list[float]:
        """Return the marks in one list, four numbers for each."""
        return [
            number
            for kind, turn, start, seconds in self.marks[:MARKS]
            for number in (kind, turn, round(start, 3), round(seconds, 3))
        ]

    def _take(self, event: Any) -> None:
        if self.figures.goes_on(event):  # what its process had in flight has ended when it exited
            for key in list(self._working):
                self._end(key)
        self.figures.take(event)
        if not event.inherited and not self.own_began:
            self.own_began = event.time
        self.position += 1
        self.reason = None  # a run that was cancelled goes on from there

        match event.type:
            case "run_start":
                self._start_loop(event)
            case "model_start":
                self._begin(MODEL, (event.path, ""))
            case "model_end":
                self.tokens += sum(event.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))
                self._end((event.path, ""))
            case "model_error":
                self.tokens += sum(event.usage.get(name, 0) for name in ("input_tokens", "output_tokens"))
                self._end((event.path, ""))
                self._mark(FAILURE, 0.0)
            case "call_start":
                self._begin(CALL, (event.path, event.call_id))
            case "call_end":
                mark = self._end((event.path, event.call_id))
                if mark is not None and event.is_error:
                    mark[0] = FAILED_CALL
            case "approval_request":
                self._asked[event.path, event.call_id] = self._mark(QUESTION, OPEN), event.time
            case "approval_decision" if (event.path, event.call_id) in self._asked:
                asked, since = self._asked.pop((event.path, event.call_id))
                asked[3] = event.time - since
            case "run_end" if not event.path:
                self.reason, self.output = event.reason, event.output
                for key in list(self._working):
                    self._end(key)
                for asked, since in self._asked.values():
                    asked[3] = event.time - since
                self._asked.clear()
            case _:
                pass

    def _start_loop(self, event: Any) -> None:
        """Note the outermost loop. The call that a nested loop performs is not drawn: its requests and calls are."""
        if not event.path:
            self.loop = event.loop
            return
        performed = self._working.pop((event.path.rpartition("/")[0], event.call), None)
        if performed is not None:
            self.marks.remove(performed)

    def _mark(self, kind: int, seconds: float) -> list[float]:
        mark = [kind, max(0, self.turns - 1), self.seconds, seconds]
        self.marks.append(mark)
        return mark

    def _begin(self, kind: int, key: tuple[str, str]) -> None:
        self._working[key] = self._mark(kind, OPEN)

    def _end(self, key: tuple[str, str]) -> list[float] | None:
        mark = self._working.pop(key, None)
        if mark is not None:
            mark[3] = self.seconds - mark[2]
        return mark
