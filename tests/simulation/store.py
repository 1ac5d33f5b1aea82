"""An unreliable database of a store, and a copy of it as another process would find it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentnb.errors import StorageError, StoreBusy
from agentnb.store.database import Database, Rows
from tests.simulation.choices import Choices

DEATHS = 6
LOCKS = 3
RETRIED = 0.1
"""The longest time in seconds after which a write is retried."""


@dataclass(frozen=True)
class Trouble:
    """A failure at the `at`-th call that writes to the database.

    none: no failure. dies: the process is killed before each `at`-th call, up to DEATHS times; the run continues, and a
    copy of the files is kept. fails: this one call raises. full: this call and all that follow raise. stalls: another
    process locks the database for `seconds` from each `at`-th call on, up to LOCKS times.
    """

    kind: str = "none"
    at: int = 0
    seconds: float = 0.0


def draw_trouble(choices: Choices) -> Trouble:
    """Draw a failure. Most often the process dies, the main purpose of a store."""
    kind = choices.pick("none", "dies", "dies", "dies", "fails", "full", "stalls")
    return Trouble(kind, 1 + choices.below(choices.pick(8, 40)), choices.pick(0.5, 3.0, 20.0))


class UnreliableDatabase:
    """The database of a store with a failure. It implements the protocol `Database`.

    now: returns the time. wait: called to block the caller for some seconds. dies: called when the process is killed.
    """

    def __init__(
        self,
        real: Database,
        trouble: Trouble,
        *,
        now: Callable[[], float],
        wait: Callable[[float], None],
        dies: Callable[[], None],
    ) -> None:
        self._real = real
        self._trouble = trouble
        self._now, self._wait, self._dies = now, wait, dies
        self._deaths = 0
        self._locks = 0
        self._free_at = 0.0
        self._inside = 0
        """The number of open transactions of the caller. Inside one, no other process can lock the database."""
        self.writes = 0

    @property
    def where(self) -> str:
        return self._real.where

    @property
    def version(self) -> int:
        return self._real.version

    @property
    def is_locked(self) -> bool:
        """Whether another process has locked the database."""
        return self._now() < self._free_at

    @property
    def has_been_locked(self) -> bool:
        """Whether the database is locked, or was locked so recently that a refused write is not retried yet."""
        return self._now() < self._free_at + RETRIED

    def _write(self, *, patient: bool) -> None:
        """Count a call that writes, and cause its failure."""
        self.writes += 1
        trouble, is_here = self._trouble, self.writes == self._trouble.at
        if trouble.kind == "dies" and self.writes % trouble.at == 0 and self._deaths < DEATHS:
            self._deaths += 1
            self._dies()
        elif (trouble.kind == "fails" and is_here) or (trouble.kind == "full" and self.writes >= trouble.at):
            raise StorageError(f"{self.where} could not be written: database or disk is full.")
        elif trouble.kind == "stalls" and not self._inside:
            if self.writes % trouble.at == 0 and self._locks < LOCKS:
                self._locks += 1
                self._free_at = self._now() + trouble.seconds
            if self.is_locked and patient:
                self._wait(self._free_at - self._now())
            elif self.is_locked:
                raise StoreBusy(f"{self.where} could not be written: database is locked.")

    def create(self) -> None:
        self._real.create()

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._real.query(sql, *values)

    def check(self, table: str) -> None:
        self._real.check(table)

    def write(self, sql: str, *values: object) -> None:
        self._real.write(sql, *values)

    @contextmanager
    def transaction(self, *, patient: bool = True) -> Iterator[None]:
        self._write(patient=patient)
        with self._real.transaction(patient=patient):
            self._inside += 1
            try:
                yield
            finally:
                self._inside -= 1

    def append(self, rows: Rows) -> None:
        self._write(patient=False)
        self._real.append(rows)

    def confirm(self) -> None:
        self._write(patient=False)
        self._real.confirm()

    def close(self) -> None:
        self._real.close()


def copied(store: Path, to: Path) -> Path:
    """Copy the files of a store to another name, as a killed process would leave them."""
    shutil.copyfile(store, to)
    log = Path(f"{store}-wal")
    if log.exists():
        shutil.copyfile(log, f"{to}-wal")
    return to
