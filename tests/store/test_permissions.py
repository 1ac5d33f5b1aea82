"""Recordings hold conversations: a new file with them can be read by its owner alone."""

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
