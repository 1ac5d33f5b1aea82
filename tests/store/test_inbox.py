"""Questions of a store's runs are decided from other processes: once, and the process that drives applies it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from agentnb import AlreadyDecided, SessionLoop, Store, UsageError, tool
from agentnb.core.events import ApprovalDecision
from agentnb.run import Pending, Run
from agentnb.store.inbox import Inbox
from agentnb.testing import ScriptedLLM, call
from tests.benchmarks.deciders import check, decide, decided_by_two, study_of
from tests.benchmarks.deciders import command as process_of
from tests.store.postgres import PostgresServer
from tests.worlds import until


@tool(approve=True, view=lambda arguments: f"{arguments['amount']} Euro")
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def paying(calls: int = 1) -> SessionLoop:
    turns = [*(call("pay", {"amount": number}, id=f"c{number}") for number in range(calls)), "done"]
    return SessionLoop(ScriptedLLM(turns), [pay])


@pytest.fixture
def other(place: str, store: Store, open_store: Callable[[str], Store]) -> Iterator[Inbox]:
    """The inbox of another connection to the store."""
    with closing(open_store(place).inbox()) as inbox:
        yield inbox


def started(store: Store, loop: SessionLoop | None = None) -> Run:
    run = (loop or paying()).start("go", store=store, name="one")
    run.play()
    return run


async def asked(inbox: Inbox) -> Pending:
    (item,) = await asyncio.to_thread(inbox.wait, 10)
    return item


async def refused(decide: Callable[..., object], *arguments: object, **options: object) -> str:
    with pytest.raises(UsageError) as refusal:
        await asyncio.to_thread(decide, *arguments, **options)
    return f"{type(refusal.value).__name__}: {refusal.value}"


async def test_a_question_is_shown_and_decided_in_another_process_as_here(store: Store, other: Inbox) -> None:
    run = started(store)
    item = await asked(other)
    assert item == run.pending[0]
    assert (item.view, item.description, item.schema["required"]) == ("0 Euro", "Pay an amount.", ["amount"])
    assert await asyncio.to_thread(other.approve, item, reviewer="Ada") == 1
    assert await run == "done"
    (decision,) = (event for event in run.events if isinstance(event, ApprovalDecision))
    assert (decision.decision, decision.by, decision.reviewer) == ("approve", "code", "Ada")
    assert decision.shown == item.shown
    assert store.events(run.id) == list(run.events)
    assert list(other) == []


async def test_the_second_person_learns_who_has_decided_and_when(
    store: Store, other: Inbox, place: str, open_store: Callable[[str], Store]
) -> None:
    run = started(store)
    item = await asked(other)
    with closing(open_store(place).inbox()) as third:
        both = [
            asyncio.to_thread(third.approve, item, reviewer="Bob"),
            asyncio.to_thread(other.reject, item, reviewer="Ada"),
        ]
        results = await asyncio.gather(*both, return_exceptions=True)
    await run
    (decision,) = (event for event in run.events if isinstance(event, ApprovalDecision))
    (won,) = (number for number, result in enumerate(results) if result == 1)
    assert (decision.reviewer, decision.decision) == [("Bob", "approve"), ("Ada", "reject")][won]
    when = time.strftime("%H:%M:%S", time.localtime(decision.time))
    (lost,) = (str(result) for result in results if isinstance(result, AlreadyDecided))
    done = {"approve": "approved", "reject": "rejected"}[decision.decision]
    assert f"is already decided: {decision.reviewer} {done} it at {when}, in the run {run.name or run.id}." in lost


async def test_a_decision_in_the_driving_process_is_the_first_one(store: Store, other: Inbox) -> None:
    run = started(store)
    item = await asked(other)
    run.reject(run.pending[0], "too much", reviewer="Ada")
    assert "AlreadyDecided" in (text := await refused(other.approve, item, reviewer="Bob"))
    assert "Ada rejected it at" in text
    assert await asyncio.to_thread(other.approve, [item]) == 0
    await run
    assert await refused(other.approve, item)


async def test_a_decision_that_does_not_fit_leaves_the_question_open(store: Store, other: Inbox) -> None:
    run = started(store, paying(3))
    item = await asked(other)
    assert "InvalidArguments" in await refused(other.edit, item, {"amount": "much"})
    (again,) = other.pending
    await asyncio.to_thread(other.edit, again, {"amount": 7})
    await asyncio.to_thread(other.answer, await asked(other), {"paid": "by hand"})
    await asyncio.to_thread(other.reject, await asked(other), "no more")
    await run
    results = [message["content"] for message in run.messages if message["role"] == "tool"]
    assert results == ["paid 7", '{"paid":"by hand"}', "Rejected: no more"]


async def test_an_inbox_has_the_runs_with_its_tag_only_and_counts_them(store: Store, other: Inbox) -> None:
    runs = [paying().start("go", store=store, name=f"run {number}", tags=[f"number:{number}"]) for number in range(3)]
    for run in runs:
        run.play()
    await until(lambda: len(other) == 3)
    assert [item.run_id for item in store.inbox(tag="number:1")] == [runs[1].id]
    assert [item.run_id for item in store.inbox(arm={"number": "2"})] == [runs[2].id]
    assert "run 1" in other._repr_html_()
    assert "3 calls wait" in repr(other)
    assert await asyncio.to_thread(other.approve, other.pending, reviewer="Ada") == 3
    assert [await run for run in runs] == ["done"] * 3


async def test_the_questions_of_a_run_that_was_cancelled_are_closed(store: Store, other: Inbox) -> None:
    run = started(store)
    item = await asked(other)
    run.cancel()
    assert "its run has ended" in await refused(other.approve, item)
    with pytest.raises(UsageError, match=r"Pass items of inbox\.pending"):
        other.approve(["c0"])  # type: ignore[list-item]


async def test_without_an_inbox_a_store_has_no_table_of_questions(place: str, store: Store) -> None:
    run = started(store)
    await until(lambda: bool(run.pending))
    assert not store._database.has_table("questions")
    with closing(store.inbox()) as inbox:
        assert len(await asyncio.to_thread(inbox.wait, 10)) == 1  # it asked before there was an inbox
        await asyncio.to_thread(inbox.approve, inbox.pending)
    assert await run == "done"


# -- processes that die, and connections that are lost -----------------------------------------------------------------


@pytest.fixture
def place_of_server(postgres: PostgresServer) -> str:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agentnb CASCADE")
    return postgres.url


@pytest.mark.postgres
@pytest.mark.sampled(1000)
@pytest.mark.parametrize("name", ["part"])
async def test_decisions_hold_if_the_process_that_drives_and_the_one_that_decides_die(
    place_of_server: str, open_store: Callable[[str], Store], name: str
) -> None:
    # A process drives a run until it asks, and is killed.
    store = open_store(place_of_server)
    with closing(store.inbox()) as inbox:
        driving = process_of("drive", place_of_server, name, 1)
        (item,) = await asyncio.to_thread(inbox.wait, 30)
        driving.kill()
        driving.communicate()

        # Another process decides, and is killed before the decision is applied.
        deciding = process_of("decide", place_of_server, "Ada", 1, 0)
        await until(lambda: not inbox.pending)
        deciding.kill()
        deciding.communicate()
        assert "by Ada" in await refused(inbox.reject, item, reviewer="Bob")

        # The decision is applied when the run continues here.
        (run,) = await study_of(store, name, 1)
        assert run.output in (f"sent to {name}-0", "Rejected by the user.")
        assert list(inbox) == []
    (decision,) = (event for event in store.events(str(run.id)) if isinstance(event, ApprovalDecision))
    assert decision.reviewer == "Ada"


def connections_that_listen(place: str, channel: str = "%") -> list[int]:
    sql = "SELECT pid FROM pg_stat_activity WHERE query LIKE %s"
    with psycopg.connect(place, autocommit=True) as connection:
        return [pid for (pid,) in connection.execute(sql, [f"LISTEN agentnb_{channel}"]).fetchall()]


@pytest.mark.postgres
async def test_a_connection_that_is_lost_while_it_listens_is_made_again(
    place_of_server: str, open_store: Callable[[str], Store]
) -> None:
    store = open_store(place_of_server)
    lost: list[int] = []
    with closing(open_store(place_of_server).inbox()) as inbox:
        run = started(store, paying(3))
        for _ in range(3):
            item = await asked(inbox)
            # End the connections of the process that drives, and those of the inbox that are open.
            await until(lambda: bool(set(connections_that_listen(place_of_server, "decided")) - set(lost)))
            lost.extend(connections_that_listen(place_of_server))
            with psycopg.connect(place_of_server, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [lost])
            assert await asyncio.to_thread(inbox.approve, item) == 1
        assert await run == "done"
        await until(lambda: not set(lost) & set(connections_that_listen(place_of_server)))


@pytest.mark.postgres
async def test_two_people_decide_the_questions_of_another_process(place_of_server: str) -> None:
    Store(place_of_server).close()
    driving = process_of("drive", place_of_server, "part0", 20)
    people = [asyncio.to_thread(decide, place_of_server, name, 20, seed) for seed, name in enumerate(("Ada", "Bob"))]
    decided = dict(zip(("Ada", "Bob"), await asyncio.gather(*people), strict=True))
    driving.communicate(timeout=60)
    check(place_of_server, 20, decided)


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("questions", [200])
async def test_two_processes_decide_the_questions_of_three(place: str, questions: int) -> None:
    counts = await asyncio.to_thread(decided_by_two, place, questions)
    assert counts.p95 < 500  # 75 ms on a machine with 2 cores that was busy
