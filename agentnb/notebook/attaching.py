"""Attaching: find runs after a reload of the page, in a second tab, or in a restarted kernel.

A run of this kernel is returned itself, and its panel has buttons. A run that is only in a store, because its kernel
has exited or because another process drives it, is returned read-only. `attach(name, loop)` resumes it in this kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, overload

from agentnb.core.errors import RecordingCorrupt, RecordingMissing, UsageError, printable
from agentnb.loops.base import Loop
from agentnb.notebook.commands import run_here
from agentnb.notebook.runs_table import RunTable, runs, runs_in, status
from agentnb.notebook.stored_run import RecordedRun
from agentnb.notebook.stores import find_run, find_stores, stores
from agentnb.run import Run, restore, runs_here
from agentnb.store import Store
from agentnb.widgets.text import one_line, visible

SHOWN = 8
"""The maximum number of panels that are shown. If there are more runs, a line has the number of the others."""


class Attached(Sequence["Run | RecordedRun"]):
    """The runs that were found. A notebook shows a panel for each; a recorded run has its status in a line above."""

    def __init__(self, found: Sequence[Run | RecordedRun], table: RunTable | None) -> None:
        self._found = list(found)
        self.table = table

    @overload
    def __getitem__(self, index: int) -> Run | RecordedRun: ...

    @overload
    def __getitem__(self, index: slice) -> list[Run | RecordedRun]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        if not self._found:
            return f"{self._empty_note} All runs:\n{self.table!r}"
        return "\n".join(map(headline, self._found))

    @property
    def _empty_note(self) -> str:
        table = self.table
        is_kept = table is not None and any(row.status == "cancelled" and row.store in table.places for row in table)
        # Jupyter interrupts a kernel before it restarts it, and an interrupt cancels the run that a cell waits for.
        how = " A cancelled run, for example after a restart of the kernel, resumes with agentnb.attach(name, loop)."
        return f"There are no unfinished runs.{how if is_kept else ''}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for run in self._found[:SHOWN]:
            if isinstance(run, RecordedRun):
                _display_line(*_headline(run))
            display(run)  # type: ignore[no-untyped-call]  # IPython's is untyped
        if not self._found:
            _display_line(f"{self._empty_note} All runs:")
            display(self.table)  # type: ignore[no-untyped-call]  # the same
        elif len(self._found) > SHOWN:
            _display_line(f"and {len(self._found) - SHOWN:,} more: agentnb.attach(name) shows one")


def _display_line(text: str, code: str = "") -> None:
    """Display a line of text, followed by code that the user can type."""
    from IPython.display import display

    typed = f" <code>{escape(visible(code))}</code>" if code else ""
    shown = {
        "text/plain": visible(f"{text} {code}".strip()),
        "text/html": f'<p style="margin: 4px 0">{escape(visible(text))}{typed}</p>',
    }
    display(shown, raw=True)  # type: ignore[no-untyped-call]  # IPython's is untyped


def headline(run: Run | RecordedRun) -> str:
    """Return one line with the name, the design and the status of a run, and the call that resumes a recorded run."""
    return " ".join(filter(None, _headline(run)))


def _headline(run: Run | RecordedRun) -> tuple[str, str]:
    """Return the text of the headline, and the code that resumes the run ("" if there is none)."""
    name = run.name or run.id
    text = visible(f"{one_line(name, 80)} ({run.loop.kind()}): {status(run)}")
    if not isinstance(run, RecordedRun):
        return text, ""
    text += f"; {len(run.events)} events in {run.store.where}, read only"
    can_resume = not run.state.over or run.stop_reason == "cancelled"
    return (f"{text}. To resume it:", f"agentnb.attach({name!r}, loop)") if can_resume else (f"{text}.", "")


@overload
def attach(name: None = None, loop: None = None, *, store: Store | str | Path | None = None) -> Attached: ...


@overload
def attach(name: str, loop: None = None, *, store: Store | str | Path | None = None) -> Run | RecordedRun: ...


@overload
def attach(
    name: str,
    loop: Loop,
    *,
    store: Store | str | Path | None = None,
    approve: Any = None,
    breakpoints: Sequence[Any] = (),
    limits: Mapping[str, float] | None = None,
) -> Run: ...


def attach(
    name: str | None = None,
    loop: Loop | None = None,
    *,
    store: Store | str | Path | None = None,
    **options: Any,
) -> Attached | Run | RecordedRun:
    """Find runs of this kernel and of the stores. If the call is the last line of a cell, each run is shown as a panel.

    Without `name`, return all runs that have not ended. With `name` (or id), return that run: the run of this kernel,
    or else the store's recording of it, read-only. With `name` and `loop`, return a new run that resumes the recorded
    one; it is paused until it is played, stepped or awaited. But if the run is in this kernel and has not ended, return
    it unchanged.

    store: a store or its path; None for all open stores and all stores in the working directory (`*.db`). approve,
    breakpoints, limits: as for `start`; only for a run that resumes.

    Raises RecordingMissing if the run does not exist (the message lists the runs), UsageError if the arguments do not
    fit together or `store` is not a store, and RecordingMismatch if the run was made by another kind of loop.
    """
    if name is None:
        if loop is not None or options:
            names = ", ".join(dict.fromkeys(row.name for row in runs(store))) or "none"
            raise UsageError(f"attach() needs the name of the run to resume: attach(name, loop). Runs: {names}.")
        return _all_open(store)
    if not isinstance(name, str):
        raise UsageError(f"name must be a run's name or id, got {name!r}. Pass a store as store=.")
    if loop is not None and not isinstance(loop, Loop):
        raise UsageError(f"loop must be a loop, the one that resumes the run, got {loop!r}.")
    live = run_here(name)
    if live is not None and (loop is None or not live.state.over):
        return live
    try:
        kept_in, info = find_run(name, find_stores(store))
    except RecordingMissing as error:
        here = ", ".join(dict.fromkeys(run.name or run.id for run in runs_here()))
        raise RecordingMissing(f"{error} In this kernel: {here or 'none'}.") from None
    if loop is None:
        if options:
            names = ", ".join(options)
            raise UsageError(
                f"Without a loop the run is read-only and cannot use {names}. Pass the loop too:"
                f" attach({name!r}, loop, ...)."
            )
        return RecordedRun(kept_in, info)
    return restore(kept_in.load(info.id), loop, store=kept_in, name=info.name, **options)


def _all_open(store: Store | str | Path | None) -> Attached:
    """Return all runs that have not ended, of this kernel and of the stores."""
    here, kept = runs_in(stores(store), only=store is not None)
    found: list[Run | RecordedRun] = [run for run, _ in here if not run.state.over]
    for kept_in, info in kept:
        if info.stop_reason is None and info.events:
            try:
                found.append(RecordedRun(kept_in, info))
            except RecordingCorrupt as error:
                warnings.warn(f"The run {printable(info.name or info.id)} is not shown: {error}", stacklevel=3)
    return Attached(found, runs(store) if not found else None)
