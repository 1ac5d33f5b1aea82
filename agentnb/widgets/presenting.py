"""Shows a run under a cell: live while it goes on, frozen once it is over.

A saved notebook must read without a kernel, and a front end that finds a widget in an output shows nothing else, not
even the HTML beside it, when the widget's kernel is gone. So the output is displayed under an id, and a moment after
the run has ended and the page has been sent its last batch the same output is replaced by the static panel alone. Until
then a copy stands below it (`saved`).

Not every page takes the replacement: one that was loaded again and a second tab do not know the id, and a page of Voila
is drawn once. There the panel stays live: it is closed when no page shows it any more.

A run that is not over when its cell is run again has lost its output. Its panel is closed then as well, once no page
shows it: a kernel lives for a week, and a cell is run a hundred times. Only a front end that names its cells can tell.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from agentnb.run import Replay
from agentnb.run.headless import in_force
from agentnb.run.recording import Recording
from agentnb.widgets.frozen.panel import plain_text, static_html
from agentnb.widgets.saved import SavedCopy
from agentnb.widgets.widget import Panel, parts_of

FREEZE_AFTER = 1.0
"""Seconds between the last batch and the freezing: the end is seen to arrive."""

logger = logging.getLogger("agentnb")


_panels: WeakKeyDictionary[Any, WeakValueDictionary[tuple[str, ...], Panel]] = WeakKeyDictionary()
"""By run. A panel has its run, so that it must not be held here; while it is open, ipywidgets holds it."""


def panel(run: Recording, parts: Sequence[str] | None = None) -> Panel:
    """The run's live panel, whole or of these parts; the same one each time until it is closed."""
    chosen = parts_of(run, parts)
    made = _panels.setdefault(run, WeakValueDictionary())
    live = made.get(chosen)
    if live is None or live.comm is None:
        live = made[chosen] = Panel(run, parts=chosen)
    return live


def present(run: Recording) -> None:
    """Display the run's panel under the current cell. One that is over is displayed frozen; `run.panel()` is live."""
    from IPython.display import display

    if _is_only_printed(run):
        return
    if isinstance(run, Replay) and in_force().absence is None:
        live = Panel(run)
        copy = _display_with_copy(live)

        def go_on() -> bool:
            copy.bring_up_to_date()
            return live.comm is not None

        _after_cells(go_on, lambda: _leave(live, copy))
        return
    if run.state.over or isinstance(run, Replay):
        display(_frozen(run), raw=True)  # type: ignore[no-untyped-call]  # IPython's is untyped
        return
    _present_until_over(run)


def _present_until_over(run: Recording) -> None:
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
    def freeze_if_over() -> bool:
        if run.state.over:
            freeze()
            return False
        copy.bring_up_to_date()
        return True

    _after_cells(freeze_if_over, lambda: _leave(live, copy))


def present_live(panel: Panel) -> None:
    """Display a panel that stays live when its run is over; the copy below it then tells the end."""
    if _is_only_printed(panel.run):
        return
    copy = _display_with_copy(panel)

    def go_on() -> bool:
        copy.bring_up_to_date()
        return panel.comm is not None and not panel.run.state.over

    _after_cells(go_on, copy.stop)


def _is_only_printed(run: Recording) -> bool:
    """Where a text is all that is shown, and is not taken back (IPython in a terminal), print the run as it stands."""
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or type(shell.display_pub) is not DisplayPublisher:
        return False
    print(plain_text(run))  # noqa: T201
    return True


def _display_with_copy(panel: Panel) -> SavedCopy:
    _display(panel)
    return SavedCopy(panel.run, panel.key, to_the_end=True)


def _leave(panel: Panel, copy: SavedCopy) -> None:
    """The output of a panel that nobody else has is gone."""
    copy.stop()
    panel.close_unseen()


def _after_cells(each: Callable[[], bool], run_again: Callable[[], object]) -> None:
    """Call `each` after every cell while it gives True; at last `run_again`, where the current cell is run again."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    cell, execution = _cell(shell)

    def after_cell(*_: object) -> None:
        now, running = _cell(shell)
        is_again = cell is not None and now == cell and running != execution
        if is_again or not each():
            shell.events.unregister("post_run_cell", after_cell)
        if is_again:
            run_again()

    shell.events.register("post_run_cell", after_cell)


def _cell(shell: Any) -> tuple[str | None, str | None]:
    """The cell that runs, where the front end names it, and which execution of it this is."""
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return request.get("metadata", {}).get("cellId"), request.get("header", {}).get("msg_id")


def _display(panel: Panel) -> Any:
    from IPython.display import display

    bundle, _ = panel._repr_mimebundle_()
    bundle = {**bundle, "text/html": "", "text/plain": ""}  # whoever shows no widget has the copy below
    return display(bundle, raw=True, display_id=uuid.uuid4().hex)  # type: ignore[no-untyped-call]  # IPython's is untyped


def _frozen(run: Recording) -> dict[str, str]:
    return {"text/plain": plain_text(run), "text/html": static_html(run)}
