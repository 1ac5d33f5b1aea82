"""Branches: the runs of this process that were forked from a run, as the page gets them.

Runs forked in the panel and runs forked in code are found in the same way: `RunStart.forked_from` names the run and the
event. A branch has a thin lane under the strip of its parent. Its bars are given on the parent's clock: they begin at
the moment of the fork, and what lies between them is left out, because a branch may run a week later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

from agentnb.core.events import Delta, Event, RunStart
from agentnb.core.json import repair_text
from agentnb.run import Recording
from agentnb.run.past.fork import ancestors_of
from agentnb.run.run import Run, runs_here, watch_runs
from agentnb.widgets.text import brief, one_line
from agentnb.widgets.views.short import in_short
from agentnb.widgets.views.spans import Spans
from agentnb.widgets.views.status import status_word

SHOWN = 20
"""The maximum number of branches that a page gets: the newest."""
BARS = 100
"""The maximum number of bars of a branch; with more, neighbours are joined."""
PAUSE = 0.3
"""The minimum number of seconds between two readings of a run's branches."""
ANSWER = 24
"""The maximum number of characters of an answer that is shown as the outcome of a branch."""


class Branches:
    """The branches of a run. `changed` is called, in any thread, when `data` may return something else."""

    def __init__(self, run: Recording, changed: Callable[[], object]) -> None:
        self._run = run
        self._changed = changed
        self._lock = threading.Lock()
        self._found: dict[str, _Branch] = {}
        self._due = 0.0
        self._last: list[dict[str, Any]] = []
        self._is_changed = self._is_closed = False
        self._stop = watch_runs(self._note)
        for one in reversed(runs_here()):
            self._note(one)

    def close(self) -> None:
        """Stop watching for branches."""
        self._is_closed = True
        self._stop()

    def find(self, id: str) -> Run | None:
        """Return the branch with this run id; None if there is none, or if nothing in this process refers to it."""
        branch = self._found.get(id)
        return branch.run() if branch is not None else None

    def names(self) -> set[str]:
        """Return the names of the branches."""
        with self._lock:
            return {run.name or run.id for branch in self._found.values() if (run := branch.run()) is not None}

    @property
    def is_due(self) -> bool:
        """True if something has changed that `data` has not returned yet."""
        return self._is_changed

    def touch(self) -> None:
        """Read the branches again, for example because one was renamed."""
        self._is_changed = True
        self._changed()

    def data(self) -> list[dict[str, Any]]:
        """Return the branches, oldest first. They are read at most once in `PAUSE`."""
        started = time.monotonic()
        if not self._is_changed or started < self._due:
            return self._last
        self._is_changed = False
        with self._lock:  # not while the runs are read, which takes their locks
            found = [(branch, run) for branch in self._found.values() if (run := branch.run()) is not None]
        numbers = range(max(1, len(found) - SHOWN + 1), len(found) + 1)
        self._last = [
            branch.data(run, self._run, number) for number, (branch, run) in zip(numbers, found[-SHOWN:], strict=True)
        ]
        self._due = time.monotonic() + max(PAUSE, 10 * (time.monotonic() - started))
        return self._last

    def _note(self, run: Run) -> None:
        """Note a run, if it is a branch."""
        start = run.events[0] if run.events else None
        if not isinstance(start, RunStart) or start.forked_from.rpartition("@")[0] != self._run.id:
            return
        branch = _Branch(run, start, self._gone)
        with self._lock:
            self._found[run.id] = branch
        # The function that unsubscribes would keep the run alive. So the watcher stays, and does nothing in the end.
        these = ref(self)

        def receive(news: Event | Delta | None) -> None:
            listed = these() if not isinstance(news, Delta) else None
            if listed is not None and not listed._is_closed:
                listed.touch()

        run.watch(receive)
        self.touch()

    def _gone(self, _: object) -> None:
        """Note that nothing refers to a branch any more."""
        self._is_changed = True


class _Branch:
    """One branch. It is not kept alive by this, but by whoever works with it."""

    def __init__(self, run: Run, start: RunStart, gone: Callable[[object], object]) -> None:
        self.run = ref(run, gone)
        at = start.forked_from.rpartition("@")[2]
        self.at = int(at) if at.isdecimal() else 0
        ancestors = ancestors_of(start)
        self.inherited = ancestors[-1][1] if ancestors else 0
        self._spans = Spans()

    def data(self, run: Run, parent: Recording, number: int) -> dict[str, Any]:
        """Return the branch as the page gets it."""
        events, pending = run.events, run.pending
        self._spans.follow(events, len(events))
        origin = parent.recording[self.at] if self.at < len(parent.recording) else parent.recording[-1]
        return {
            "id": str(run.id),
            "number": number,
            "name": one_line(repair_text(str(run.name or run.id)), 80),
            "at": self.at,
            "standing": status_word(run),
            "waiting": len(pending),
            "asks": f"{pending[0].name}({in_short(pending[0].arguments, {})})" if pending else "",
            "over": bool(run.state.over),
            "outcome": outcome(run, parent),
            "events": len(events),
            "began": origin.time,
            "bars": list(self._bars(origin.time)),
        }

    def _bars(self, began: float) -> Iterator[list[Any]]:
        """Return what worked after the fork: the kind, the start and the end on the parent's clock, one after another.

        Work at the same time has bars at the same time.
        """
        work = sorted(
            (one.start, one.end if one.end is not None else self._spans.last, span.kind)
            for span in self._spans.all
            if span.kind == "model" or (span.kind == "call" and not span.performed)
            for one in span.intervals
            if one.kind == "run" and one.position >= self.inherited
        )
        smallest = sum(end - start for start, end, _ in work) / BARS if len(work) > BARS else 0.0
        left_out, busy_until = 0.0, None
        last: list[Any] | None = None
        for start, end, kind in work:
            if busy_until is None:
                left_out = start - began
            elif start > busy_until:
                left_out += start - busy_until
            busy_until = end if busy_until is None else max(busy_until, end)
            bar = [kind, round(start - left_out, 4), round(max(start, end) - left_out, 4)]
            if last is not None and last[0] == kind and bar[2] - last[1] < smallest:
                last[2] = max(last[2], bar[2])
                continue
            if last is not None:
                yield last
            last = bar
        if last is not None:
            yield last


def outcome(run: Recording, parent: Recording) -> str:
    """Return how far a branch is, or how it ended, in at most four words."""
    state = run.state
    if not state.over:
        word = status_word(run)
        if word in ("not started", "paused") and not state.paused:
            return "not playing"
        return "waits for you" if word == "waiting for you" else word
    if run.stop_reason != "completed":
        reason = str(run.stop_reason)
        turns = f"stopped at {state.turn} turns"
        return {"error": "failed", "max_turns": turns, "limit": "stopped at a limit"}.get(
            reason, reason.replace("_", " ")
        )
    whole = parent.recording[-1] if parent.recording else None
    theirs = getattr(whole, "output", None) if whole is not None and whole.terminal else None
    if theirs is not None and theirs == run.output:
        return "the same answer"
    if isinstance(run.output, str) and 0 < len(run.output) <= ANSWER and len(run.output.split()) <= 4:
        return brief(repair_text(run.output), ANSWER)
    return "another answer" if theirs is not None else "done"
