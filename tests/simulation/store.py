"""A store's database that is not to be relied on, and what another process would find of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentnb import Store
from agentnb.errors import StorageError
from agentnb.store.database import Database, Rows
from tests.simulation.choices import Choices

DEATHS = 6


@dataclass(frozen=True)
class Trouble:
    """What happens at the `at`-th call that writes to the database.

    none: nothing. dies: the process is killed before each `at`-th call, up to DEATHS times; the run goes on, and what
    was on disk is kept aside. fails: this one call raises. full: this call and all that follow raise. stalls: this call
    takes `seconds`.
    """

    kind: str = "none"
    at: int = 0
    seconds: float = 0.0


def draw_trouble(choices: Choices) -> Trouble:
    """Most often the process dies, which is what a store is for."""
    kind = choices.pick("none", "dies", "dies", "dies", "fails", "full", "stalls")
    return Trouble(kind, 1 + choices.below(choices.pick(8, 40)), choices.pick(0.5, 3.0, 20.0))


class UnreliableDatabase:
    """The database of a store, in whose `n`-th writing call something happens. Keeps to the protocol of `Database`."""

    def __init__(self, real: Database, trouble: Trouble, sleep: Callable[[float], None], dies: Callable[[], None]):
        self._real = real
        self._trouble = trouble
        self._sleep = sleep
        self._dies = dies
        self._deaths = 0
        self.writes = 0
        self.refused = 0

    @property
    def where(self) -> str:
        return self._real.where

    @property
    def version(self) -> int:
        return self._real.version

    def _write(self) -> None:
        self.writes += 1
        trouble = self._trouble
        is_here = self.writes == trouble.at
        if trouble.kind == "dies" and self.writes % trouble.at == 0 and self._deaths < DEATHS:
            self._deaths += 1
            self._dies()
        elif trouble.kind == "stalls" and is_here:
            self._sleep(trouble.seconds)
        elif (trouble.kind == "fails" and is_here) or (trouble.kind == "full" and self.writes >= trouble.at):
            self.refused += 1
            raise StorageError(f"{self.where} could not be written: database or disk is full.")

    def migrate(self, statements: Sequence[str], version: int, fill: Callable[[Database], None]) -> None:
        self._real.migrate(statements, version, fill)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._real.query(sql, *values)

    def check(self, table: str) -> None:
        self._real.check(table)

    def write(self, sql: str, *values: object) -> None:
        self._write()
        self._real.write(sql, *values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._real.transaction():
            yield

    def append(self, rows: Rows) -> None:
        self._write()
        self._real.append(rows)

    def confirm(self) -> None:
        self._write()
        self._real.confirm()

    def close(self) -> None:
        self._real.close()


def make_unreliable(
    store: Store, trouble: Trouble, sleep: Callable[[float], None], dies: Callable[[], None]
) -> UnreliableDatabase:
    """Let trouble happen to this store from now on."""
    database = UnreliableDatabase(store._database, trouble, sleep, dies)
    store._database = database
    return database


def copied(store: Path, to: Path) -> Path:
    """The files of a store as a process that is killed leaves them, under another name."""
    shutil.copyfile(store, to)
    log = Path(f"{store}-wal")
    if log.exists():
        shutil.copyfile(log, f"{to}-wal")
    return to
