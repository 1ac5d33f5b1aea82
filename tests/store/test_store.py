"""A store keeps runs, in a file or in a database: written as they happen, named, tagged, found, shared."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from agentnb import RunFailed, SessionLoop, Snapshot, Store, UsageError, restore, tool
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, StoreConflict
from agentnb.core.events import Event
from agentnb.notebook import runs
from agentnb.store import planned_migrations
from agentnb.testing import ScriptedLLM, call
from tests.analysis.recordings import researcher, used
from tests.designs import WORLDS
from tests.run.agents import Agent
from tests.store.postgres import PostgresServer
from tests.worlds import types, until


@tool
async def fail(path: str) -> str:
    """Fail."""
    raise FileNotFoundError(f"there is no {path}")


@tool(approve=True)
def delete(path: str) -> None:
    """Delete."""


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
async def test_runs_of_every_design_are_stored_unchanged(
    place: str, open_store: Callable[[str], Store], world: Any
) -> None:
    run = world().start("go", name="kept", store=open_store(place), approve=True)
    await run
    loaded = open_store(place).load("kept")
    assert list(loaded.events) == run.events
    assert loaded.state == run.state


async def test_a_run_continues_from_the_events_of_another_process(
    place: str, open_store: Callable[[str], Store]
) -> None:
    run = Agent().two_turns().start("hi", name="x", store=open_store(place))
    await run.step("turn")
    other = open_store(place)
    again = restore(other.load("x"), Agent().two_turns(), store=other)
    await again
    assert types(other.load("x").events) == types(again.events)


async def test_a_question_that_is_pending_is_in_the_store(place: str, open_store: Callable[[str], Store]) -> None:
    def asking() -> SessionLoop:
        return SessionLoop(ScriptedLLM([[call("delete", {"path": "a"})], "done"]), [delete])

    run = asking().start("go", name="asks", store=open_store(place))
    run.play()
    while not run.pending:  # noqa: ASYNC110 - what is tested is what stands between two turns
        await asyncio.sleep(0)
    kept = restore(open_store(place).load("asks"), asking())
    assert [item.name for item in kept.pending] == ["delete"]
    run.cancel()


async def test_the_first_events_of_a_new_consumer_are_in_the_store(
    place: str, open_store: Callable[[str], Store]
) -> None:
    kept: list[list[Event]] = []

    async def read(messages: list[Any]) -> list[Any]:
        async with aclosing(aiter(run)) as events:
            await anext(events)
        kept.append(open_store(place).events(run.id))
        return messages

    loop = SessionLoop(ScriptedLLM(["done"]), transform_context=read)
    run = loop.start("go", store=open_store(place))
    await run
    assert kept == [run.events[: len(kept[0])]]
    assert types(kept[0]) == ["run_start", "message", "model_start"]


async def test_the_second_of_two_continuations_of_a_run_raises(place: str, open_store: Callable[[str], Store]) -> None:
    run = Agent().two_turns().start("hi", name="x", store=open_store(place))
    await run.step("turn")
    other = open_store(place)
    again = restore(other.load("x"), Agent().two_turns(), store=other)
    await run
    with pytest.raises(RunFailed, match="another process has continued it, or another run of this"):
        await again
    assert list(other.load("x").events) == run.events


def test_processes_that_open_a_new_store_concurrently_create_it_once(place: str) -> None:
    script = f"from agentnb import Store; Store({place!r}).close(); print('open')"
    started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["open"] * 4


async def test_several_threads_read_while_a_run_is_written(store: Store) -> None:
    run = researcher().start("go", name="nile", store=store, approve=True)
    await run.step()
    counts: list[int] = []
    stop = threading.Event()

    def read() -> None:
        over = False
        while not over:  # at least once, and once more after the end
            over = stop.is_set()
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


async def test_a_store_reconnects_to_a_restarted_database(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="before", store=store)
    postgres.restart()
    assert store.load("before").state.output == "hello"
    store.close()


def test_the_error_for_a_missing_database_does_not_contain_its_password() -> None:
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


async def test_a_run_can_be_renamed(three: Store) -> None:
    three.rename("nile", "the nile")
    assert three.load("the nile").name == "the nile"
    with pytest.raises(RecordingMissing, match="The store has: talk, broken, the nile"):
        three.load("nile")


async def test_tagging_a_missing_run_raises(three: Store) -> None:
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
async def test_runs_are_found_by_their_events(three: Store, wanted: Any, found: list[str]) -> None:
    assert names(three.find(**wanted)) == found


async def test_runs_are_found_by_tag(three: Store) -> None:
    three.tag("nile", "to show")
    assert names(three.find(tag="to show")) == ["nile"]
    assert names(three.find(tag="to*")) == ["nile"]
    assert names(three.find(tag="to")) == []


async def test_a_search_with_many_stars_is_fast(three: Store) -> None:
    three.tag("nile", "a" * 60)
    started = time.monotonic()
    assert three.find(tag="*a" * 12 + "*b") == []
    assert names(three.find(tag="*a" * 12 + "*")) == ["nile"]
    assert time.monotonic() - started < 10  # and not years


async def test_runs_are_found_by_date(three: Store) -> None:
    today, tomorrow = datetime.now(), datetime.now() + timedelta(days=1)
    day = date.fromtimestamp(time.time() - 600)  # which at midnight is the day before
    for since in (day, day.isoformat(), time.time() - 60, datetime.now(UTC) - timedelta(hours=1)):
        assert len(three.find(since=since)) == 3
    assert three.find(since=tomorrow) == []
    assert len(three.find(until=tomorrow)) == 3
    assert three.find(until=today - timedelta(days=1)) == []


async def test_an_invalid_date_is_refused(three: Store) -> None:
    with pytest.raises(UsageError, match="'yesterday' is not a date"):
        three.find(since="yesterday")


# -- the same answers, whatever is recorded --------------------------------------------------------------------------


@tool
async def odd(path: str) -> Any:
    """Return values that only Python writes as JSON, and fail with a message in another alphabet."""
    if path:
        raise ValueError("ÄRGER mit 100%")
    return {"not a number": math.nan, "nothing": "a\0b"}


@pytest.fixture
async def strange(store: Store) -> Store:
    turns = [[call("odd", {"path": ""}), call("odd", {"path": "x"}), used(1, 1, 0.5)], "done"]
    await SessionLoop(ScriptedLLM(turns), [odd]).start("go", name="Größe", store=store)
    return store


@pytest.mark.parametrize(
    "wanted",
    [{"name": "größe"}, {"name": "GRÖ*"}, {"error": "ärger"}, {"error": "100%"}, {"tool": "O*"}, {"cost": 0.5}],
    ids=str,
)
async def test_a_run_with_unusual_letters_and_values_is_found(strange: Store, wanted: Any) -> None:
    assert names(strange.find(**wanted)) == ["Größe"]
    assert strange.load("Größe").state.output == "done"


async def test_a_damaged_event_does_not_hide_its_run_from_a_search(three: Store) -> None:
    three._database.write("UPDATE events SET body = ? WHERE key % 4294967296 = 4", b"\xff\x00")
    assert names(three.find(tool="write")) == ["nile"]
    assert names(three.find(error=True)) == ["broken", "nile"]
    with pytest.raises(RecordingCorrupt, match="event 4 of the run"):
        three.load("nile")


@pytest.mark.parametrize(
    "wanted", [{"tool": 3}, {"name": ["a"]}, {"cost": "1"}, {"error": 1.5}, {"since": [1]}, {"until": True}], ids=str
)
async def test_an_invalid_search_is_refused(store: Store, wanted: Any) -> None:
    with pytest.raises(UsageError):
        store.find(**wanted)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", None, 3], ids=ascii)
async def test_a_name_that_some_stores_cannot_keep_is_refused_by_all(three: Store, name: Any) -> None:
    before = three.runs()
    for name_it in (three.rename, three.tag, three.untag):
        with pytest.raises(UsageError, match="takes a text that is not empty"):
            name_it("nile", name)
    with pytest.raises(UsageError):
        three.load(name)
    assert three.runs() == before


async def test_a_run_does_not_continue_after_events_that_differ_from_the_stored_ones(store: Store) -> None:
    run = Agent().two_turns().start("hi", name="x")
    await run.step("turn")
    past = run.snapshot()
    await restore(past, Agent().two_turns(), store=store)
    other = restore(past, Agent().two_turns())
    await other
    with pytest.raises(StoreConflict, match="another process has continued it differently"):
        restore(other.snapshot(), Agent().two_turns(), store=store)


async def test_planned_migrations_are_listed_for_files_and_databases(
    place: str, open_store: Callable[[str], Store]
) -> None:
    if place.startswith("postgresql"):
        assert [step[0] for step in planned_migrations(place)] == ["1"]
    open_store(place)
    assert planned_migrations(place) == []


# -- a database, and the way to it -----------------------------------------------------------------------------------


def ask(server: PostgresServer, sql: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.encode())


LOSE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL"


async def test_a_run_continues_after_its_connection_was_lost_while_it_waited(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    run = researcher().start("go", name="waits", store=store)
    run.play()
    await until(lambda: len(run.pending) == 4)
    ask(postgres, LOSE)
    for waiting in list(run.pending):
        run.approve(waiting)
    assert await run == "It is done."
    ask(postgres, LOSE)
    assert list(store.load("waits").events) == run.events
    store.close()


async def test_a_role_with_read_access_only_can_read_a_database(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="shared", store=store)
    store.close()
    for sql in (
        "DROP ROLE IF EXISTS reader",
        "CREATE ROLE reader LOGIN",
        "GRANT USAGE ON SCHEMA agentnb TO reader",
        "GRANT SELECT ON ALL TABLES IN SCHEMA agentnb TO reader",
    ):
        ask(postgres, sql)
    reading = Store(postgres.url.replace("agentnb:secret", "reader"))
    assert reading.load("shared").state.output == "hello"
    with pytest.raises(StorageError, match="could not be written: permission denied"):
        reading.tag("shared", "good")
    reading.close()
    ask(postgres, "DROP OWNED BY reader; DROP ROLE reader")


PASSWORDS = ["p@ss", "p/ss", "p?ss", "p#ss", "p:ss", "p[ss", "p%zz"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_that_has_to_be_quoted_is_not_shown(password: str) -> None:
    for use in (Store, planned_migrations, runs, Snapshot.load):
        with pytest.raises(UsageError) as caught:
            use(f"postgresql://me:{password}@127.0.0.1:1/lab")
        assert "ss" not in str(caught.value).replace("password", "").replace("address", "")
        assert "zz" not in str(caught.value)


def test_a_quoted_password_is_accepted(postgres: PostgresServer) -> None:
    Store(postgres.url.replace("secret", quote("p@ss/w:rd?#%", safe=""))).close()


async def test_a_notebook_shows_the_runs_of_a_database(postgres: PostgresServer) -> None:
    store = Store(postgres.url)
    await SessionLoop(ScriptedLLM(["hello"])).start("go", name="of the lab", store=store)
    assert store.where in runs().places
    assert "of the lab" in [row.name for row in runs(postgres.url)]
    store.close()
