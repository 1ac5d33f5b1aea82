"""Export and import of runs as one file of lines: a damaged file is refused with the line, or read up to that line."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, Store, UsageError, tool
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, StoreConflict, VersionMismatch
from agentnb.store import rows
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import researcher
from tests.designs import WORLDS


async def filled(path: Path) -> Store:
    store = Store(path)
    run = researcher().start("go", name="nile", store=store, approve=True)
    await run.step("turn")
    run.snapshot("halfway")
    await run
    store.tag("nile", "good")
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="talk", store=store)
    return store


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = asyncio.run(filled(tmp_path_factory.mktemp("source") / "runs.db"))
    yield store
    store.close()


@pytest.fixture
def file(source: Store, tmp_path: Path) -> Path:
    source.export(tmp_path / "runs.jsonl")
    return tmp_path / "runs.jsonl"


def test_an_import_restores_the_exported_runs(source: Store, file: Path, store: Store) -> None:
    assert len(store.import_(file)) == 2
    assert store.runs() == source.runs()
    for name in ("nile", "talk", "halfway"):
        assert store.load(name) == source.load(name)


def test_every_line_is_json(file: Path) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["agentnb"] == "export"
    assert lines[-1]["runs"] == 2
    assert all("chain" in line for line in lines)


def test_single_runs_are_exported_by_name_or_id(source: Store, store: Store, tmp_path: Path) -> None:
    source.export(tmp_path / "one.jsonl", ["talk", source.load("talk").run_id])
    store.import_(tmp_path / "one.jsonl")
    assert [info.name for info in store.runs()] == ["talk"]


def test_a_second_import_changes_nothing(source: Store, file: Path, store: Store) -> None:
    store.import_(file)
    store.import_(file)
    assert store.runs() == source.runs()
    assert store.names() == source.names()


async def test_an_import_completes_a_run_that_the_store_has_in_part(source: Store, file: Path, store: Store) -> None:
    first = source.load("halfway")
    store.record_run(first.run_id, "nile", "SessionLoop", first.events)
    store.import_(file)
    assert list(store.load("nile").events) == list(source.load("nile").events)


def test_an_import_refuses_a_run_whose_id_belongs_to_another_run(source: Store, file: Path, store: Store) -> None:
    nile, talk = source.load("nile"), source.load("talk")
    store.record_run(nile.run_id, "other", "SessionLoop", talk.events)
    with pytest.raises(StoreConflict, match="is not the one in"):
        store.import_(file)
    assert [info.name for info in store.runs()] == ["other"]


async def test_runs_of_every_design_are_equal_after_export_and_import(tmp_path: Path) -> None:
    with_all, store = Store(tmp_path / "all.db"), Store(tmp_path / "other.db")
    for name, world in WORLDS.items():
        await world().start("go", name=name, store=with_all, approve=True)
    with_all.export(tmp_path / "all.jsonl")
    store.import_(tmp_path / "all.jsonl")
    for name in WORLDS:
        assert store.load(name) == with_all.load(name)
    with_all.close()
    store.close()


# -- damage ----------------------------------------------------------------------------------------------------------


def test_each_changed_byte_of_an_export_is_detected_with_its_line(source: Store, tmp_path: Path) -> None:
    file = tmp_path / "small.jsonl"
    source.export(file, ["talk"])
    whole = file.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        file.write_bytes(changed)
        line = whole[:position].count(b"\n") + 1
        with pytest.raises((RecordingCorrupt, VersionMismatch)) as caught:
            Store(tmp_path / "into.db").import_(file)
        named = f"line {line}:" in str(caught.value) or "cut off" in str(caught.value)
        assert named, (position, whole[position], str(caught.value))


@pytest.mark.parametrize("what", ["cut", "line gone", "lines swapped", "something behind", "empty"])
def test_an_export_with_moved_missing_or_added_lines_is_refused(file: Path, store: Store, what: str) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    changed = {
        "cut": lines[:-1],
        "line gone": lines[:5] + lines[6:],
        "lines swapped": [*lines[:5], lines[6], lines[5], *lines[7:]],
        "something behind": [*lines, b"{}\n"],
        "empty": [],
    }
    file.write_bytes(b"".join(changed[what]))
    with pytest.raises(RecordingCorrupt, match="line"):
        store.import_(file)
    assert store.runs() == []


def test_an_import_with_salvage_reads_the_events_before_the_damage(source: Store, file: Path, store: Store) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[12] = lines[12].replace(b"1", b"2", 1)
    file.write_bytes(b"".join(lines))
    store.import_(file, salvage=True)
    (info,) = store.runs()
    assert info.events == 10  # a head and the run's own line are before them
    assert list(store.load("nile").events) == list(source.load("nile").events[:10])


def test_a_newer_version_is_refused(file: Path, store: Store) -> None:
    from agentnb.store import exchange

    exchange_version = exchange.EXPORT_VERSION
    exchange.EXPORT_VERSION = 99
    try:
        exchange.write(file, [])
    finally:
        exchange.EXPORT_VERSION = exchange_version
    with pytest.raises(VersionMismatch, match="export of version 99; this agentnb reads up to 1"):
        store.import_(file)


def test_the_import_of_a_missing_file_raises(store: Store, tmp_path: Path) -> None:
    with pytest.raises(RecordingMissing, match="no file"):
        store.import_(tmp_path / "nothing.jsonl")


def test_the_export_of_a_damaged_run_raises_and_keeps_the_existing_file(tmp_path: Path) -> None:
    store = asyncio.run(filled(tmp_path / "runs.db"))
    store.export(tmp_path / "runs.jsonl")
    before = (tmp_path / "runs.jsonl").read_bytes()
    store._database.write("UPDATE events SET checksum = 1 WHERE key % 4294967296 = 3")
    with pytest.raises(RecordingCorrupt, match=r"event 3 of the run .* is damaged"):
        store.export(tmp_path / "runs.jsonl")
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    store.close()


def test_an_export_does_not_overwrite_a_store(source: Store) -> None:
    for write in (source.export, source.load("nile").save):
        with pytest.raises(UsageError, match="is a database, perhaps a store"):
            write(source.path)
    assert source.load("nile").state.over


def test_a_file_of_another_kind_is_refused_with_its_kind(
    source: Store, store: Store, file: Path, tmp_path: Path
) -> None:
    snapshot = source.load("nile").save(tmp_path / "nile.json")
    with pytest.raises(UsageError, match=r"is a snapshot and not an export: agentnb\.Snapshot\.load\("):
        store.import_(snapshot)
    with pytest.raises(UsageError, match="is a database and not an export"):
        store.import_(source.path)
    with pytest.raises(UsageError, match=r"is an export of a store, not a snapshot. .*\.import_\("):
        Snapshot.load(file)
    with pytest.raises(RecordingCorrupt, match="or is not an export"):
        store.import_(Path(__file__))


@pytest.mark.parametrize("place", ["nowhere/runs.jsonl", ""])
def test_an_export_to_a_place_that_cannot_be_written_raises_and_leaves_no_file(
    source: Store, tmp_path: Path, place: str
) -> None:
    with pytest.raises(StorageError, match="The export cannot be written to"):
        source.export(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_an_export_refuses_one_name_in_place_of_a_list(source: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a list of names or ids, not 'nile'"):
        source.export(tmp_path / "runs.jsonl", "nile")


def test_imported_runs_keep_their_age(source: Store, file: Path, store: Store) -> None:
    talk = source.load("talk")
    store.record_run("newer", "nile", "SessionLoop", talk.events)
    store.import_(file)
    assert store.runs()[0].id == "newer"
    assert store.load("nile").events[-1].output == "hello"


async def test_a_run_with_a_nan_is_imported(store: Store, tmp_path: Path) -> None:
    @tool
    async def measure() -> float:
        """Measure."""
        return math.nan

    await SessionLoop(ScriptedLLM([[call("measure", {})], "done"]), [measure]).start("go", name="x", store=store)
    store.export(tmp_path / "runs.jsonl")
    (taken_in,) = store.import_(tmp_path / "runs.jsonl")
    assert store.runs()[0].id == taken_in


def interrupted(place: str, file: str) -> None:
    """Run in a separate process: exit when the events of a run are written and its tag is not."""
    rows.add_tag = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    Store(place).import_(file)


def test_an_interrupted_import_adds_no_partial_run(file: Path, source: Store, place: str) -> None:
    script = f"from tests.store.test_exchange import interrupted; interrupted({place!r}, {str(file)!r})"
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    store = Store(place)
    assert store.runs() == []
    store.import_(file)
    assert store.runs() == source.runs()
    assert store.load("halfway") == source.load("halfway")
    store.close()
