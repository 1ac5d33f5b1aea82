"""The tables of recordings in DuckDB, and as Parquet files: the values are those of the frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop, Store, UsageError, analysis, tool
from agentnb.testing import ScriptedLLM, call

duckdb = pytest.importorskip("duckdb")


@tool
def look(at: str) -> Any:
    return {"at": at, "found": len(at)}


def looking(model: str) -> SessionLoop:
    def answer(messages: Sequence[Any]) -> Any:
        return f"{model} is done" if messages[-1]["role"] == "tool" else call("look", {"at": model})

    return SessionLoop(ScriptedLLM([answer], repeat=True), [look])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the six runs of a study, and a run of its own."""
    store = Store(tmp_path / "runs.db")
    agentnb.study(looking, ["go"], 3, arms={"model": ["a", "bcd"]}, store=store, name="it's/1", progress=False).result()
    looking("alone").start("go", store=store, name="alone").result()
    return store


def rows(database: Any, sql: str) -> list[Any]:
    return list(database.execute(sql).fetchall())


@pytest.mark.parametrize("is_written", [False, True])
def test_sql_sees_the_tables_of_a_store(store: Store, tmp_path: Path, is_written: bool) -> None:
    place: Any = store.to_parquet(tmp_path / "it's") if is_written else store
    with analysis.connect(place) as database:
        for name in ("runs", "calls", "events", "decisions", "messages"):
            frame = getattr(analysis, name)(store)
            ((count,),) = rows(database, f"SELECT count(*) FROM {name}")
            columns = [row[0] for row in rows(database, f"DESCRIBE {name}")]
            assert count == len(frame)
            assert {*columns} == {*frame.columns, "study"}
        by_arm = "SELECT arm_model, count(*) FROM runs WHERE study IS NOT NULL GROUP BY 1 ORDER BY 1"
        assert rows(database, by_arm) == [("a", 3), ("bcd", 3)]
        results = "SELECT DISTINCT result->>'$.found', study FROM calls ORDER BY 1"
        assert rows(database, results) == [("1", "it's/1"), ("3", "it's/1"), ("5", None)]
        joined = "SELECT count(*) FROM events JOIN runs USING (run) WHERE output->>'$' = 'alone is done'"
        ((count,),) = rows(database, joined)
        assert count == len(store.load("alone").events)
        missing = "SELECT count(*) FROM calls WHERE asked IS NULL AND decision IS NULL"
        assert rows(database, missing) == [(7,)]


@pytest.mark.parametrize("has_store", [False, True])
def test_the_tables_of_a_study_are_those_of_its_runs(tmp_path: Path, has_store: bool) -> None:
    store = Store(tmp_path / "runs.db") if has_store else None
    study = agentnb.study(looking, ["go"], 2, arms={"model": ["a", "b"]}, store=store, name="pilot", progress=False)
    assert len(analysis.calls(study)) == 0
    study.result()
    if store is not None:
        looking("alone").start("go", store=store, tags=["study:pilot"]).result()  # of somebody else
    names = {run.name for run in study}
    for table in (analysis.calls, analysis.events, analysis.messages):
        assert set(table(study)["run"]) == names
    with analysis.connect(study, tables=["calls"]) as database:
        assert rows(database, "SELECT count(*), count(DISTINCT run), any_value(study) FROM calls") == [(4, 4, "pilot")]


def test_the_files_are_partitioned_by_study_and_pandas_reads_them(store: Store, tmp_path: Path) -> None:
    folder = analysis.to_parquet(store, tmp_path / "tables", tables=["runs", "decisions"])
    assert sorted(path.name for path in folder.iterdir()) == ["decisions", "runs"]
    partitions = sorted(path.name for path in (folder / "runs").iterdir())
    assert partitions[1:] == ["study=it%27s%2F1"]
    assert partitions[0] in ("study=__HIVE_DEFAULT_PARTITION__", "study=NULL")  # older DuckDB
    assert [path.name for path in (folder / "decisions").iterdir()] == ["data_0.parquet"]  # without rows
    with analysis.connect(folder) as database:
        assert rows(database, "SELECT count(*) FROM decisions") == [(0,)]
        with pytest.raises(duckdb.CatalogException):
            rows(database, "SELECT * FROM calls")


def test_an_arm_whose_labels_have_several_types_is_text(tmp_path: Path) -> None:
    arms = {"model": ["a"], "level": [1, "high", None]}
    study = agentnb.study(lambda model, level: looking(model), ["go"], arms=arms, progress=False).result()
    with analysis.connect(study, tables=["runs"]) as database:
        levels = rows(database, "SELECT arm_level FROM runs ORDER BY 1 NULLS LAST")
        assert levels == [("1",), ("high",), (None,)]


async def test_a_single_run_can_be_asked_too(tmp_path: Path) -> None:
    run = looking("one").start("go")
    await run
    with analysis.connect(run, tables=["events"]) as database:
        assert rows(database, "SELECT count(*) FROM events") == [(len(run.events),)]


def test_wrong_arguments_are_refused_and_nothing_is_left(store: Store, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not an empty folder"):
        analysis.to_parquet(store, full)
    with pytest.raises(UsageError, match="Create it first"):
        analysis.to_parquet(store, tmp_path / "none" / "tables")
    with pytest.raises(UsageError, match="There is no table 'call'; the tables are runs, calls"):
        analysis.connect(store, tables=["call"])
    with pytest.raises(UsageError, match="must be a list of names, not 'calls'"):
        analysis.to_parquet(store, tmp_path / "tables", tables="calls")
    with pytest.raises(UsageError, match="is not a recording"):
        analysis.to_parquet(5, tmp_path / "tables")
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith("runs.db")} == {"full"}
