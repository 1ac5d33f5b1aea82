"""The comms of agentnb's widgets, by id.

A click is a message on its widget's comm, and a kernel that is busy with a cell leaves it in the queue. Whoever can let
our messages past (`agentnb.notebook`) has to know which comms are ours; `listen` tells it, also of those already open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

COMM_IDS: set[str] = set()
"""The comms that are open now."""

Listener = Callable[[str], object]

_lock = threading.Lock()
_listeners: list[tuple[Listener, Listener]] = []


def opened(comm_id: str) -> None:
    """A widget has opened its comm."""
    with _lock:
        COMM_IDS.add(comm_id)
        listeners = list(_listeners)
    for on_open, _ in listeners:
        on_open(comm_id)


def closed(comm_id: str) -> None:
    """A widget is done with its comm; an unknown id is ignored, as for a second close."""
    with _lock:
        COMM_IDS.discard(comm_id)
        listeners = list(_listeners)
    for _, on_close in listeners:
        on_close(comm_id)


def listen(on_open: Listener, on_close: Listener) -> Callable[[], None]:
    """Call these with each comm's id, for those open now as well; gives what ends it."""
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
