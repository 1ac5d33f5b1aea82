"""Shows a run under a cell: live while it runs, static once it has ended.

A saved notebook must be readable without a kernel, and a front end that finds a widget in an output shows nothing else,
not even the HTML next to it, when the widget's kernel has exited. So the output is displayed under an id. A moment
after the run has ended and the page has received its last batch, the same output is replaced by the static panel alone.
Until then a copy is displayed below it (`display.SavedCopy`).

Not every page receives the replacement: one that was loaded again and a second tab do not know the id, and a page of
Voila is drawn once. There the panel stays live; it is closed when no page shows it any longer.

If a cell is run again before its run has ended, the output of the run is lost. Its panel is closed as well, once no
page shows it: a kernel lives for a week, and a cell is run a hundred times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from agentnb.run import Replay
from agentnb.run.headless import in_force
from agentnb.run.recording import Recording
from agentnb.widgets.display import SavedCopy, after_cells, display_panel, display_with_copy, print_in_terminal
from agentnb.widgets.static.panel import plain_text, static_html
from agentnb.widgets.widget import Panel, parts_of

FREEZE_AFTER = 1.0
"""Seconds between the last batch and the replacement, so that a person sees the end arrive."""

logger = logging.getLogger("agentnb")

_panels: WeakKeyDictionary[Any, WeakValueDictionary[tuple[str, ...], Panel]] = WeakKeyDictionary()
"""By run. A panel refers to its run, so it must not be held here; while it is open, ipywidgets holds it."""


def panel(run: Recording, parts: Sequence[str] | None = None) -> Panel:
    """Return the run's live panel, whole or of these parts; the same panel each time until it is closed."""
    chosen = parts_of(run, parts)
    panels = _panels.setdefault(run, WeakValueDictionary())
    live = panels.get(chosen)
    if live is None or live.comm is None:
        live = panels[chosen] = Panel(run, parts=chosen)
    return live


def present(run: Recording) -> None:
    """Display the run's panel under the current cell. A run that has ended is shown static; `run.panel()` is live."""
    from IPython.display import display

    if print_in_terminal(run):
        return
    is_replay = isinstance(run, Replay)
    if is_replay and in_force().absence is None:
        _present_replay(run)
    elif run.state.over or is_replay:
        display(_static(run), raw=True)  # type: ignore[no-untyped-call]  # IPython's is untyped
    else:
        _present_until_over(run)


def _present_replay(run: Recording) -> None:
    live = Panel(run)
    copy = display_with_copy(live)

    def after_cell() -> bool:
        copy.update()
        return live.comm is not None

    def run_again() -> None:
        copy.stop()
        live.close_unseen()

    after_cells(after_cell, run_again)


def _present_until_over(run: Recording) -> None:
    live = Panel(run)
    handle = display_panel(live)
    copy = SavedCopy(run, live.key)
    context = copy_context()  # ipykernel finds the cell of an output by a context variable

    def freeze() -> None:
        handle.update(_static(run), raw=True)
        copy.remove()
        live.close_unseen()

    def freeze_in_its_cell() -> None:
        try:
            context.run(freeze)
        except Exception:
            # A timer has no caller. The live panel stays in place.
            logger.exception("The panel of run %s could not be frozen", run.id)

    def freeze_soon() -> None:
        timer = threading.Timer(FREEZE_AFTER, freeze_in_its_cell)
        timer.daemon = True
        timer.start()

    live.when_over(freeze_soon)

    # nbclient accepts an update of an output only from the cell that runs; the timer's would be lost there.
    def after_cell() -> bool:
        if run.state.over:
            freeze()
            return False
        copy.update()
        return True

    def run_again() -> None:
        copy.stop()
        live.close_unseen()

    after_cells(after_cell, run_again)


def _static(run: Recording) -> dict[str, str]:
    return {"text/plain": plain_text(run), "text/html": static_html(run)}
