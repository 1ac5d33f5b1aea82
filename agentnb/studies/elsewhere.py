"""A study that other processes drive: its questions come from its store, and decisions go there.

A study object has this driving until it is started, if its store has runs of it that have not ended. So a second
notebook that makes the same study shows its panel and decides its questions, while the first one drives the runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakMethod, ref

from agentnb.core.errors import StorageError, UsageError
from agentnb.run import Pending
from agentnb.store import Store
from agentnb.store.inbox import Inbox
from agentnb.studies.driving import Driving, StudyRun

LOOK_SECONDS = 5.0
"""The longest time between two looks at the store while the study is watched."""
REST_SECONDS = 0.5
"""The time without a look after each; more for a store of many runs."""

logger = logging.getLogger("agentnb")


class DrivingElsewhere(Driving):
    """Shows and decides what waits in the runs of a study that other processes drive. It drives nothing."""

    def __init__(
        self, runs: Sequence[StudyRun], at_once: int, store: Store, tag: str, find: Callable[[], object]
    ) -> None:
        """tag: of the runs of the study. find: reads from the store which runs there are, and how they have ended."""
        super().__init__(runs, at_once)
        self._store = store
        self._tag = tag
        self._find = find
        self._lock = threading.Lock()
        self._opened: Inbox | None = None
        self._is_followed = False
        self._is_over = False

    async def drive(self) -> None:
        """Raise UsageError: starting a study gives it another driving."""
        raise UsageError("This study is driven by another process.")

    def cancel(self, reason: str) -> None:
        """Do nothing: the study does not run here."""

    def cancel_runs(self, runs: Sequence[StudyRun], reason: str) -> None:
        """Do nothing, as `cancel`."""

    def wait_begins(self) -> None:
        """Do nothing: a study that a caller waits for is started."""

    def wait_ends(self) -> None:
        """Do nothing, as `wait_begins`."""

    @property
    def pending(self) -> list[Pending]:
        """The calls of all runs that wait for a person, the run that was started first at the beginning."""
        found = self._inbox.pending
        waiting = {one.id for one in self.runs if one.status == "waiting"}
        if any(item.run_id not in waiting for item in found):
            self._look(found)
        known = {one.id for one in self.runs}
        return [item for item in found if item.run_id in known]

    def decide(
        self, items: Sequence[tuple[StudyRun, Pending]], method: str, arguments: Mapping[str, Any]
    ) -> list[Exception | None]:
        """Decide about each item in the store, and return the error of each, or None."""
        return self._inbox.decide_each([item for _, item in items], method, arguments)

    def resume(self, runs: Sequence[StudyRun]) -> int:
        """Return 0: only the process that drives a run can resume it."""
        return 0

    def lift(self) -> None:
        """Do nothing: only the process that drives the study can lift its limit."""

    @property
    def _under_way(self) -> Iterable[StudyRun]:
        return ()

    def follow(self, changed: WeakMethod[Callable[[], object]]) -> None:
        """Call `changed` when the runs in the store have changed, from a thread."""
        with self._lock:
            if self._is_followed:
                return
            self._is_followed = True
        arguments = ref(self), self._store.inbox(tag=self._tag), changed
        threading.Thread(target=_follow, args=arguments, name="agentnb study elsewhere", daemon=True).start()

    def end(self) -> None:
        """Note that this process starts the study: from now on, the runs have another driving."""
        with self._lock:
            self._is_over = True
            for one in self.runs:
                if one.status == "waiting":
                    one.status = "interrupted"

    def look(self) -> None:
        """Read from the store how the runs have ended, and which wait."""
        self._look(self._inbox.pending)

    @property
    def _inbox(self) -> Inbox:
        if self._opened is None:
            self._opened = self._store.inbox(tag=self._tag)
        return self._opened

    def _look(self, found: Sequence[Pending]) -> None:
        with self._lock:
            if self._is_over:
                return
            self._find()
            asking = {item.run_id for item in found}
            for one in self.runs:
                if one.status == "interrupted" and one.id in asking:
                    one.status = "waiting"
            self.counts = Counter(one.status for one in self.runs)


def _follow(driving: ref[DrivingElsewhere], inbox: Inbox, changed: WeakMethod[Callable[[], object]]) -> None:
    """The thread. It ends when the study is started here, or is no longer used, or its store is closed."""
    try:
        while (of := driving()) is not None and (tell := changed()) is not None:
            began = time.monotonic()
            of.look()
            tell()
            took = time.monotonic() - began
            del of, tell
            time.sleep(max(REST_SECONDS, 5 * took))
            inbox.wait_for_change(LOOK_SECONDS)
    except StorageError as error:
        logger.debug("A study that another process drives is no longer followed: %s", error)
    finally:
        inbox.close()
