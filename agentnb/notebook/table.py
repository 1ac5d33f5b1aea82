"""Runs as a table: name, design, where each stands, turns, calls, cost, when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import overload

from agentnb.notebook.recorded import RecordedRun
from agentnb.notebook.stores import look
from agentnb.run import Run, runs_here
from agentnb.store import RunInfo, Store
from agentnb.widgets.text import one_line, visible
from agentnb.widgets.views.status import status_word

SHOWN = 50
"""Runs in a table; each is folded from its events to be told of."""
WIDTH = 40
"""Characters of a name, or of where a run stands."""

_rows: dict[tuple[str, int], Row] = {}
"""Of runs that are over nothing changes: their rows are kept, by id and number of events."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run. `turns` are requests to a model, loops inside included; `cost` None where no model told it."""

    name: str
    design: str
    stands: str
    turns: int
    calls: int
    cost: float | None
    when: float
    id: str
    store: str

    def cells(self) -> tuple[str, ...]:
        """What the table shows of it."""
        cost = "" if self.cost is None else f"{self.cost:.4f}"
        when = _date(self.when) if self.when else "not begun"
        told = (self.name, self.design, self.stands)
        return (*(one_line(visible(text), WIDTH) for text in told), str(self.turns), str(self.calls), cost, when)


def _date(when: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    except (OverflowError, ValueError, OSError):  # no date that there is: an older store took any number
        return f"{when:g} s"


COLUMNS = tuple(field.name for field in fields(Row))[:7]
_NUMBERS = frozenset({"turns", "calls", "cost"})


class RunTable(Sequence[Row]):
    """Rows to be read, in a notebook as HTML; `more` runs are not in it, nor those of stores that are `unreadable`."""

    def __init__(self, rows: Sequence[Row], more: int, places: Sequence[str], unreadable: Sequence[str]) -> None:
        self._rows = list(rows)
        self.more = more
        self.places = list(places)
        self.unreadable = list(unreadable)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def note(self) -> str:
        """What stands below the table."""
        more = f"and {self.more:,} older; " if self.more else ""
        said = f"{more}from this kernel and {', '.join(self.places) or 'no store'}"
        return "; ".join([said, *self.unreadable])

    def __repr__(self) -> str:
        if not self._rows:
            return visible(f"No runs ({self.note}).")
        lines = [COLUMNS, *(row.cells() for row in self._rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        return "\n".join([*(_aligned(line, widths) for line in lines), visible(f"({self.note})")])

    def _repr_html_(self) -> str:
        if not self._rows:
            return f"<p>{escape(repr(self))}</p>"
        head = "".join(f"<th {_style(name)}>{name}</th>" for name in COLUMNS)
        rows = "".join(map(_html_row, self._rows))
        return (
            f'<table aria-label="Runs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
            f"<p><small>{escape(visible(self.note))}</small></p>"
        )


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = zip(COLUMNS, line, widths, strict=True)
    parts = (text.rjust(width) if name in _NUMBERS else text.ljust(width) for name, text, width in cells)
    return "  ".join(parts).rstrip()


def _style(column: str) -> str:
    return f'style="text-align: {"right" if column in _NUMBERS else "left"}"'


def _html_row(row: Row) -> str:
    title = escape(f"id {row.id}, {visible(row.store)}", quote=True)
    cells = zip(COLUMNS, row.cells(), strict=True)
    told = "".join(f"<td {_style(name)}>{escape(text)}</td>" for name, text in cells)
    return f'<tr title="{title}">{told}</tr>'


def runs(store: Store | str | Path | None = None) -> RunTable:
    """The runs of this kernel and of the stores, newest first, as a table.

    store: a store or the path of one; without it all that are open, and those that lie in the working directory as
    `*.db`. Raises RecordingMissing or UsageError where the given one is none.
    """
    found, unreadable = look(store)
    here, kept = runs_in(found, only=store is not None)
    entries: list[tuple[float, Callable[[], Row]]] = []
    begun = _never_back([run.state.started or run.clock() for run, _ in here])
    for (run, place), began in zip(here, begun, strict=True):
        entries.append((began, partial(_row_of, run, run.state.started or 0.0, place or "in this kernel")))
    for one in found:
        stored = [info for at, info in kept if at is one]
        made = _never_back([info.created for info in stored])
        entries += [(when, partial(_recorded_row, one, info)) for when, info in zip(made, stored, strict=True)]
    entries.sort(key=lambda entry: entry[0], reverse=True)
    rows = [row() for _, row in entries[:SHOWN]]
    return RunTable(rows, max(0, len(entries) - SHOWN), [at.where for at in found], unreadable)


def _never_back(times: Sequence[float]) -> list[float]:
    """Times, newest first, of what is in that order, whatever became of the clock in between."""
    return list(accumulate(reversed(times), max))[::-1]


def runs_in(found: Sequence[Store], *, only: bool) -> tuple[list[tuple[Run, str | None]], list[tuple[Store, RunInfo]]]:
    """The kernel's runs, each with where it is stored (`only`: those that are), and what is stored of all others."""
    kept = [(at, info) for at in found for info in at.runs()]
    places = {info.id: at.where for at, info in kept}
    here = [(run, places.get(run.id)) for run in runs_here() if not only or run.id in places]
    lives = {run.id for run, _ in here}
    return here, [(at, info) for at, info in kept if info.id not in lives]


def _recorded_row(store: Store, info: RunInfo) -> Row:
    key = (info.id, info.events)
    row = _rows.get(key)
    if row is None:
        try:
            row = _row_of(RecordedRun(store, info), info.created, store.where)
        except Exception as error:  # whatever its events say, it hides no other
            return Row(
                info.name or info.id, info.loop, f"damaged: {error}", 0, 0, None, info.created, info.id, store.where
            )
        if info.stop_reason is not None:
            _rows[key] = row
    return row


def _row_of(run: Run | RecordedRun, when: float, place: str) -> Row:
    state = run.state
    name, cost = run.name or run.id, state.own_usage.get("cost")
    return Row(name, run.loop.kind(), where(run), state.requests, state.calls_started, cost, when, run.id, place)


def where(run: Run | RecordedRun) -> str:
    """Where a run stands, in some words: why it is over, whom it waits for, whether it goes on."""
    waiting = ", ".join(call.name for call in run.pending)
    if run.state.over or (isinstance(run, Run) and not waiting):
        return status_word(run)
    if waiting:
        return f"waiting for you: {waiting}"
    if run.state.failure is not None:
        return "model failed"
    # Its process may have been killed since: nobody can tell from a store.
    return "running a moment ago" if run.driven else f"left off in {run.phase}"
