"""Shows a run under a cell: a live panel on the page, a static one in the notebook file.

A saved notebook must be readable without a kernel, and a front end that finds a widget in an output shows nothing else,
not even the HTML next to it, when the widget's kernel has exited. So the output is displayed under an id. A moment
after the run has ended and the page has received its last batch, the same output is replaced by the static panel alone.
Until then a copy is displayed below it (`display.SavedCopy`).

On the page, the live panel then moves next to the static one and hides it (`page/ended.js`). It stays live while a page
shows it, and is closed when no page shows it any longer. Of many ended runs, only the panels of the last `KEPT` stay
live: a panel needs memory in the kernel and on the page. The page shows the static panel in place of a closed one.

Not every page receives the replacement: one that was loaded again and a second tab do not know the id, and a page of
Voila is drawn once. There the panel stays live as well.

If a cell is run again, the output of its run is lost. The panel is closed: immediately if the run has ended, otherwise
once no page shows it. A kernel lives for a week, and a cell is run a hundred times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from agentnb.run import Recording, Replay
from agentnb.run.headless import in_force
from agentnb.widgets.display import SavedCopy, after_cells, display_panel, display_with_copy, print_in_terminal
from agentnb.widgets.static.panel import plain_text, static_html
from agentnb.widgets.widget import Panel, parts_of

SAVED_AFTER = 1.0
"""Seconds between the last batch and the replacement, so that a person sees the end arrive."""
SEEN_WITHIN = 10.0
"""Seconds from the replacement until a page that is slow to draw has to show the panel."""
SENT_WITHIN = 1.0
"""Seconds that the end of a cell waits for the page to be told that the run has ended."""
KEPT = 20
"""Panels of ended runs that stay live."""

logger = logging.getLogger("agentnb")

_panels: WeakKeyDictionary[Any, WeakValueDictionary[tuple[str, ...], Panel]] = WeakKeyDictionary()
"""By run. A panel refers to its run, so it must not be held here; while it is open, ipywidgets holds it."""

_ended: list[ref[Panel]] = []
"""The live panels of ended runs, oldest first."""
_ended_lock = threading.Lock()


def panel(run: Recording, parts: Sequence[str] | None = None) -> Panel:
    """Return the run's live panel, whole or of these parts; the same panel each time until it is closed."""
    chosen = parts_of(run, parts)
    panels = _panels.setdefault(run, WeakValueDictionary())
    live = panels.get(chosen)
    if live is None or live.comm is None:
        live = panels[chosen] = Panel(run, parts=chosen)
    return live


def present(run: Recording) -> None:
    """Display the run's panel. That of a run that has ended before is static; `run.panel()` is live."""
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
    is_ended, is_sent = threading.Event(), threading.Event()

    def end() -> None:
        # First remove the copy: it would be visible while the live panel moves.
        copy.remove()
        handle.update(_static(run, live.key), raw=True)
        if not is_ended.is_set():
            is_ended.set()
            _keep_live(live)

    def end_in_its_cell() -> None:
        try:
            if not is_ended.is_set():
                context.run(end)
        except Exception:
            # A timer has no caller. The live panel stays in place.
            logger.exception("The panel of run %s could not be replaced by a static one", run.id)

    live.when_over(is_sent.set)
    live.when_over(lambda: _later(SAVED_AFTER, end_in_its_cell))

    # nbclient accepts an update of an output only from the cell that runs; the timer's would be lost there.
    def after_cell() -> bool:
        if not run.state.over:
            copy.update()
        elif not is_ended.is_set() or in_force().absence is not None:
            # The page keeps the live panel only if it knows that the run has ended when the output is replaced.
            is_sent.wait(SENT_WITHIN)
            end()
        return live.comm is not None

    def run_again() -> None:
        copy.stop()
        if is_ended.is_set():
            live.close()
        else:
            live.close_unseen()

    after_cells(after_cell, run_again)


def _keep_live(live: Panel) -> None:
    """Keep the panel of an ended run live while a page shows it, and close the oldest of too many."""
    with _ended_lock:
        _ended.append(ref(live))
        open_ones = [one for panel in _ended if (one := panel()) is not None and one.comm is not None]
        _ended[:] = map(ref, open_ones[-KEPT:])
    for one in open_ones[:-KEPT]:
        one.close()
    # A page that is slow has not drawn the panel yet. If no person is present, there is no page.
    if not live.is_shown and in_force().absence is None:
        _later(SEEN_WITHIN, live.close_unseen)
    else:
        live.close_unseen()


def _later(seconds: float, action: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def _static(run: Recording, key: str = "") -> dict[str, str]:
    """Return the static panel. `key`: of the live panel that moves next to it."""
    page = static_html(run)
    return {
        "text/plain": plain_text(run),
        "text/html": f'<div data-agentnb-ended="{key}">{page}</div>' if key else page,
    }
