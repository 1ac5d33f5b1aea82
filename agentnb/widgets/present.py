"""Shows a run under a cell: live while it goes on, frozen once it is over.

A saved notebook must read without a kernel, and a front end that finds a widget in an output shows nothing else, not
even the HTML beside it, when the widget's kernel is gone. So the output is displayed under an id, and a moment after
the run has ended and the page has been sent its last batch the same output is replaced by the static panel alone. Until
then a copy stands below it (`saved`).

Not every page takes the replacement: one that was loaded again and a second tab do not know the id, and a page of Voila
is drawn once. There the panel stays live: it is closed when no page shows it any more.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary

from agentnb.run import Replay
from agentnb.run.headless import in_force
from agentnb.widgets.saved import SavedCopy
from agentnb.widgets.static import plain_text, static_html
from agentnb.widgets.widget import Panel, parts_of

FREEZE_AFTER = 1.0
"""Seconds between the last batch and the freezing: the end is seen to arrive."""

logger = logging.getLogger("agentnb")


_panels: WeakKeyDictionary[Any, dict[tuple[str, ...], Panel]] = WeakKeyDictionary()


def panel(run: Any, parts: Sequence[str] | None = None) -> Panel:
    """The run's live panel, whole or of these parts; the same one each time until it is closed."""
    chosen = parts_of(run, parts)
    made = _panels.setdefault(run, {})
    if chosen not in made or made[chosen].comm is None:
        made[chosen] = Panel(run, parts=chosen)
    return made[chosen]


def present(run: Any) -> None:
    """Display the run's panel under the current cell. One that is over is displayed frozen; `run.panel()` is live."""
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    if isinstance(run, Replay) and in_force().absence is None:
        present_live(panel(run))
        return
    if run.state.over or isinstance(run, Replay):
        display(_frozen(run), raw=True)  # type: ignore[no-untyped-call]  # IPython's is untyped
        return
    live = Panel(run)
    handle = _display(live)
    copy = SavedCopy(run, live.key)
    context = copy_context()  # ipykernel finds the cell an output belongs to by a context variable

    def freeze() -> None:
        handle.update(_frozen(run), raw=True)
        copy.remove()
        live.close_unseen()

    def freeze_in_its_cell() -> None:
        try:
            context.run(freeze)
        except Exception:
            # A timer has no caller. The live panel stays where it is.
            logger.exception("The panel of run %s could not be frozen", run.id)

    def freeze_soon() -> None:
        timer = threading.Timer(FREEZE_AFTER, freeze_in_its_cell)
        timer.daemon = True
        timer.start()

    live.when_over(freeze_soon)
    # nbclient takes an update of an output only from the cell that runs: the timer's would be lost there.
    shell = get_ipython()
    if shell is not None:

        def after_cell(*_: object) -> None:
            if run.state.over:
                shell.events.unregister("post_run_cell", after_cell)
                freeze()
            else:
                copy.bring_up_to_date()

        shell.events.register("post_run_cell", after_cell)


def present_live(panel: Panel) -> None:
    """Display a panel that stays live when its run is over; the copy below it then tells the end."""
    from IPython.core.getipython import get_ipython

    _display(panel)
    copy = SavedCopy(panel.run, panel.key, to_the_end=True)
    shell = get_ipython()
    if shell is None:
        return

    def after_cell(*_: object) -> None:
        copy.bring_up_to_date()
        if panel.comm is None or panel.run.state.over:
            shell.events.unregister("post_run_cell", after_cell)

    shell.events.register("post_run_cell", after_cell)


def _display(panel: Panel) -> Any:
    from IPython.display import display

    bundle, _ = panel._repr_mimebundle_()
    bundle = {**bundle, "text/html": "", "text/plain": ""}  # whoever shows no widget has the copy below
    return display(bundle, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]  # IPython's is untyped


def _frozen(run: Any) -> dict[str, str]:
    return {"text/plain": plain_text(run), "text/html": static_html(run)}
