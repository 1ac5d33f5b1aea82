"""A question is identified by its run, its path and the number of its event; an id alone identifies nothing."""

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
    """Loops with one tool that needs approval to delete, and records what it deleted."""

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


async def test_a_pending_item_has_its_run_path_and_event_number() -> None:
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
async def test_a_late_decision_does_not_apply_to_another_call_of_the_same_id(act: Any) -> None:
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
async def test_a_decision_about_an_earlier_question_is_refused(act: Any) -> None:
    run = await World().asking("a")
    shown = run.pending[0]
    run.approve(shown)
    run.undo(run.decided[0])
    with pytest.raises(AlreadyDecided, match=f"event {run.pending[0].event} in run.pending"):
        act(run, shown)
    assert [event.decision for event in decisions(run)] == ["approve", "ask"]
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_pending_item_of_another_run_is_refused(act: Any) -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    with pytest.raises(AlreadyDecided, match=one.id):
        act(other, one.pending[0])
    assert (decisions(one), decisions(other)) == ([], [])
    one.cancel()
    other.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_of_two_decisions_about_one_question_the_first_applies(act: Any) -> None:
    run = await World().asking("a")
    shown = run.pending[0]
    run.approve(shown)
    with pytest.raises(AlreadyDecided, match="code approved it"):
        act(run, shown)
    assert [event.decision for event in decisions(run)] == ["approve"]
    run.cancel()


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_an_id_shared_by_two_questions_is_refused_and_both_are_named(act: Any) -> None:
    run = await World().three()
    with pytest.raises(UsageError) as refused:
        act(run, "c1")
    assert "delete(path='inside') in critic" in str(refused.value)
    assert "delete(path='here') in the outermost loop" in str(refused.value)
    assert decisions(run) == []
    run.cancel()


async def test_an_id_of_one_question_is_accepted_with_or_without_its_path() -> None:
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


async def test_a_pending_item_identifies_its_question_among_equal_names() -> None:
    world = World()
    run = await world.three()
    run.approve(next(item for item in run.pending if item.arguments == {"path": "inside"}))
    await until(lambda: world.ran)
    assert world.ran == ["inside"]
    run.cancel()


async def test_an_unknown_id_is_refused_and_pending_calls_are_named() -> None:
    run = await World().asking("a")
    with pytest.raises(UnknownCall, match=r"'nothing'.*waiting: c1 \(delete\)"):
        run.approve("nothing")
    run.cancel()


# -- taking back -------------------------------------------------------------------------------------------------------


async def test_undoing_a_decision_of_another_run_is_refused() -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    one.approve("c1")
    other.approve("c1")
    with pytest.raises(AlreadyDecided, match=one.id):
        other.undo(one.decided[0])
    assert [item.decision for item in other.decided] == ["approve"]
    one.cancel()
    other.cancel()


async def test_forgetting_a_rule_of_another_run_is_refused() -> None:
    world = World()
    one, other = await world.asking("a"), await world.asking("b")
    one.approve("c1", remember="tool")
    other.approve("c1", remember="tool")
    with pytest.raises(AlreadyDecided, match=one.id):
        other.forget(one.remembered[0])
    assert len(other.remembered) == 1
    one.cancel()
    other.cancel()


async def test_a_decision_can_be_undone_once() -> None:
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


async def test_a_decision_has_the_number_of_its_question() -> None:
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
    """Return a restored run whose call was started by a process that has exited."""
    run = await world.asking("a")
    run.approve("c1")
    await run
    begun = next(event.seq for event in run.events if event.type == "call_start")
    world.ran.clear()
    return restore(Snapshot.of(run.events[: begun + 1]), world.session())


async def test_an_item_shown_before_its_question_was_recorded_answers_it_later() -> None:
    world = World()
    run = await lost(world)
    shown = run.pending[0]
    assert (shown.event, shown.unknown) == (None, True)
    run.play()
    await until(lambda: run.pending and run.pending[0].event is not None)
    run.answer(shown, "it happened")
    await until(lambda: run.stop_reason)
    assert decisions(run)[-1].question is not None


async def test_answering_a_question_that_is_not_recorded_yet_records_it() -> None:
    run = await lost(World())
    run.answer(run.pending[0], "it happened")
    asked = next(event for event in reversed(run.events) if event.type == "approval_request")
    assert (decisions(run)[-1].question, asked.unknown) == (asked.seq, True)
    run.cancel()


@pytest.mark.parametrize("act", [ACTS["approve"], ACTS["reject"], ACTS["answer"]])
async def test_the_item_of_a_lost_call_does_not_answer_a_later_question(act: Any) -> None:
    run = await lost(World())
    shown = run.pending[0]
    run.approve(shown)
    run.undo(run.decided[0])
    with pytest.raises(AlreadyDecided):
        act(run, shown)
    assert len(run.pending) == 1
    run.cancel()


async def test_a_watcher_cannot_answer_a_question_during_an_undo() -> None:
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


async def test_a_call_whose_decision_was_undone_at_the_end_of_the_process_needs_approval_again() -> None:
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


async def test_two_pending_calls_with_the_same_id_are_identified_after_a_restore(tmp_path: Path) -> None:
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


async def test_pending_items_of_two_runs_with_the_same_id_answer_their_own_run(tmp_path: Path) -> None:
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
