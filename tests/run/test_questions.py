"""A question is identified by its run, its path and the number of its event; ids identify nothing by themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentnb import Agent, LoopAgent, SessionLoop, Snapshot, Store, restore, tool
from agentnb.errors import AlreadyDecided, UnknownCall, UsageError
from agentnb.testing import ScriptedLLM, call
from tests.worlds import until

ACTS: dict[str, Callable[[Any, Any], None]] = {
    "approve": lambda run, one: run.approve(one),
    "reject": lambda run, one: run.reject(one, "no"),
    "edit": lambda run, one: run.edit(one, {"path": "x"}),
    "replace": lambda run, one: run.replace(one, "delete", {"path": "x"}),
    "answer": lambda run, one: run.answer(one, "gone"),
}


class World:
    """Loops whose one tool asks before it deletes, and says what it deleted."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(approve=True)
        async def delete(path: str) -> str:
            self.ran.append(path)
            return "gone"

        self.delete = delete

    def agent(self, name: str, path: str) -> Agent:
        return Agent(ScriptedLLM([[call("delete", {"path": path}, id="c1")], "done"]), [self.delete], name=name)

    def session(self, *calls: Any, tools: tuple[Any, ...] = ()) -> SessionLoop:
        return SessionLoop(ScriptedLLM([list(calls), "done"]), [self.delete, *tools])

    async def asking(self, path: str) -> Any:
        """A run of one call that waits."""
        run = self.session(call("delete", {"path": path}, id="c1")).start("go")
        await run.step("turn")
        return run

    async def three(self) -> Any:
        """A run in which three calls wait: two under one id, and one whose id looks like a path and an id."""
        critic = self.agent("critic", "inside")
        calls = (
            call("critic", {"input": "go"}, id="x"),
            call("delete", {"path": "outside"}, id="critic/c1"),
            call("delete", {"path": "here"}, id="c1"),
        )
        run = self.session(*calls, tools=(critic,)).start("go")
        run.play()
        await until(lambda: len(run.pending) == 3)
        return run


def decisions(run: Any) -> list[Any]:
    return [event for event in run.events if event.type == "approval_decision"]


async def test_a_question_says_its_run_its_path_and_the_number_of_its_event() -> None:
    run = await World().three()
    for item in run.pending:
        event = run.events[item.event]
        assert (event.type, event.run_id, event.path, event.call_id) == (
            "approval_request",
            item.run_id,
            item.path,
            item.id,
        )
        assert item.run_id == run.id
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_late_answer_decides_no_other_call_of_the_same_id(act: Any) -> None:
    world = World()
    run = LoopAgent("boss", [world.agent("one", "first"), world.agent("two", "second")], 1).start("go")
    run.play()
    await until(lambda: run.pending)
    shown = run.pending[0]
    run.reject(shown, "no")
    await until(lambda: run.pending and run.pending[0].path == "two")
    with pytest.raises(AlreadyDecided):
        act(run, shown)
    assert len(decisions(run)) == 1
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_the_answer_to_a_question_that_was_asked_again_is_refused(act: Any) -> None:
    run = await World().asking("a")
    shown = run.pending[0]
    run.approve(shown)
    run.undo(run.decided[0])
    with pytest.raises(AlreadyDecided, match=f"event {run.pending[0].event} in run.pending"):
        act(run, shown)
    assert [event.decision for event in decisions(run)] == ["approve", "ask"]
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_the_question_of_another_run_decides_nothing(act: Any) -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    with pytest.raises(AlreadyDecided, match=one.id):
        act(other, one.pending[0])
    assert (decisions(one), decisions(other)) == ([], [])
    one.cancel()
    other.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_of_two_answers_to_one_question_the_first_holds(act: Any) -> None:
    run = await World().asking("a")
    shown = run.pending[0]
    run.approve(shown)
    with pytest.raises(AlreadyDecided, match="approve by code"):
        act(run, shown)
    assert [event.decision for event in decisions(run)] == ["approve"]
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_an_id_under_which_two_questions_wait_is_refused_with_both(act: Any) -> None:
    run = await World().three()
    with pytest.raises(UsageError) as refused:
        act(run, "c1")
    assert "delete(path='inside') in critic" in str(refused.value)
    assert "delete(path='here') in the outermost loop" in str(refused.value)
    assert decisions(run) == []
    run.cancel()


