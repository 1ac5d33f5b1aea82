"""The comms of agentnb's widgets, by id.

A click is a message on its widget's comm, and a kernel that is busy with a cell leaves it in the queue. The code that
lets these messages pass (`agentnb.notebook`) has to know the comms of agentnb; `listen` reports them, including those
that are open already.

A kernel cannot detect if a page draws widgets. But a page that has made the panel's model immediately requests the
events that it lacks; `audience` returns whether that has happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

COMM_IDS: set[str] = set()
"""The ids of the open comms."""

Listener = Callable[[str], object]


class Audience(Enum):
    """The audience of a run: the possibilities that a person sees the run."""

    NONE = auto()  # it has no panel
    SILENT = auto()  # it has a panel, and no page has sent a message
    ACTIVE = auto()  # a page has sent a message


_lock = threading.Lock()
_runs: dict[str, str] = {}  # the run that is shown, by comm
_active: set[str] = set()
_listeners: list[tuple[Listener, Listener]] = []


def opened(comm_id: str, run_id: str) -> None:
    """Note that a widget that shows this run has opened its comm."""
    with _lock:
        COMM_IDS.add(comm_id)
        _runs[comm_id] = run_id
        listeners = list(_listeners)
    for on_open, _ in listeners:
        on_open(comm_id)


def closed(comm_id: str) -> None:
    """Note that a widget has closed its comm. An unknown id is ignored, because a comm may be closed twice."""
    with _lock:
        COMM_IDS.discard(comm_id)
        _runs.pop(comm_id, None)
        _active.discard(comm_id)
        listeners = list(_listeners)
    for _, on_close in listeners:
        on_close(comm_id)


def message_received(comm_id: str) -> None:
    """Note that a page has sent a message on this comm."""
    _active.add(comm_id)


def audience(run_id: str) -> Audience:
    """Return the audience of a run: no panel, a panel, or a panel from which a page has sent a message."""
    with _lock:
        shown = {comm_id for comm_id, run in _runs.items() if run == run_id}
    if not shown:
        return Audience.NONE
    return Audience.SILENT if _active.isdisjoint(shown) else Audience.ACTIVE


def listen(on_open: Listener, on_close: Listener) -> Callable[[], None]:
    """Call `on_open` and `on_close` with the id of each comm that is opened or closed.

    `on_open` is called now for the comms that are already open. Return a function that unsubscribes both.
    """
    pair = (on_open, on_close)
    with _lock:
        _listeners.append(pair)
        known = list(COMM_IDS)
    for comm_id in known:
        on_open(comm_id)

    def stop() -> None:
        with _lock:
            _listeners[:] = [other for other in _listeners if other is not pair]

    return stop
