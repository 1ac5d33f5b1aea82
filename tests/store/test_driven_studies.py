"""The driver of a study, in a file and in PostgreSQL; and a store that is away while a study is driven."""

import sqlite3
import threading
from pathlib import Path

import pytest

from agentnb import Store
from tests.store.postgres import PostgresServer
from tests.study.other_driver import calls, study
from tests.study.test_one_driver import until


def test_a_second_study_follows_the_first_and_comes_back(tmp_path: Path, place: str) -> None:
    first = study(tmp_path, place).start()
    with pytest.warns(RuntimeWarning, match="is driven by process"):
        second = study(tmp_path, place).start()
    (tmp_path / "go").touch()
    assert second.result(30).counts["done"] == first.result(30).counts["done"] == 3
    assert len(calls(tmp_path)) == 3


def test_a_driver_whose_study_was_taken_over_leaves_its_runs(tmp_path: Path, place: str) -> None:
    first = study(tmp_path, place).start()
    until(lambda: len(calls(tmp_path)) == 2)
    other = '{"host": "elsewhere", "pid": 1, "began": 0.0, "id": "x"}'
    Store(place)._database.write("UPDATE drivers SET owner = ? WHERE study = 's'", other)
    with pytest.warns(RuntimeWarning, match="'s' is driven by process 1 on elsewhere now"):
        first.result(30)
    assert (first.counts["not started"], first.counts["done"]) == (1, 0)


@pytest.mark.filterwarnings("ignore:A study waits for its store", "ignore:The run has ended, but")
@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_study_waits_for_a_server_that_is_restarted(tmp_path: Path, place: str, postgres: PostgresServer) -> None:
    made = study(tmp_path, place, repeats=12).start()
    until(lambda: len(calls(tmp_path)) >= 2)
    postgres.halt()
    (tmp_path / "go").touch()
    threading.Timer(0.5, postgres.begin).start()
    assert made.result(60).counts["done"] == 12
    assert len(calls(tmp_path)) == 12


def test_a_study_that_starts_while_its_file_is_locked_waits(tmp_path: Path) -> None:
    made = study(tmp_path)
    (tmp_path / "go").touch()
    study(tmp_path, repeats=1).start().result(30)
    lock = sqlite3.connect(tmp_path / "runs.db", isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN IMMEDIATE")
    made.start()
    assert made.is_running
    with pytest.warns(RuntimeWarning, match="A study waits for its store"), pytest.raises(TimeoutError):
        made.result(1.6)
    lock.execute("COMMIT")
    lock.close()
    assert made.result(30).counts["done"] == 3