async def test_an_id_under_which_one_question_waits_is_taken_whatever_it_looks_like() -> None:
    world = World()
    run = await world.three()
    run.approve("critic/c1")
    await until(lambda: world.ran)
    assert world.ran == ["outside"]
    run.approve(next(item for item in run.pending if item.path == "critic"))
    await until(lambda: len(world.ran) == 2)
    run.approve("c1")  # only one waits under it now
    await run
    assert world.ran == ["outside", "inside", "here"]


async def test_a_question_is_answered_by_itself_whatever_other_calls_are_named() -> None:
    world = World()
    run = await world.three()
    run.approve(next(item for item in run.pending if item.arguments == {"path": "inside"}))
    await until(lambda: world.ran)
    assert world.ran == ["inside"]
    run.cancel()


async def test_an_id_that_no_call_has_is_named_with_those_that_wait() -> None:
    run = await World().asking("a")
    with pytest.raises(UnknownCall, match=r"'nothing'.*waiting: c1 \(delete\)"):
        run.approve("nothing")
    run.cancel()


# -- taking back -------------------------------------------------------------------------------------------------------


async def test_a_decision_of_another_run_is_not_taken_back() -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    one.approve("c1")
    other.approve("c1")
    with pytest.raises(AlreadyDecided, match=one.id):
        other.undo(one.decided[0])
    assert [item.decision for item in other.decided] == ["approve"]
    one.cancel()
    other.cancel()


async def test_what_is_remembered_in_another_run_is_not_forgotten() -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    one.approve("c1", remember="tool")
    other.approve("c1", remember="tool")
    with pytest.raises(AlreadyDecided, match=one.id):
        other.forget(one.remembered[0])
    assert len(other.remembered) == 1
    one.cancel()
    other.cancel()


async def test_a_decision_is_taken_back_once() -> None:
    run = await World().asking("a")
    run.approve("c1")
    (first,) = run.decided
    run.undo(first)
    with pytest.raises(AlreadyDecided):
        run.undo(first)
    run.approve("c1")
    with pytest.raises(AlreadyDecided, match="decided again"):
        run.undo(first)
    assert len(run.decided) == 1
    run.cancel()


async def test_a_decision_says_which_question_it_answers() -> None:
    run = await World().asking("a")
    shown = run.pending[0]
    run.approve(shown)
    (decided,) = run.decided
    assert (decided.question, decided.run_id, decided.path) == (shown.event, run.id, "")
    assert decisions(run)[0].question == shown.event
    run.undo(decided)
    assert run.events[run.pending[0].event].earlier == shown.event
    run.cancel()


# -- calls whose outcome nobody knows ----------------------------------------------------------------------------------


async def lost(world: World) -> Any:
    """A restored run whose call was started by a process that is gone."""
    run = await world.asking("a")
    run.approve("c1")
    await run
    begun = next(event.seq for event in run.events if event.type == "call_start")
    world.ran.clear()
    return restore(Snapshot.of(run.events[: begun + 1]), world.session())


async def test_a_question_that_was_not_asked_yet_is_answered_once_it_is() -> None:
    world = World()
    run = await lost(world)
    shown = run.pending[0]
    assert (shown.event, shown.unknown) == (None, True)
    run.play()
    await until(lambda: run.pending and run.pending[0].event is not None)
    run.answer(shown, "it happened")
    await until(lambda: run.stop_reason)
    assert decisions(run)[-1].question is not None


async def test_a_question_that_was_not_asked_yet_is_asked_when_it_is_answered() -> None:
    run = await lost(World())
    run.answer(run.pending[0], "it happened")
    asked = next(event for event in reversed(run.events) if event.type == "approval_request")
    assert (decisions(run)[-1].question, asked.unknown) == (asked.seq, True)
    run.cancel()


