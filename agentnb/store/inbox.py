"""The inbox of a store: the questions of all its runs, whichever process drives them, to be decided from this one.

A decision is written into the row of its question (`agentnb.store.questions`), and the process that drives the run
applies it. The methods return when it has: they tell whether the decision counts. If no process drives the run, the
decision is kept for the process that continues it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from html import escape
from typing import Any

from agentnb.core.errors import AlreadyDecided, UsageError, printable
from agentnb.core.events import Remember
from agentnb.core.json import to_json_data
from agentnb.run import Pending
from agentnb.run.approvals.pending import to_decide_at_once
from agentnb.run.approvals.reviewer import checked_name, declared_reviewer
from agentnb.run.approvals.too_late import Made, decided_already, run_has_ended
from agentnb.run.validation import check_seconds, check_text, shown
from agentnb.store import questions, rows
from agentnb.store.database import SPAN, Database, Listener
from agentnb.store.questions import ASKED, DECIDED, Question, error_from_json

ANSWER_SECONDS = 3.0
"""Seconds that a process has to apply a decision. After that, it is assumed that no process drives the run."""
LOOK_SECONDS = 1.0
"""The longest time between two looks at the table while something is awaited."""
AT_ONCE = 500
"""The number of decisions that are written in one transaction."""


class Inbox:
    """The questions of all runs of a store that wait for a person. `Store.inbox` creates it. Safe from every thread.

    As the last line of a cell it shows them as a table. Iterate over it for `pending`.
    """

    def __init__(self, database: Database, tags: Collection[str] = ()) -> None:
        self._database = database
        self._tags = tuple(tags)
        self._deciding = threading.Lock()
        self._waiting = threading.Lock()
        self._listeners: dict[str, Listener] = {}
        if not database.has_table(questions.TABLE):
            database.add_tables(questions.STATEMENTS)
            database.notify(DECIDED)  # the processes that drive runs publish what they have

    @property
    def pending(self) -> list[Pending]:
        """The calls that wait for a person, those of the oldest run at the beginning.

        A call whose run is not driven by any process is among them: a decision holds when the run continues.
        """
        return [item for _, item in questions.waiting(self._database, self._tags)]

    def wait(self, timeout: float | None = None) -> list[Pending]:
        """Wait until a call waits for a person, and return `pending`.

        timeout: in seconds; None for no limit. When it has passed, the list is empty.
        """
        check_seconds("wait(timeout)", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while not (found := self.pending):
            left = LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - time.monotonic())
            if left <= 0:
                break
            self.wait_for_change(left)
        return found

    def wait_for_change(self, seconds: float) -> None:
        """Return after a question was asked or decided, or after some seconds."""
        with self._waiting:
            self._listener_for("waiting").wait(seconds)

    def approve(
        self,
        items: Pending | Iterable[Pending],
        *,
        remember: Remember | None = None,
        reviewer: str | None = None,
        unknown: bool = False,
    ) -> int:
        """Approve one call or several of `pending`, and return how many were approved.

            inbox.approve(inbox.pending, reviewer="Ada")
            inbox.approve(item for item in inbox if item.name == "read")

        remember: as for `run.approve`; it is remembered in the run of the call. reviewer: the name of the person who
        decided; default: the name declared in this process (`agentnb.reviewer`).

        Calls that were decided meanwhile are not counted; for a single one of these, AlreadyDecided is raised, and
        says who has decided and when. unknown: include calls whose outcome is unknown (`item.unknown`), which run
        again. Without it, several items are decided without these: a RuntimeWarning says how many were left out, and
        if all were, UsageError is raised.

        A RuntimeWarning says that no process has applied a decision yet: it holds when
        the run continues. Raises UsageError if an item is not one of `pending`, and otherwise as `run.approve` does.
        """
        return self._decide(items, "approve", {"remember": remember}, reviewer, unknown=unknown)

    def reject(
        self,
        items: Pending | Iterable[Pending],
        reason: str = "",
        *,
        remember: Remember | None = None,
        reviewer: str | None = None,
        unknown: bool = False,
    ) -> int:
        """Reject one call or several of `pending`, and return how many were rejected. Otherwise as `approve`."""
        check_text("reject(items, reason)", reason)
        return self._decide(items, "reject", {"reason": reason, "remember": remember}, reviewer, unknown=unknown)

    def edit(self, item: Pending, arguments: Mapping[str, Any], *, reviewer: str | None = None) -> None:
        """Approve a call with other arguments. Raises as `run.edit` does, and otherwise as `approve`."""
        self._decide(item, "edit", {"arguments": dict(arguments)}, reviewer)

    def answer(self, item: Pending, result: Any, *, reviewer: str | None = None) -> None:
        """Record the result of a call, which then does not run. Otherwise as `approve`."""
        self._decide(item, "answer", {"result": to_json_data(result)}, reviewer)

    def close(self) -> None:
        """Close the connections on which this inbox is notified, if it has any."""
        for listener in self._listeners.values():
            listener.close()

    def _listener_for(self, purpose: str) -> Listener:
        """Return a listener of its own for a purpose, so that a decision need not wait until a question is asked."""
        if purpose not in self._listeners:
            self._listeners[purpose] = self._database.listen(ASKED)
        return self._listeners[purpose]

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _decide(
        self,
        items: Pending | Iterable[Pending],
        method: str,
        arguments: Mapping[str, Any],
        reviewer: str | None,
        *,
        unknown: bool = False,
    ) -> int:
        listed: list[Any] = [items] if isinstance(items, Pending) else list(items)
        if others := [item for item in listed if not isinstance(item, Pending)]:
            raise UsageError(f"Pass items of inbox.pending, not {shown(others[0])}.")
        if not isinstance(items, Pending):
            listed = to_decide_at_once(listed, unknown=unknown)
        errors = self.decide_each(listed, method, {**arguments, "reviewer": reviewer})
        for error in errors:
            if error is not None and (isinstance(items, Pending) or not isinstance(error, AlreadyDecided)):
                raise error
        return errors.count(None)

    def decide_each(
        self, items: Sequence[Pending], method: str, arguments: Mapping[str, Any]
    ) -> list[Exception | None]:
        """Call a method of `Run` that decides about a call, for each item, and return the error of each, or None.

        arguments: those of the method, and of `decide_about` (`agentnb.run.approvals.decisions`).
        """
        name = arguments.get("reviewer")
        name = checked_name("reviewer=", name) if name is not None else declared_reviewer()
        named = {**arguments, "reviewer": name}
        keys = [self._key(item) for item in items]
        by_key = dict(zip(keys, items, strict=True))
        results: dict[int, Exception | None] = {}
        with self._deciding:
            for first in range(0, len(by_key), AT_ONCE):
                results |= self._decide_some(dict(list(by_key.items())[first : first + AT_ONCE]), method, named)
        return [results.get(key) for key in keys]

    def _key(self, item: Pending) -> int:
        number = rows.number_of(self._database, item.run_id)
        if number is None or item.event is None:
            raise UsageError(f"The call {item.name} ({item.id}) is not one of this store. Pass items of inbox.pending.")
        return number * SPAN + item.event

    def _decide_some(
        self, items: Mapping[int, Pending], method: str, arguments: Mapping[str, Any]
    ) -> dict[int, Exception | None]:
        """Write decisions, wait until they are applied, and return the error of each, or None."""
        listener = self._listener_for("deciding")
        token = uuid.uuid4().hex
        made = {"token": token, "method": method, "arguments": dict(arguments), "time": time.time()}
        listener.wait(0)  # listen before the decision is written: the answer may come at once
        together = self._database.transaction() if len(items) > 1 else nullcontext()  # a single one is faster without
        with together:
            for key, item in sorted(items.items()):  # in one order, so that two processes cannot lock each other out
                questions.decide(self._database, key, {**made, "shown": item.shown})
            self._database.notify(DECIDED)

        # Each row shows what came of the decision: it was applied or refused, or another one was the first.
        results: dict[int, Exception | None] = {}
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            found = {row.key: row for row in questions.at(self._database, [*(items.keys() - results.keys())])}
            for key in items.keys() - results.keys():
                row = found.get(key)
                if row is None:
                    results[key] = UsageError(f"The call {items[key].name} is not in this inbox. Read inbox.pending.")
                elif not _is_waiting(row, token):
                    results[key] = self._result(row, items[key], token)
            left = until - time.monotonic()
            if len(results) == len(items) or left <= 0:
                break
            listener.wait(min(left, LOOK_SECONDS))

        if waiting := len(items) - len(results):
            warnings.warn(
                f"{waiting} of {len(items)} decisions are in {self._database.where}, and no process has applied them"
                " yet. They hold when their runs continue.",
                RuntimeWarning,
                stacklevel=5,
            )
        return results

    def _result(self, row: Question, item: Pending, token: str) -> Exception | None:
        """Return None if the decision with this token was recorded, otherwise why not."""
        about = f"The question about {item.name} ({item.id}{f' in {item.path}' if item.path else ''})"
        if row.refusal is not None and row.refusal["token"] == token:
            return error_from_json(row.refusal["error"])
        outcome = row.outcome
        if outcome is not None and outcome.get("token") == token:
            return None
        of_run = rows.run_at(self._database, row.key // SPAN, salvage=True)
        run = of_run.name or of_run.id
        if outcome is not None:
            if outcome["decision"] is None:
                return run_has_ended(about, run, outcome.get("reason"), outcome.get("time"))
            fields: dict[str, Any] = {one.name: outcome.get(one.name) for one in dataclasses.fields(Made)}
            return decided_already(about, run, Made(**fields))
        if row.decision is not None:  # it was not applied yet
            method, arguments = row.decision["method"], row.decision["arguments"]
            by = (arguments.get("decider") or ("code",))[0]
            return decided_already(about, run, Made(method, by, row.decision["time"], arguments.get("reviewer")))
        return AlreadyDecided(f"{about} was asked again meanwhile, in the run {run}. Read it in inbox.pending.")

    # -- showing -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Pending]:
        return iter(self.pending)

    def __len__(self) -> int:
        return len(self.pending)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return printable(f"<Inbox of {self._database.where}: {len(self)} calls wait>")

    def _repr_html_(self) -> str:
        """Return a table with a row for each question."""
        found = questions.waiting(self._database, self._tags)
        lines = [
            (name, item.path, item.name, ", ".join(f"{key}={value!r}" for key, value in item.arguments.items()))
            for name, item in found
        ]
        head = "".join(f"<th>{cell}</th>" for cell in ("", "run", "loop", "call", "arguments"))
        body = "".join(
            f"<tr><td>{number}</td>{''.join(f'<td>{escape(printable(shown(cell)))}</td>' for cell in line)}</tr>"
            for number, line in enumerate(lines)
        )
        return f"<table><caption>{len(lines)} calls wait</caption><tr>{head}</tr>{body}</table>"


def _is_waiting(row: Question, token: str) -> bool:
    """Return True if the decision with this token is in the row, and was not applied yet."""
    return row.outcome is None and row.decision is not None and row.decision["token"] == token
