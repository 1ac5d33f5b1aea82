"""A run that a store has and no process, or another one, drives: to be looked at where it stands.

It reads like a `Run` and shows the same panel without its buttons: its state is its events folded, like any run's. What
another process goes on writing is read once a second, so the panel follows. `agentnb.attach(name, loop)` goes on with
it here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn
from weakref import WeakSet

from agentnb.core.events import Event, RunStart
from agentnb.core.evolve import evolve
from agentnb.core.state import State
from agentnb.core.threads import forgotten_in_a_fork
from agentnb.core.unicode import printable
from agentnb.core.views import Prefix
from agentnb.run import Pending, Snapshot
from agentnb.run import host as hosting
from agentnb.run.approvals.pending import waiting
from agentnb.run.past.asked import missing, stood
from agentnb.run.past.recorded_loop import recorded_loop
from agentnb.run.recording import Recording
from agentnb.run.watchers import Watchers
from agentnb.store import RunInfo, Store

EVERY = 1.0
"""Seconds between two looks into the store."""
LATELY = 5.0
"""A run that has grown within so many seconds is being driven by somebody."""

logger = logging.getLogger("agentnb")


class RecordedRun(Recording):
    """A run as a store has it; read only. `snapshot()` gives it to `restore`."""

    parts = ("graph", "events", "diagram")

    def __init__(self, store: Store, info: RunInfo) -> None:
        self.store = store
        self.id = info.id
        self.name = info.name
        self.created = info.created
        self._events: list[Event] = []
        self._state = State()
        self._lock = threading.RLock()
        self._watchers = Watchers(self.id)
        self.refresh()
        self.loop = recorded_loop(self._events or [RunStart(loop=info.loop, name=info.loop)])

    def refresh(self) -> bool:
        """Read what has come since; gives whether anything has."""
        with self.lock:
            new = self.store.events(self.id, len(self._events))
            for event in new:
                evolve(self._state, event)
                self._events.append(event)
        for event in new:
            self._watchers.tell_each(event)
        return bool(new)

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` with every event that comes from now on; gives a function that ends it.

        One that raises is logged, and the others are told.
        """
        stop = self._watchers.watch(watcher)
        if not self.state.over:
            _follow(self)
        return stop

    @property
    def watched(self) -> bool:
        """Whether anybody wants to know what comes."""
        return bool(self._watchers.watchers)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While a thread holds this, nothing new is read."""
        return self._lock

    @property
    def state(self) -> State:
        """Where the run stands in the store."""
        return self._state

    @property
    def events(self) -> Sequence[Event]:
        """What the store has of it, oldest first."""
        return Prefix(self._events)

    @property
    def driven(self) -> bool:
        """Whether somebody elsewhere seems to drive it: it has grown lately."""
        return not self.state.over and bool(self.events) and time.time() - self.events[-1].time < LATELY

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person."""
        with self.lock:
            return waiting(stood(self.state), run_id=self.id)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """The run as it stands in the store."""
        return Snapshot.of(self.events, name=name or self.name)

    def panel(self) -> Any:
        """The run's panel, without buttons."""
        return hosting.presenter().panel(self)

    def _ipython_display_(self) -> None:
        hosting.presenter().present(self)

    def __getattr__(self, name: str) -> NoReturn:
        called = self.__dict__.get("name") or self.__dict__.get("id")
        raise missing(self, name, f"agentnb.attach({called!r}, loop) goes on with it here.")

    def __repr__(self) -> str:
        where = self.stop_reason or self.phase
        names = f"{self.name or self.id} of {self.loop.name}"
        return printable(f"<Recorded run {names}: {where}, {len(self.events)} events>")


_followed: WeakSet[RecordedRun] = WeakSet()
_lock = threading.Lock()
_follower: threading.Thread | None = None


def _follow(run: RecordedRun) -> None:
    """Let one thread look after all recordings that may go on."""
    global _follower
    with _lock:
        _followed.add(run)
        if _follower is None:
            _follower = threading.Thread(target=_look, name="agentnb recordings", daemon=True)
            _follower.start()


def _forget() -> None:
    global _lock, _follower
    _lock, _follower = threading.Lock(), None


forgotten_in_a_fork(_forget)


def _look() -> None:
    time.sleep(EVERY)
    while _refresh_followed():
        time.sleep(EVERY)


def _refresh_followed() -> bool:
    """Look after each recording once; False where there is none any more.

    In a frame of its own: the thread, while it sleeps, is not to hold on to the last recording.
    """
    global _follower
    with _lock:
        runs = list(_followed)
        if not runs:
            _follower = None
            return False
    for run in runs:
        is_readable = True
        try:
            run.refresh()
        except BaseException:  # the store was closed, or damaged; the others are followed on, whatever it was
            logger.exception("The run %s cannot be followed any more", run.id)
            is_readable = False
        with _lock:  # whoever begins to watch now follows it anew
            if run.state.over or not run.watched or not is_readable:
                _followed.discard(run)
    return True
