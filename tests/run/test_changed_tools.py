"""A decision about a tool is valid for that tool only: its path, its name, its description and its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentnb import Agent, SessionLoop, Snapshot, restore, tool
from agentnb.core.events import RunStart
from agentnb.errors import AlreadyDecided
from agentnb.testing import ScriptedLLM, call
from tests.worlds import until


class World:
    """Makes tools of the name `write` with different descriptions and schemas, which record what they did."""

    def __init__(self) -> None:
        self.ran: list[Any] = []

    def write(self, to: str = "notes", *, forced: bool = False) -> Any:
        if forced:

            @tool(approve=True, name="write", description=f"Write to {to}.")
            async def write_by_force(path: str, force: bool = True) -> str:
                self.ran.append((to, path, force))
                return "written"

            return write_by_force

        @tool(approve=True, name="write", description=f"Write to {to}.")
        async def write(path: str) -> str:
            self.ran.append((to, path))
            return "written"

        return write

    def loop(self, *paths: str, write: Any = None, tools: tuple[Any, ...] = ()) -> SessionLoop:
        """A session that writes to each path, one turn after the other."""
        turns = [[call("write", {"path": path}, id=path)] for path in paths]
        return SessionLoop(ScriptedLLM([*turns, "done"]), [write or self.write(), *tools])

    async def asking(self, *paths: str) -> Any:
        run = self.loop(*paths).start("go")
        await run.step("turn")
        return run


async def settled(run: Any) -> list[Any]:
    """Continue until a call is pending, or to the end; return the pending calls."""
    run.play()
    await until(lambda: run.pending or run.stop_reason)
    return list(run.pending)


CHANGED: dict[str, Callable[[World], Any]] = {
    "description": lambda world: world.write("PRODUCTION"),
    "schema": lambda world: world.write(forced=True),
}
changed = pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)


def through_json(run: Any) -> Snapshot:
    return Snapshot.from_json(run.snapshot().to_json())


def test_the_fingerprint_of_a_loop_changes_with_its_tools() -> None:
    world = World()

    def fingerprints(write: Any) -> tuple[str, dict[str, str]]:
        run = world.loop("a", write=write).start("go")
        run.cancel()
        start = run.events[0]
        assert isinstance(start, RunStart)
        return start.fingerprint, start.tools

    one, same = fingerprints(world.write()), fingerprints(world.write())
    assert one == same
    assert len({one[0], *(fingerprints(make(world))[0] for make in CHANGED.values())}) == 3


@changed
async def test_a_decided_call_of_a_changed_tool_needs_approval_again(changed: Any) -> None:
    world = World()
    run = await world.asking("a")
    run.approve("a")
    with pytest.warns(UserWarning, match="another description or schema than in the recording: write"):
        again = restore(through_json(run), world.loop(write=changed(world)))
    (item,) = await settled(again)
    assert "has changed since this was decided" in item.reason
    assert world.ran == []
    again.approve(item)
    await again
    assert len(world.ran) == 1
    run.cancel()


@changed
async def test_an_edited_call_of_a_changed_tool_needs_approval_with_its_edited_arguments(changed: Any) -> None:
    world = World()
    run = await world.asking("a")
    run.edit("a", {"path": "b"})
    with pytest.warns(UserWarning, match="write"):
        again = restore(through_json(run), world.loop(write=changed(world)))
    (item,) = await settled(again)
    assert item.arguments == {"path": "b"}
    assert world.ran == []
    again.cancel()
    run.cancel()


@changed
async def test_a_remembered_decision_ends_when_the_tool_changes(changed: Any) -> None:
    world = World()
    run = await world.asking("a", "b")
    run.approve("a", remember="tool")
    await run
    before_b = next(event.seq for event in run.events if event.type == "call_end")
    world.ran.clear()
    with pytest.warns(UserWarning, match="write"):
        again = restore(run.at(before_b).snapshot(), world.loop("b", write=changed(world)))
    (item,) = await settled(again)
    assert (item.id, world.ran) == ("b", [])
    remembered = next(event.seq for event in run.events if getattr(event, "remember", None) == "tool")
    assert f"has changed since event {remembered}" in item.reason
    again.cancel()


async def test_a_tool_that_is_defined_again_unchanged_is_the_same() -> None:
    world = World()
    run = await world.asking("a", "b")
    run.approve("a", remember="tool")
    again = restore(through_json(run), world.loop("b"))
    assert await settled(again) == []
    assert world.ran == [("notes", "a"), ("notes", "b")]
    run.cancel()


async def test_a_policy_decides_about_a_changed_tool_again() -> None:
    world = World()
    run = world.loop("a").start("go", approve=True)
    while not run.decided:
        await run.step("event")
    with pytest.warns(UserWarning, match="write"):
        again = restore(through_json(run), world.loop(write=world.write("PRODUCTION")))
    await again
    assert [event.by for event in again.events if event.type == "approval_decision"] == ["rule", "rule"]
    run.cancel()


async def test_a_remembered_decision_applies_to_its_own_loop_only() -> None:
    world = World()
    inner = Agent(ScriptedLLM([[call("write", {"path": "x"}, id="k")], "x"]), [world.write()], name="deploy")
    llm = ScriptedLLM([[call("write", {"path": "a"}, id="a")], [call("deploy", {"input": "x"}, id="b")], "end"])
    run = SessionLoop(llm, [world.write(), inner]).start("go")
    (item,) = await settled(run)
    run.approve(item, remember="tool")
    await until(lambda: run.pending or run.stop_reason)
    assert [(item.path, item.arguments) for item in run.pending] == [("deploy", {"path": "x"})]
    assert world.ran == [("notes", "a")]
    run.cancel()


async def test_a_changed_tool_of_a_nested_loop_is_named_with_its_path() -> None:
    world = World()

    def outer(write: Any) -> SessionLoop:
        inner = Agent(ScriptedLLM([[call("write", {"path": "x"}, id="k")], "x"]), [write], name="deploy")
        return SessionLoop(ScriptedLLM([[call("deploy", {"input": "x"}, id="b")], "end"]), [inner])

    run = outer(world.write()).start("go")
    (item,) = await settled(run)
    run.pause()
    run.approve(item)
    snapshot = through_json(run)
    run.cancel()
    with pytest.warns(UserWarning, match="write in deploy"):
        again = restore(snapshot, outer(world.write("PRODUCTION")))
    assert [item.path for item in await settled(again)] == ["deploy"]
    again.cancel()


async def test_a_changed_tool_replaces_its_open_question() -> None:
    world = World()
    run = await world.asking("a")
    shown = run.pending[0]
    with pytest.warns(UserWarning, match="write"):
        again = restore(through_json(run), world.loop(write=world.write(forced=True)))
    with pytest.raises(AlreadyDecided, match="changed since it was shown"):
        again.approve(shown)
    again.approve(again.pending[0])
    again.cancel()
    run.cancel()


async def test_a_recording_without_fingerprints_is_continued() -> None:
    world = World()
    run = await world.asking("a", "b")
    run.approve("a", remember="tool")
    without: dict[str, dict[str, Any]] = {
        "run_start": {"tools": {}},
        "approval_decision": {"tool_fingerprint": None},
    }
    old = [event.model_copy(update=without.get(event.type, {})) for event in run.events]
    again = restore(Snapshot.of(old), world.loop("b", write=world.write("PRODUCTION")))
    assert await settled(again) == []
    assert world.ran == [("PRODUCTION", "a"), ("PRODUCTION", "b")]
    run.cancel()
