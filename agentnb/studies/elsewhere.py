"""A study that other processes drive: its questions come from its store, and decisions go there.

A study object has this driving until it is started, if its store has runs of it that have not ended. So a second
notebook that makes the same study shows its panel and decides its questions, while the first one drives the runs.

A study that is started while another process drives it has this driving, too: it follows until that process has ended
the study or has left it. If that process is gone without either, this one takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakMethod, ref

from agentnb.core.errors import StorageError, StoreBusy
from agentnb.run import Pending
from agentnb.run import host as hosting
from agentnb.run.host import call_in
from agentnb.store import Store
from agentnb.store.drivers import Claim, Owner
from agentnb.store.inbox import Inbox
from agentnb.studies.driving import Driving, StudyRun

LOOK_SECONDS = 5.0
"""The longest time between two looks at the store while the study is watched."""
OWNER_SECONDS = 0.2
"""Seconds between two looks at the owner of a study that is followed."""
REST_SECONDS = 0.5
"""The time without a look after each; more for a store of many runs."""

logger = logging.getLogger("agentnb")


class DrivingElsewhere(Driving):
    """Shows and decides what waits in the runs of a study that other processes drive. It drives nothing."""

    def __init__(
        self,
        runs: Sequence[StudyRun],
        at_once: int,
        store: Store,
        tag: str,
        find: Callable[[], object],
        claim: Callable[[], Claim | Owner],
        owner: Owner | None = None,
    ) -> None:
        """tag: of the runs of the study. find: reads from the store which runs there are, and how they have ended.

        owner: who drives the study, for `drive`. claim: asks the store for the right to drive it, if there is no owner.
        """
        super().__init__(runs, at_once)
        self._store = store
        self._tag = tag
        self._find = find
        self._claim = claim
        self._lock = threading.Lock()
        self._opened: Inbox | None = None
        self._is_followed = False
        self._is_over = False
        self.is_driven = False
        self.owner = owner
        self.taken: Claim | None = None
        """The right to drive the study, after `drive` has found that its owner is gone."""
        self.waits = 0
        """The number of callers that wait for the study."""
        if owner is not None:
            self.note = f"driven by {owner}"

    async def drive(self) -> None:
        """Follow the owner until the study has ended, or the owner has left it or is gone, or until `cancel`.

        If no owner is known, as the store could not be asked, the study may be driven by nobody.
        """
        try:
            if self.owner is None:
                found = await self.patiently(self._claim)
                if isinstance(found, Claim):
                    self.taken = found
                    return
                self.owner = found
            await self._follow(self.owner)
        except StoreBusy:
            if not self.is_cancelled:
                raise

    async def _follow(self, owner: Owner) -> None:
        looked, took = 0.0, 0.0
        while not self.is_cancelled:
            self._news.clear()
            state = await self.patiently(owner.look)
            self.note = f"driven by {owner}"
            if state != "drives" or time.monotonic() - looked > max(REST_SECONDS, 5 * took):
                looked = time.monotonic()
                await self.patiently(partial(self.look, is_driven=state == "drives"))
                took = time.monotonic() - looked
                self.changed()
            if state == "cancelled" or all(one.is_over for one in self.runs):
                return
            if state == "gone" or (state == "ended" and any(one.status == "not started" for one in self.runs)):
                self.taken = await self.patiently(owner.replace)
            if state == "ended" or self.taken is not None:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), OWNER_SECONDS)
        await self.patiently(self.look)

    def cancel(self, reason: str) -> None:
        """End `drive`. The runs go on in the process that drives them."""
        self._cancelled = reason
        call_in(hosting.host.loop, self._news.set)

    def abandon(self, reason: str) -> None:
        """Do nothing: no runs are driven here."""

    def cancel_runs(self, runs: Sequence[StudyRun], reason: str) -> None:
        """Do nothing, as `cancel`."""

    def wait_begins(self) -> None:
        """Count the callers that wait, for the driving after this one."""
        call_in(hosting.host.loop, lambda: self._count_waits(1))

    def wait_ends(self) -> None:
        """Count the callers that wait."""
        call_in(hosting.host.loop, lambda: self._count_waits(-1))

    def _count_waits(self, change: int) -> None:
        self.waits += change

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
                if one.status in ("waiting", "running"):
                    one.status = "interrupted"

    def look(self, *, is_driven: bool = False) -> None:
        """Read from the store how the runs have ended, and which wait. is_driven: the others are running."""
        self.is_driven = is_driven
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
                elif one.status == "interrupted" and self.is_driven:
                    one.status = "running"
            self.counts = Counter(one.status for one in self.runs)


def _follow(driving: ref[DrivingElsewhere], inbox: Inbox, changed: WeakMethod[Callable[[], object]]) -> None:
    """The thread. It ends when the study is started here, or is no longer used, or its store is closed."""
    try:
        while (of := driving()) is not None and (tell := changed()) is not None:
            began = time.monotonic()
            try:
                of.look(is_driven=of.is_driven)
                tell()
                took = time.monotonic() - began
                del of, tell
                time.sleep(max(REST_SECONDS, 5 * took))
                inbox.wait_for_change(LOOK_SECONDS)
            except StoreBusy:  # locked or away for a while
                time.sleep(REST_SECONDS)
    except StorageError as error:
        logger.debug("A study that another process drives is no longer followed: %s", error)
    finally:
        inbox.close()
