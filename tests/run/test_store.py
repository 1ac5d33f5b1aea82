from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentnb import Run, RunFailed, SessionLoop, Store, restore, tool
from agentnb.core.errors import RecordingCorrupt, RecordingMissing, StorageError, StoreConflict, VersionMismatch
from agentnb.core.events import Delta
from agentnb.run import model_requests
from agentnb.testing import ScriptedLLM, call
from tests.run.agents import Agent, sends
from tests.worlds import asks, assert_one_terminal_event_last, output_of, types, until


@tool
async def work() -> str:
    """Work."""
    return "worked"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


async def test_a_stored_run_has_the_events_of_the_run(store: Store, path: Path) -> None:
    run = Agent().two_turns().start("hi", name="first", store=store)
    await run
    other = Store(path)
    assert list(other.load("first").events) == run.events
    assert list(other.load(run.id).events) == run.events
    assert other.load("first").state == run.state
    other.close()


SAID: dict[str, Callable[[Run], object]] = {
    "approve": lambda run: run.approve("a"),
    "reject": lambda run: run.reject("a", "no"),
    "edit": lambda run: run.edit("a", {"value": "b"}),
    "answer": lambda run: run.answer("a", "it happened"),
    "steer": lambda run: run.steer("left"),
    "follow up": lambda run: run.follow_up("and then"),
    "withdraw": lambda run: run.withdraw("follow_up"),
    "resume": lambda run: run.resume(),
    "cancel": lambda run: run.cancel("enough"),
}


@pytest.mark.parametrize("say", SAID.values(), ids=list(SAID))
async def test_the_input_of_a_person_to_a_paused_run_is_written_immediately(
    say: Callable[[Run], object], store: Store
) -> None:
    run = Agent().loop(sends("a"), "done").start("hi", store=store, breakpoints=["approval_request"])
    run.follow_up("right")
    run.play()
    await until(lambda: run.state.paused)
    before = len(run.events)
    say(run)
    assert list(store.load(run.id).events) == run.events
    assert len(run.events) > before


async def test_each_step_of_a_resumed_failed_run_is_written_before_it_is_returned(store: Store) -> None:
    run = Agent().loop([ConnectionError("cut")], "done").start("hi", store=store)
    while await run.step():
        assert list(store.load(run.id).events) == run.events
    assert run.output == "done"


async def test_an_ended_stored_run_is_garbage_collected_immediately(store: Store) -> None:
    run = Agent().two_turns().start("hi", store=store)
    kept = weakref.ref(run)
    await run
    del run
    gc.collect()
    assert kept() is None


async def test_a_run_without_events_does_not_take_over_a_name(store: Store) -> None:
    first = Agent().two_turns().start("hi", name="again", store=store)
    await first
    second = Agent().two_turns().start("hi", name="again", store=store)
    Agent().two_turns().start("hi", name="other", store=store)
    with pytest.raises(RecordingMissing, match="no events of the run 'other' yet"):
        store.load("other")
    assert list(store.load("again").events) == first.events
    with pytest.raises(RecordingMissing):
        store.load(second.id)
    await second.step()
    assert list(store.load("again").events) == second.events


async def test_the_start_of_a_call_is_on_disk_when_the_call_runs(store: Store, path: Path) -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi", store=store)
    run.play()
    await agent.holding.wait()
    other = Store(path)
    assert types(other.load(run.id).events)[-1] == "call_start"
    agent.release.set()
    await run
    other.close()


class Computing(ScriptedLLM):
    """A model that blocks the event loop for a while, at each request for which `looks` returns True."""

    def __init__(self, looks: Callable[[], bool], turns: list[Any]) -> None:
        super().__init__(turns)
        self._looks = looks

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
        done = time.monotonic() + (2 * model_requests.HELD_UP if self._looks() else 0)
        while time.monotonic() < done:
            pass
        async for chunk in super().stream(messages, **options):
            yield chunk


async def test_events_before_a_request_are_on_disk_while_a_model_blocks_the_event_loop(store: Store) -> None:
    """The model computes in this process from its second request on; before the first one no event could be lost."""
    on_disk: list[list[str]] = []

    def look() -> bool:
        on_disk.append(types(store.events(run.id)) if on_disk else [])
        return True

    run = SessionLoop(Computing(look, [[call("work")], [call("work")], "done"]), [work]).start("go", store=store)
    await run
    assert [(seen[-2:], len(seen)) for seen in on_disk[1:]] == [
        (["call_end", "model_start"], 7),
        (["call_end", "model_start"], 11),
    ]


