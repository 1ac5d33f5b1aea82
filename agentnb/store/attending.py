"""What a process that drives runs does for the inboxes of others: it publishes questions, and applies decisions.

There is one thread for each store whose runs ask in this process. It is started by a question, and ends some seconds
after the last one was decided. It writes nothing unless an inbox was opened for this store
(`agentnb.store.questions`). It waits for a notification; a look at the table every few seconds finds what was
decided while a connection was lost.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary, ref

from agentnb.core.errors import AgentnbError, StorageError
from agentnb.core.events import ApprovalDecision, ApprovalRequest, Event, RunEnd
from agentnb.run import Pending, Run
from agentnb.run.approvals.decisions import decide_about
from agentnb.store import questions, rows
from agentnb.store.database import SPAN, Database, Listener
from agentnb.store.questions import ASKED, DECIDED, Question, sealed

LINGER_SECONDS = 5.0
"""Seconds without a question after which the thread ends."""
LOOK_SECONDS = 2.0
"""The longest time between two looks at the decisions of others."""
RETRY_SECONDS = 0.2
"""Seconds after which the database is tried again, if it has failed."""

logger = logging.getLogger("agentnb")


class Attendance:
    """The questions of the runs of one store that this process drives. Safe from every thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._runs: WeakValueDictionary[str, Run] = WeakValueDictionary()
        """The runs that have asked here, or are driven here with a question of their recording."""
        self._changed: set[str] = set()
        self._asking: set[str] = set()
        self._open: dict[str, set[int]] = {}
        """The keys of the open questions that are in the table, for each run whose questions were published."""
        self._applied: set[str] = set()
        """The tokens of decisions that were applied, and whose outcome is not in the table yet."""
        self._has_table = False
        self._is_closed = False
        self._forget_thread()

    def _forget_thread(self) -> None:
        self._driver = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None

    def attend(self, run: Run) -> None:
        """Attend to a run of this store that was made in this process."""
        run.watch_questions(partial(_note, ref(self), ref(run)))

    def close(self) -> None:
        """Stop attending: the store is closed."""
        with self._lock:
            self._is_closed = True
            if self._listener is not None:
                self._listener.wake()

    def note(self, run: Run, event: Event | None) -> None:
        """Take up a change of a run. Called with the lock of the run, so it returns at once."""
        is_claimed = isinstance(event, ApprovalRequest) or (
            event is None and run.driven and any(state.asking for _, state in run.state.running())
        )
        if not is_claimed and run.id not in self._runs:
            return
        with self._lock:
            if self._is_closed:
                return
            self._runs[run.id] = run
            if self._process != os.getpid():
                self._forget_thread()
            self._changed.add(run.id)
            if self._thread is None:
                self._listener = self._database.listen(DECIDED)
                arguments = ref(self), self._listener
                self._thread = threading.Thread(target=_serve, args=arguments, name="agentnb questions", daemon=True)
                self._thread.start()
            elif self._listener is not None:
                self._listener.wake()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def is_needed(self, idle: float) -> bool:
        """Return True if the thread is to continue; otherwise it ends, and the next question starts another."""
        with self._lock:
            known = set(self._runs)
            self._asking &= known
            for id in self._open.keys() - known:
                del self._open[id]
            if not self._is_closed and (self._changed or self._asking or idle < LINGER_SECONDS):
                return True
            self._thread = self._listener = None
            return False

    def look(self) -> bool:
        """Publish what is new, and apply what others have decided. Return True if a run asks."""
        self._has_table = self._has_table or self._database.has_table(questions.TABLE)
        if not self._has_table:
            with self._lock:
                changed, self._changed = self._changed, set()
            for run in self._runs_with(changed):
                self._note_asking(run, bool(run.pending))
            return bool(self._asking)

        # Decisions first: somebody waits for them.
        self._apply_decisions()

        # Publish the questions of the runs that have changed, and of those that asked before there was an inbox.
        with self._lock:
            changed, self._changed = self._changed | (self._asking - self._open.keys()), set()
        has_taken_over = False
        try:
            for run in self._runs_with(changed):
                has_taken_over |= self._publish(run)
                changed.discard(run.id)
        except StorageError:
            with self._lock:
                self._changed |= changed
            raise

        # A question that another process has asked may have a decision already.
        if has_taken_over:
            self._apply_decisions()
        return bool(self._asking)

    def _runs_with(self, ids: Iterable[str]) -> Iterator[Run]:
        return (run for id in list(ids) if (run := self._runs.get(id)) is not None)

    def _note_asking(self, run: Run, asks: bool) -> None:
        with self._lock:
            (self._asking.add if asks else self._asking.discard)(run.id)

    def _publish(self, run: Run) -> bool:
        """Make the table have the open questions of a run, and no others.

        Return True if some of them were published by a process that drove the run before.
        """
        items = [item for item in run.pending if item.event is not None]
        self._note_asking(run, bool(items))
        if not items and self._open.get(run.id) == set():
            return False
        number = rows.number_of(self._database, run.id)
        if number is None:  # the run could not be added to the store yet
            with self._lock:
                self._changed.add(run.id)
            return False
        found = {row.key: row for row in questions.of_run(self._database, number)}
        open_now = {number * SPAN + int(item.event or 0): item for item in items}
        ended = {key: self._outcome(run, row) for key, row in found.items() if key not in open_now}
        new = {key: item for key, item in open_now.items() if key not in found or not _is_same(found[key], item)}
        mine = [key for key in open_now if key not in new and found[key].driver != self._driver]
        if not (ended or new or mine):
            self._open[run.id] = set(open_now)
            return False
        with self._database.transaction():
            for key, outcome in ended.items():
                questions.close(self._database, key, outcome)
            for key, item in new.items():
                questions.publish(self._database, key, self._driver, item)
            for key in mine:
                questions.take_over(self._database, key, self._driver)
            self._database.notify(ASKED)

        self._open[run.id] = set(open_now)
        return bool(mine)

    def _apply_decisions(self) -> None:
        """Apply the decisions of other processes to the runs that have asked, and write what came of them."""
        if not self._asking:
            return
        applied = [
            (row, run, self._refusal(run, row))
            for row in questions.decided_for(self._database, self._driver)
            if (run := self._runs.get(str((row.question or {}).get("run_id")))) is not None
        ]
        if not applied:
            return
        outcomes = [self._outcome(run, row) for row, run, _ in applied]
        with self._database.transaction():
            for (row, _, refusal), outcome in zip(applied, outcomes, strict=True):
                if refusal is not None:
                    questions.refuse(self._database, row.key, refusal)
                else:
                    questions.close(self._database, row.key, outcome)
            self._database.notify(ASKED)
        for row, run, refusal in applied:
            self._applied.discard((row.decision or {}).get("token", ""))
            if refusal is None and run.id in self._open:
                self._open[run.id].discard(row.key)

    def _refusal(self, run: Run, row: Question) -> dict[str, Any] | None:
        """Apply a decision. Return why it cannot be applied, if the question is open nevertheless; otherwise None."""
        decision = row.decision or {}
        try:
            if row.decision is None:
                raise StorageError("The decision was damaged in the store. Decide again.")
            if (item := _open_item(run, row)) is not None:  # otherwise it was decided here meanwhile
                decide_about(run, replace(item, shown=decision["shown"]), decision["method"], decision["arguments"])
                self._applied.add(decision["token"])
        except AgentnbError as error:
            if _open_item(run, row) is not None:  # for example, the arguments do not fit
                return {"token": decision.get("token"), "error": [type(error).__name__, str(error)]}
        return None

    def _outcome(self, run: Run, row: Question) -> dict[str, Any]:
        """Return how a question has ended: the recorded decision, or none if the run has ended without one.

        It has the token of the row's decision if this decision was recorded: it was applied now, or by a process that
        has exited before it could write the outcome.
        """
        number, made = row.key % SPAN, row.decision or {}
        with run.lock:
            after = list(run.events[number:])
        event = next((one for one in after if isinstance(one, ApprovalDecision) and one.question == number), None)
        if event is None:
            end = after[-1] if after and isinstance(after[-1], RunEnd) else None
            return {"decision": None} | ({"reason": end.reason, "time": end.time} if end is not None else {})
        outcome = {"decision": event.decision, "by": event.by, "reviewer": event.reviewer, "time": event.time}
        outcome["earlier"] = event.earlier
        reviewer = made.get("arguments", {}).get("reviewer")
        is_same = (made.get("method"), reviewer) == (event.decision, event.reviewer)
        if made.get("token") in self._applied or (is_same and row.driver != self._driver):
            outcome["token"] = made["token"]
        return outcome