@pytest.mark.parametrize("act", [ACTS["approve"], ACTS["reject"], ACTS["answer"]])
async def test_the_item_of_a_lost_call_answers_no_later_question_about_it(act: Any) -> None:
    run = await lost(World())
    shown = run.pending[0]
    run.approve(shown)
    run.undo(run.decided[0])
    with pytest.raises(AlreadyDecided):
        act(run, shown)
    assert len(run.pending) == 1
    run.cancel()


async def test_a_watcher_answers_no_question_that_is_being_taken_back() -> None:
    world = World()
    run = await world.asking("a")
    shown = run.pending[0]
    run.approve(shown)
    refused: list[BaseException] = []

    def hurry(event: Any) -> None:
        if event.type == "approval_decision" and event.decision == "ask":
            try:
                run.approve(shown)
            except AlreadyDecided as error:
                refused.append(error)

    run.watch(hurry)
    run.undo(run.decided[0])
    assert len(refused) == 1
    assert [item.event for item in run.pending] == [run.events[-1].seq]
    run.cancel()


async def test_a_call_whose_decision_was_taken_back_as_the_process_ended_is_asked_about_again() -> None:
    world = World()
    run = await world.asking("a")
    run.approve("c1")
    run.undo("c1")
    cut = Snapshot.of(run.events[:-1])
    run.cancel()
    restored = restore(cut, world.session())
    assert [(item.id, item.event) for item in restored.pending] == [("c1", None)]
    restored.play()
    await until(lambda: restored.pending and restored.pending[0].event is not None)
    assert world.ran == []
    restored.approve("c1")
    await restored
    assert world.ran == ["a"]


# -- restored from a store ---------------------------------------------------------------------------------------------


async def test_two_loops_that_wait_under_one_id_are_told_apart_after_a_restore(tmp_path: Path) -> None:
    world = World()
    store = Store(tmp_path / "runs.db")
    agents = [world.agent("one", "first"), world.agent("two", "second")]
    asked = (call("one", {"input": "go"}, id="x"), call("two", {"input": "go"}, id="y"))
    run = world.session(*asked, tools=tuple(agents)).start("go", store=store, name="r")
    run.play()
    await until(lambda: len(run.pending) == 2)
    snapshot = store.load("r")
    rest = [Agent(ScriptedLLM(["done"]), [world.delete], name=name) for name in ("one", "two")]
    again = restore(snapshot, SessionLoop(ScriptedLLM(["done"]), [world.delete, *rest]))
    again.play()
    await until(lambda: len(again.pending) == 2)
    with pytest.raises(UsageError) as refused:
        again.approve("c1")
    assert "delete(path='first') in one" in str(refused.value)
    assert "delete(path='second') in two" in str(refused.value)
    one, two = sorted(again.pending, key=lambda item: item.path)
    again.reject(two, "no")
    again.approve(one)
    await again
    assert world.ran == ["first"]
    assert [(event.path, event.decision) for event in decisions(again)] == [("two", "reject"), ("one", "approve")]
    run.cancel()
    store.close()


async def test_two_runs_of_a_store_that_wait_under_one_id_are_each_answered_by_their_own_item(tmp_path: Path) -> None:
    world = World()
    store = Store(tmp_path / "runs.db")
    for path in ("a", "b"):
        run = world.session(call("delete", {"path": path}, id="c1")).start("go", store=store, name=path)
        await run.step("turn")
    one, other = (restore(store.load(name), world.session()) for name in ("a", "b"))
    with pytest.raises(AlreadyDecided, match=other.id):
        one.approve(other.pending[0])
    one.approve(one.pending[0])
    other.reject(other.pending[0], "no")
    assert [event.decision for run in (one, other) for event in decisions(run)] == ["approve", "reject"]
    for run in (one, other):
        await run
    assert world.ran == ["a"]
    store.close()