async def test_a_model_that_blocked_once_does_not_delay_later_requests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_requests, "HELD_UP", 0.1)  # longer than a busy machine delays a fast operation
    newest_on_disk: list[str] = []

    def look() -> bool:
        newest_on_disk.append(types(store.events(run.id))[-1] if newest_on_disk else "")
        return len(newest_on_disk) == 1  # as if the machine was busy in the meantime

    calls = [[call("work")]] * 3
    run = SessionLoop(Computing(look, [*calls, "done"]), [work]).start("go", store=store)
    await run
    assert newest_on_disk[1:] == ["model_start", "call_start", "call_start"]


async def test_a_decision_is_on_disk_when_its_method_returns(store: Store, path: Path) -> None:
    run = Agent().loop(sends("a"), "done").start("hi", store=store)
    await run.step("turn")
    await asyncio.to_thread(run.reject, "a")
    other = Store(path)
    assert types(other.load(run.id).events)[-2:] == ["approval_decision", "call_end"]
    other.close()
    assert await run == "done"


async def test_a_cancelled_run_is_on_disk_and_its_restored_run_is_another_one(store: Store) -> None:
    agent = Agent()
    run = agent.loop(sends("a"), "done").start("hi", name="cancelled", store=store)
    run.play()
    await until(lambda: bool(run.pending))
    run.cancel("enough")
    taken = store.load("cancelled")  # before the event loop has had another turn
    assert list(taken.events) == run.events
    again = restore(taken, agent.loop("done"), store=store, approve=True)
    await again
    assert again.id != run.id
    assert types(store.events(run.id)) == types(run.events)


async def test_the_runs_of_a_store_are_listed_newest_first(store: Store) -> None:
    assert store.runs() == []
    finished = Agent().loop("ok").start("hi", name="one", store=store)
    await finished
    waiting = Agent().loop(sends("a")).start("hi", store=store)
    await waiting.step("turn")
    second, first = store.runs()
    assert (first.id, first.name, first.loop, first.stop_reason) == (finished.id, "one", "SessionLoop", "completed")
    assert (second.id, second.name, second.stop_reason) == (waiting.id, None, None)
    assert (first.events, second.events) == (len(finished.events), len(waiting.events))
    assert first.created <= second.created


async def test_a_name_refers_to_the_newest_run_of_that_name(store: Store) -> None:
    for words in ("old", "new"):
        await Agent().loop(words).start("hi", name="same", store=store)
    assert store.load("same").state.output == "new"
    assert len(store.runs()) == 2


async def test_a_named_snapshot_keeps_its_position(store: Store) -> None:
    run = Agent().two_turns().start("hi", name="run", store=store)
    await run.step("turn")
    taken = run.snapshot("half way")
    await run
    assert store.load("half way").events == taken.events
    assert store.load("run").position == len(run.events)
    again = restore(store.load("half way"), Agent().loop("other end"), store=store)
    assert await again == "other end"
    assert again.id != run.id  # the store has more of that run: this is another one
    assert store.load(run.id).state.output == "done"
    assert store.load(again.id).state.output == "other end"


def test_the_error_for_a_missing_name_lists_the_names(store: Store) -> None:
    with pytest.raises(StorageError, match=r"no run or snapshot 'x'\. The store has: nothing"):
        store.load("x")


async def test_a_restored_run_continues_with_its_own_id(store: Store, path: Path) -> None:
    run = Agent().loop(sends("a")).start("hi", name="x", store=store)
    await run.step("turn")
    other = Store(path)
    again = restore(other.load("x"), Agent().loop("done"), store=other)
    again.approve("a")
    assert await again == "done"
    assert again.id == run.id
    assert other.load("x").state.output == "done"
    assert len(other.runs()) == 1
    other.close()


async def test_a_restored_run_can_be_given_a_store(store: Store) -> None:
    run = Agent().two_turns().start("hi")
    await run.step("turn")
    again = restore(run.snapshot(), Agent().loop("done"), store=store, name="late")
    await again
    assert list(store.load("late").events) == again.events


async def test_two_continuations_of_one_run_are_not_mixed(store: Store, path: Path) -> None:
    run = Agent().loop(sends("a")).start("hi", name="x", store=store)
    await run.step("turn")
    other = Store(path)
    one = restore(store.load("x"), Agent().loop("from one"), store=store)
    two = restore(other.load("x"), Agent().loop(asks("b", "c"), "from two"), store=other)
    one.approve("a")
    assert await one == "from one"
    two.reject("a")
    with pytest.raises(RunFailed, match="another process") as failed:
        await two
    assert isinstance(failed.value.__cause__, StoreConflict)
    assert_one_terminal_event_last(two.events)
    assert list(store.load("x").events) == one.events
    other.close()