def _open_item(run: Run, row: Question) -> Pending | None:
    return next((item for item in run.pending if item.event == row.key % SPAN), None)


def _is_same(row: Question, item: Pending) -> bool:
    """Return True if a row has this question, as it is shown now."""
    return row.question is not None and sealed(row.key, row.question) == sealed(row.key, asdict(item))


def _note(attendance: ref[Attendance], run: ref[Run], event: Event | None) -> None:
    attends, of = attendance(), run()
    if attends is not None and of is not None:
        attends.note(of, event)


def _serve(attendance: ref[Attendance], listener: Listener) -> None:
    """The thread: look, and wait for the next change. It keeps neither the store nor a run alive while it waits."""
    last = time.monotonic()
    try:
        while True:
            attends = attendance()
            if attends is None or not attends.is_needed(time.monotonic() - last):
                return
            try:
                if attends.look():
                    last = time.monotonic()
                del attends
                listener.wait(LOOK_SECONDS)
            except StorageError as error:  # lost, or locked for long
                logger.debug("The questions of a store are not up to date: %s", error)
                time.sleep(RETRY_SECONDS)
            except Exception:  # the thread has no caller, and other runs ask
                logger.exception("The questions of a store could not be published")
                time.sleep(LOOK_SECONDS)
    finally:
        listener.close()
