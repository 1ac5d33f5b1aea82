"""The table of runs: name, design, status, turns, calls, cost and time of each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import overload

from agentnb.notebook.stored_run import RecordedRun
from agentnb.notebook.stores import find_stores
from agentnb.run import Run, runs_here
from agentnb.store import RunInfo, Store
from agentnb.widgets.text import one_line, visible
from agentnb.widgets.views.status import status_word

SHOWN = 50
"""The maximum number of runs in a table. Each row takes time, because all events of its run are folded."""
WIDTH = 40
"""The maximum number of characters of a name, a design or a status."""

_rows: dict[tuple[str, int], ListedRun] = {}
"""The cached rows of recorded runs that have ended, by id and number of events."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run. `status` says what it does now or how it ended, `turns` its number of requests to models.

    `turns`, `calls` and `cost` include those of nested loops. `cost` is None if no model reported it, and excludes the
    cost inherited from the run that this one was forked from. `when` is in seconds since the epoch, 0.0 before the
    start.
    """

    name: str
    design: str
    status: str
    turns: int
    calls: int
    cost: float | None
    when: float
    id: str
    store: str

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the table's cells."""
        cost = "" if self.cost is None else f"{self.cost:.4f}"
        when = "not started"
        if self.when:
            try:
                when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.when))
            except (OverflowError, ValueError, OSError):  # not a valid date: older stores accepted any number
                when = f"{self.when:g} s"
        texts = (one_line(visible(text), WIDTH) for text in (self.name, self.design, self.status))
        return (*texts, str(self.turns), str(self.calls), cost, when)


COLUMNS = tuple(field.name for field in fields(ListedRun))[:7]
_NUMBERS = frozenset({"turns", "calls", "cost"})


class RunTable(Sequence[ListedRun]):
    """The table of runs; a notebook shows it as HTML.

    more: the number of older runs that are left out. places: the stores. unreadable: the errors of unreadable stores.
    """

    def __init__(self, rows: Sequence[ListedRun], more: int, places: Sequence[str], unreadable: Sequence[str]) -> None:
        self._rows = list(rows)
        self.more = more
        self.places = list(places)
        self.unreadable = list(unreadable)

    @overload
    def __getitem__(self, index: int) -> ListedRun: ...

    @overload
    def __getitem__(self, index: slice) -> list[ListedRun]: ...

    def __getitem__(self, index: int | slice) -> ListedRun | list[ListedRun]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def note(self) -> str:
        """The text below the table: the number of omitted runs, the stores, and the errors of unreadable stores."""
        more = f"and {self.more:,} older; " if self.more else ""
        where = f"from this kernel and {', '.join(self.places) or 'no store'}"
        return "; ".join([f"{more}{where}", *self.unreadable])

    def __repr__(self) -> str:
        if not self._rows:
            return visible(f"No runs ({self.note}).")
        lines = [COLUMNS, *(row.cells() for row in self._rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        aligned = []
        for line in lines:
            cells = zip(COLUMNS, line, widths, strict=True)
            parts = (text.rjust(width) if name in _NUMBERS else text.ljust(width) for name, text, width in cells)
            aligned.append("  ".join(parts).rstrip())
        return "\n".join([*aligned, visible(f"({self.note})")])

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<p>{escape(repr(self))}</p>"
        head = "".join(f"<th {_style(name)}>{name}</th>" for name in COLUMNS)
        rows = ""
        for row in self._rows:
            title = escape(f"id {row.id}, {visible(row.store)}", quote=True)
            cells = zip(COLUMNS, row.cells(), strict=True)
            columns = "".join(f"<td {_style(name)}>{escape(text)}</td>" for name, text in cells)
            rows += f'<tr title="{title}">{columns}</tr>'
        return (
            f'<table aria-label="Runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
            f"<p><small>{escape(visible(self.note))}</small></p>"
        )


def _style(column: str) -> str:
    return f'style="text-align: {"right" if column in _NUMBERS else "left"}"'


def runs(store: Store | str | Path | None = None) -> RunTable:
    """Return a table of the runs of this kernel and of the stores, newest first.

    store: a store or its path, to list only the runs in this store; without it, all open stores and all stores in the
    working directory (`*.db`). Raises RecordingMissing if the store's file does not exist, UsageError if it is not a
    store.
    """
    found, unreadable = find_stores(store)
    here, kept = runs_in(found, only=store is not None)
    # Collect the time of each run, and a function that makes its row, so that only the rows shown are computed.
    entries: list[tuple[float, Callable[[], ListedRun]]] = []
    times = _decreasing([run.state.started or run.clock() for run, _ in here])
    for (run, kept_in), when in zip(here, times, strict=True):
        entries.append((when, partial(_row_of, run, run.state.started or 0.0, kept_in or "in this kernel")))
    for one in found:
        stored = [info for at, info in kept if at is one]
        times = _decreasing([info.created for info in stored])
        entries += [(when, partial(_stored_row, one, info)) for when, info in zip(times, stored, strict=True)]
    entries.sort(key=lambda entry: entry[0], reverse=True)
    rows = [row() for _, row in entries[:SHOWN]]
    return RunTable(rows, max(0, len(entries) - SHOWN), [at.where for at in found], unreadable)


def _decreasing(times: Sequence[float]) -> list[float]:
    """Return the times of runs that are ordered newest first, corrected so that they never increase.

    Without the correction they would increase where the clock was set back between two runs.
    """
    return list(accumulate(reversed(times), max))[::-1]


def runs_in(found: Sequence[Store], *, only: bool) -> tuple[list[tuple[Run, str | None]], list[tuple[Store, RunInfo]]]:
    """Return the runs of this kernel, each with its store's address or None, and all other runs in the stores.

    found: the stores. only: leave out the runs of this kernel that are in none of them.
    """
    kept = [(at, info) for at in found for info in at.runs()]
    addresses = {info.id: at.where for at, info in kept}
    here = [(run, addresses.get(run.id)) for run in runs_here() if not only or run.id in addresses]
    ids = {run.id for run, _ in here}
    return here, [(at, info) for at, info in kept if info.id not in ids]


def _stored_row(store: Store, info: RunInfo) -> ListedRun:
    """Return the row of a recorded run. If its events cannot be read, its status is the error."""
    key = (info.id, info.events)
    row = _rows.get(key)
    if row is None:
        try:
            row = _row_of(RecordedRun(store, info), info.created, store.where)
        except Exception as error:  # a damaged run must not hide the others
            return ListedRun(
                info.name or info.id, info.loop, f"damaged: {error}", 0, 0, None, info.created, info.id, store.where
            )
        if info.stop_reason is not None:
            _rows[key] = row
    return row


def _row_of(run: Run | RecordedRun, when: float, store: str) -> ListedRun:
    state = run.state
    name, cost = run.name or run.id, state.own_usage.get("cost")
    return ListedRun(name, run.loop.kind(), status(run), state.requests, state.calls_started, cost, when, run.id, store)


def status(run: Run | RecordedRun) -> str:
    """Return the status of a run as a short text, for example its stop reason or the calls that wait for a person."""
    waiting = ", ".join(call.name for call in run.pending)
    if run.state.over or (isinstance(run, Run) and not waiting):
        return status_word(run)
    if waiting:
        return f"waiting for you: {waiting}"
    if run.state.failure is not None:
        return "model failed"
    # The store does not show if the run's process has been killed since.
    return "running a moment ago" if run.driven else f"interrupted in {run.phase}"
