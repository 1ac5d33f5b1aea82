"""Stored runs: read-only views of runs in a store that this process does not drive.

A stored run has the properties of a `Run` and the same panel without buttons; its state is the fold of its events, as
for all runs. Events that another process appends are read once a second, so the panel follows the run.
`agentnb.attach(name, loop)` resumes the run in this kernel.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn
from weakref import WeakSet

from agentnb.core.errors import printable
from agentnb.core.events import Event, RunStart
from agentnb.core.evolve import evolve
from agentnb.core.prefix import Prefix
from agentnb.core.state import State
from agentnb.run import Pending, Recording, Snapshot, environment
from agentnb.run.approvals.pending import waiting
from agentnb.run.checkpoints import Checkpoints
from agentnb.run.past.recorded_loop import missing, recorded_frames, recorded_loop
from agentnb.run.watchers import Watchers
from agentnb.store import RunInfo, Store
from agentnb.threads import reset_in_forks

PERIOD = 1.0
"""The number of seconds between two reads of the store."""
RECENT = 5.0
"""The number of seconds after its last event for which a run is assumed to be driven by another process."""

logger = logging.getLogger("agentnb")


class RecordedRun(Recording):
    """A run as recorded in a store, read-only. `restore` takes its `snapshot()`."""

    parts = ("graph", "events", "diagram")

    def __init__(self, store: Store, info: RunInfo) -> None:
        self.store = store
        self.id = info.id
        self.name = info.name
        self.created = info.created
        self._events: list[Event] = []
        self._state = State()
        self._checkpoints = Checkpoints()
        self._lock = threading.RLock()
        self._watchers = Watchers(self.id)
        self.refresh()
        self.loop = recorded_loop(self._events or [RunStart(loop=info.loop, name=info.loop)])

    def refresh(self) -> bool:
        """Read the new events from the store; return True if there are any."""
        with self.lock:
            new = self.store.events(self.id, len(self._events))
            for event in new:
                evolve(self._state, event)
                self._events.append(event)
                self._checkpoints.keep(self._state)
        for event in new:
            self._watchers.tell_each(event)
        return bool(new)

    def watch(self, watcher: Callable[[Any], object]) -> Callable[[], None]:
        """Call `watcher` with every new event; return a function that unsubscribes it.

        An exception of a watcher is logged and does not affect the other watchers.
        """
        stop = self._watchers.watch(watcher)
        if not self.state.over:
            _follow(self)
        return stop

    @property
    def watched(self) -> bool:
        """True if the run has watchers."""
        return bool(self._watchers.watchers)

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """The lock of the run. While a thread holds it, no new events are added."""
        return self._lock

    @property
    def state(self) -> State:
        """The state of the run after its last event that was read."""
        return self._state

    @property
    def events(self) -> Sequence[Event]:
        """The events that were read from the store, oldest first."""
        return Prefix(self._events)

    @property
    def driven(self) -> bool:
        """True if another process appears to drive the run: its last event is recent, and it has not ended."""
        return not self.state.over and bool(self.events) and time.time() - self.events[-1].time < RECENT

    @property
    def pending(self) -> list[Pending]:
        """The calls that are waiting for a person's decision."""
        with self.lock:
            return waiting(recorded_frames(self.state), run_id=self.id)

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Return a snapshot of the events that were read. `name` defaults to the name of the run."""
        return Snapshot.of(self.events, name=name or self.name)

    def panel(self) -> Any:
        """Return the run's panel, without buttons."""
        return environment.presenter().panel(self)

    def _ipython_display_(self) -> None:
        environment.presenter().present(self)

    def __getattr__(self, name: str) -> NoReturn:
        called = self.__dict__.get("name") or self.__dict__.get("id")
        raise missing(self, name, f"agentnb.attach({called!r}, loop) resumes it here.")

    def __repr__(self) -> str:
        where = self.stop_reason or self.phase
        names = f"{self.name or self.id} of {self.loop.name}"
        return printable(f"<Recorded run {names}: {where}, {len(self.events)} events>")


_followed: WeakSet[RecordedRun] = WeakSet()
_lock = threading.Lock()
_follower: threading.Thread | None = None


def _follow(run: RecordedRun) -> None:
    """Let the follower refresh this run. The follower is one thread for all recorded runs that have not ended."""
    global _follower
    with _lock:
        _followed.add(run)
        if _follower is None:
            _follower = threading.Thread(target=_follow_all, name="agentnb recordings", daemon=True)
            _follower.start()


def _reset_after_fork() -> None:
    global _lock, _follower
    _lock, _follower = threading.Lock(), None


reset_in_forks(_reset_after_fork)


def _follow_all() -> None:
    """The thread that refreshes the followed runs, as long as there are any."""
    time.sleep(PERIOD)
    while _refresh_followed():
        time.sleep(PERIOD)


def _refresh_followed() -> bool:
    """Refresh each followed run once. Return False if no run is followed any more: the thread then ends.

    This is a separate function, so that the thread has no reference to a run while it sleeps.
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
        except BaseException:  # for example a closed or damaged store; the other runs are still followed
            logger.exception("The run %s cannot be read any more, so its panel is not updated", run.id)
            is_readable = False
        with _lock:  # a watcher that is added later follows the run again
            if run.state.over or not run.watched or not is_readable:
                _followed.discard(run)
    return True