async def test_the_second_of_two_continuations_writes_nothing_more(store: Store, path: Path) -> None:
    """The winner has fewer events: the loser would write at positions that the winner has not reached."""
    run = Agent().loop(sends("a")).start("hi", name="x", store=store)
    await run.step("turn")
    other = Store(path)
    one = restore(store.load("x"), Agent().loop("from one"), store=store)
    two = restore(other.load("x"), Agent().loop(asks("b", "c", "d"), "from two"), store=other)
    one.answer("a", "winner")
    two.answer("a", "loser")
    with pytest.raises(RunFailed):
        await two
    assert await one == "from one"
    assert list(store.load("x").events) == one.events
    other.close()


def test_a_store_is_used_by_several_threads(store: Store) -> None:
    def drive(number: int) -> None:
        asyncio.run(output_of(Agent().two_turns().start("hi", name=f"run {number}", store=store)))

    threads = [threading.Thread(target=drive, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(store.runs()) == 8
    assert {info.stop_reason for info in store.runs()} == {"completed"}


async def test_two_stores_on_one_file_write_concurrently(store: Store, path: Path) -> None:
    other = Store(path)
    runs = [Agent().two_turns().start("hi", store=s) for s in (store, other) * 4]
    await asyncio.gather(*map(output_of, runs))
    assert len(other.runs()) == 8
    for run in runs:
        assert list(store.load(run.id).events) == run.events
    other.close()


async def test_a_damaged_event_is_named(store: Store, path: Path) -> None:
    run = Agent().two_turns().start("hi", name="x", store=store)
    await run
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE events SET body = ? WHERE key % 4294967296 = 3", (b'{"type":"model_end"',))
    raw.close()
    with pytest.raises(RecordingCorrupt, match=r"event 3 of the run .* is damaged"):
        store.load("x")


async def test_a_missing_event_is_named(store: Store, path: Path) -> None:
    run = Agent().two_turns().start("hi", name="x", store=store)
    await run
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("DELETE FROM events WHERE key % 4294967296 = 3")
    raw.close()
    with pytest.raises(RecordingCorrupt, match=r"event 3 of the run .* is missing"):
        store.load("x")


async def test_one_damaged_run_does_not_hide_the_others(store: Store, path: Path) -> None:
    for name in ("good", "bad"):
        await Agent().loop("ok").start("hi", name=name, store=store)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("UPDATE events SET body = x'00' WHERE key = (SELECT max(key) FROM events)")
    raw.close()
    assert [info.name for info in store.runs()] == ["bad", "good"]
    assert store.load("good").state.output == "ok"


def test_a_file_that_is_not_a_store_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 40)
    with pytest.raises(StorageError, match=r"runs\.db"):
        Store(path).runs()


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(VersionMismatch, match="version 99"):
        Store(path)


def test_a_missing_directory_raises(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        Store(tmp_path / "nowhere" / "runs.db")


async def test_a_failing_store_ends_the_run_with_an_error(store: Store) -> None:
    agent = Agent()
    run = agent.loop(asks("hold"), "done").start("hi", store=store)
    run.play()
    await agent.holding.wait()
    store.close()
    agent.release.set()
    with pytest.raises(RunFailed, match="could not be written"):
        async with asyncio.timeout(60):
            await run


@pytest.mark.parametrize("page_bytes", [1024, 8192])
def test_the_size_of_the_log_does_not_depend_on_the_page_size(path: Path, page_bytes: int) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA page_size={page_bytes}")
        raw.execute("VACUUM")
    with closing(Store(path)) as store:
        ((pages,),) = store._database.query("PRAGMA wal_autocheckpoint")
        assert store._database.query("PRAGMA page_size") == [(page_bytes,)]
    assert pages * page_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize("told", ["a consumer", "a watcher"])
async def test_every_event_that_is_reported_is_on_disk(told: str, store: Store, path: Path) -> None:
    run = Agent().two_turns().start("hi", store=store)
    other = Store(path)
    on_disk: list[tuple[int, int]] = []
    if told == "a watcher":
        run.watch(lambda event: not isinstance(event, Delta) and on_disk.append((event.seq, other.position(run.id))))
        await run
    else:
        async for event in run:
            if not isinstance(event, Delta):
                on_disk.append((event.seq, other.position(run.id)))
    assert len(on_disk) == len(run.events)
    assert all(count > seq for seq, count in on_disk)
    other.close()
