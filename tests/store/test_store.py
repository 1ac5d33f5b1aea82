"""A store keeps runs, whether it is a file or a database: written as they happen, named, tagged, found, handed on."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from agentnb import RunFailed, SessionLoop, Store, UsageError, restore, tool
from agentnb.core.errors import RecordingMissing, StorageError
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import researcher, used
from tests.designs import WORLDS
from tests.run.agents import Agent
from tests.store.postgres import PostgresServer
from tests.worlds import types


@tool
async def fail(path: str) -> str:
    """Fail."""
    raise FileNotFoundError(f"there is no {path}")


def failing() -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("fail", {"path": "x.csv"}), used(10, 1, 0.5)], "sorry"]), [fail])


def names(found: list[Any]) -> list[str]:
    return [info.name for info in found]


@pytest.fixture
async def three(store: Store) -> Store:
    """A store with three runs: the oldest reads and writes, the second fails, the third only talks."""
    await researcher().start("go", name="nile", store=store, approve=True)
    await failing().start("go", name="broken", store=store)
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="talk", store=store)
    return store


# -- keeping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))
async def test_every_design_is_kept_as_it_happened(place: str, open_store: Callable[[str], Store], world: Any) -> None:
    run = world().start("go", name="kept", store=open_store(place), approve=True)
    await run
    loaded = open_store(place).load("kept")
    assert list(loaded.events) == run.events
    assert loaded.state == run.state


async def test_a_run_goes_on_where_another_process_left_it(place: str, open_store: Callable[[str], Store]) -> None:
    run = Agent().two_turns().start("hi", name="x", store=open_store(place))
    await run.step("turn")
    other = open_store(place)
    again = restore(other.load("x"), Agent().two_turns(), store=other)
    await again
    assert types(other.load("x").events) == types(again.events)


async def test_of_two_that_go_on_with_a_run_the_second_is_told(place: str, open_store: Callable[[str], Store]) -> None:
    run = Agent().two_turns().start("hi", name="x", store=open_store(place))
    await run.step("turn")
    other = open_store(place)
    again = restore(other.load("x"), Agent().two_turns(), store=other)
    await run
    with pytest.raises(RunFailed, match="another process goes on with it"):
        await again
    assert list(other.load("x").events) == run.events


def test_two_that_open_a_new_store_at_once_make_it_once(place: str) -> None:
    script = f"from agentnb import Store; Store({place!r}).close(); print('open')"
    started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["open"] * 4


async def test_several_threads_read_while_a_run_is_written(store: Store) -> None:
    run = researcher().start("go", name="nile", store=store, approve=True)
    await run.step()
    counts: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            counts.append(len(store.load("nile").events))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    await run
    stop.set()
    for thread in threads:
        thread.join()
    assert max(counts) <= len(run.events)
    assert len(store.load("nile").events) == len(run.events)


async def test_a_database_that_was_restarted_is_found_again(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="before", store=store)
    postgres.restart()
    with pytest.raises(StorageError):
        store.load("before")
    assert store.load("before").state.output == "hello"
    store.close()


def test_a_database_that_is_not_there_is_said_without_its_password() -> None:
    with pytest.raises(StorageError) as caught:
        Store("postgresql://me:secret@127.0.0.1:1/lab")
    assert "postgresql://me@127.0.0.1:1/lab cannot be used as a store" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_store_never_shows_the_password(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    assert "secret" not in f"{store!r} {store.where} {store.path}"
    store.close()


# -- naming and tagging ----------------------------------------------------------------------------------------------


async def test_runs_have_tags(three: Store) -> None:
    three.tag("nile", "good", "to show")
    three.tag("nile", "good")
    three.untag("nile", "to show", "never there")
    assert {info.name: info.tags for info in three.runs()} == {"talk": (), "broken": (), "nile": ("good",)}


async def test_a_run_may_be_given_another_name(three: Store) -> None:
    three.rename("nile", "the nile")
    assert three.load("the nile").name == "the nile"
    with pytest.raises(RecordingMissing, match="it has talk, broken, the nile"):
        three.load("nile")


async def test_what_is_not_there_cannot_be_tagged(three: Store) -> None:
    with pytest.raises(RecordingMissing, match="no run or snapshot 'nobody'"):
        three.tag("nobody", "good")


# -- finding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["talk", "broken", "nile"]),
        ({"name": "n*"}, ["nile"]),
        ({"name": "NILE"}, ["nile"]),
        ({"name": "n_le"}, []),
        ({"loop": "Session*"}, ["talk", "broken", "nile"]),
        ({"tool": "write"}, ["nile"]),
        ({"tool": "*a*"}, ["broken", "nile"]),
        ({"error": True}, ["broken", "nile"]),
        ({"error": "FileNotFound"}, ["broken"]),
        ({"error": "there is no x"}, ["broken"]),
        ({"error": "PermissionError"}, ["nile"]),
        ({"cost": 0.01}, ["broken", "nile"]),
        ({"cost": 0.4}, ["broken"]),
        ({"stop_reason": "completed"}, ["talk", "broken", "nile"]),
        ({"stop_reason": "cancelled"}, []),
        ({"tool": "read", "error": True}, ["nile"]),
    ],
)
async def test_runs_are_found_by_what_happened_in_them(three: Store, wanted: Any, found: list[str]) -> None:
    assert names(three.find(**wanted)) == found


async def test_runs_are_found_by_tag(three: Store) -> None:
    three.tag("nile", "to show")
    assert names(three.find(tag="to show")) == ["nile"]
    assert names(three.find(tag="to*")) == ["nile"]
    assert names(three.find(tag="to")) == []


async def test_runs_are_found_by_date(three: Store) -> None:
    today, tomorrow = datetime.now(), datetime.now() + timedelta(days=1)
    for since in (date.today(), date.today().isoformat(), time.time() - 60, datetime.now(UTC) - timedelta(hours=1)):
        assert len(three.find(since=since)) == 3
    assert three.find(since=tomorrow) == []
    assert len(three.find(until=tomorrow)) == 3
    assert three.find(until=today - timedelta(days=1)) == []


async def test_a_date_that_is_none_is_said(three: Store) -> None:
    with pytest.raises(UsageError, match="'yesterday' is no date"):
        three.find(since="yesterday")
