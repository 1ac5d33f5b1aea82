"""Recordings hold conversations: a new file with them can be read by its owner alone."""

import os

import pytest

from agentnb import SessionLoop, Store
from agentnb.testing import ScriptedLLM


def mode(path):
    return path.stat().st_mode & 0o777


async def a_run():
    run = SessionLoop(ScriptedLLM(["hi"])).start("go")
    await run
    return run


async def test_a_new_store_and_its_log_are_private(tmp_path):
    store = Store(tmp_path / "runs.db")
    store.add((await a_run()).snapshot())
    modes = {file.name: mode(file) for file in tmp_path.iterdir()}
    store.close()
    assert modes == dict.fromkeys(["runs.db", "runs.db-wal", "runs.db-shm"], 0o600)


def test_a_store_in_memory_makes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store(":memory:").close()
    assert list(tmp_path.iterdir()) == []


async def test_a_folder_of_parquet_files_is_private(tmp_path):
    pytest.importorskip("duckdb")
    store = Store(tmp_path / "runs.db")
    store.add((await a_run()).snapshot())
    assert mode(store.to_parquet(tmp_path / "tables")) == 0o700
    store.close()


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
async def test_an_exported_page_has_the_permissions_of_any_new_file(tmp_path, mask, expected):
    run = await a_run()
    before = os.umask(mask)
    try:
        run.export_html(tmp_path / "run.html")
    finally:
        os.umask(before)
    assert mode(tmp_path / "run.html") == expected


async def test_an_exported_page_that_is_written_again_keeps_its_permissions(tmp_path):
    page = tmp_path / "run.html"
    page.touch()
    page.chmod(0o600)
    (await a_run()).export_html(page)
    assert mode(page) == 0o600


async def test_a_new_snapshot_is_private(tmp_path):
    (await a_run()).snapshot().save(tmp_path / "run.json")
    assert mode(tmp_path / "run.json") == 0o600


async def test_a_snapshot_that_is_written_again_keeps_its_permissions(tmp_path):
    path = tmp_path / "run.json"
    path.touch()
    path.chmod(0o640)
    (await a_run()).snapshot().save(path)
    assert mode(path) == 0o640


async def test_a_store_that_exists_keeps_its_permissions(tmp_path):
    path = tmp_path / "runs.db"
    Store(path).close()
    path.chmod(0o644)
    Store(path).close()
    assert mode(path) == 0o644
