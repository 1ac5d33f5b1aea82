"""A breakpoint at a call stops before the call starts, once; at any other event it stops directly after the event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from agentnb import Loop, Run, SessionLoop, Snapshot, Store, UsageError, replay, restore, tool
from agentnb.core.events import RunPaused
from agentnb.loops.want import call as want_call
from agentnb.loops.want import phase
from agentnb.testing import ScriptedLLM, call
from tests.designs import WORLDS
from tests.worlds import types, until


class World:
    """A session that reads, then deletes; it records what its tools have done."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool
        async def read(path: str) -> str:
            self.ran.append(f"read {path}")
            return "text"

        @tool
        async def delete(path: str) -> str:
            self.ran.append(f"delete {path}")
            return "gone"

        self.tools = [read, delete]

    def loop(self) -> SessionLoop:
        turn = [call("read", {"path": "a"}, id="c1"), call("delete", {"path": "b"}, id="c2")]
        again = [call("delete", {"path": "c"}, id="c3")]
        return SessionLoop(ScriptedLLM([turn, again, "done"]), self.tools)


def pauses(run: Run) -> list[RunPaused]:
    """Return the pauses of a run that were caused by breakpoints."""
    return [event for event in run.events if isinstance(event, RunPaused) and event.by == "breakpoint"]


async def to_the_end(run: Run, at_rest: Callable[[], object] = lambda: None) -> None:
    """Play a run to its end, and look at it wherever it is paused."""
    run.play()
    while True:
        await until(lambda: run.state.paused or run.state.over)
        if run.state.over:
            return
        await asyncio.sleep(0)
        at_rest()
        run.resume()


AT_DELETE: dict[str, Any] = {
    "a word": "delete",
    "tool=": {"tool": "delete"},
    "a glob": {"tool": "del*"},
    "tool= and event=": {"tool": "delete", "event": "call_start"},
    "an argument": {"arguments": [("path", "is not", "a")]},
    "where": {"where": 'tool == "delete"'},
    "where, of the arguments": {"where": 'arguments.path in ("b", "c")'},
    "where, of the event": {"where": 'event.type == "call_start" and tool == "delete"'},
    "the panel's form": {"event": "", "tool": "delete", "phase": "", "arguments": [], "cost_above": None, "where": ""},
    "a function": lambda event, state: event.type == "call_start" and event.name == "delete",
}


@pytest.mark.parametrize("form", AT_DELETE)
async def test_a_breakpoint_in_every_form_stops_once_before_each_call(form: str) -> None:
    world, seen = World(), []
    run = world.loop().start("go", breakpoints=[AT_DELETE[form]])
    await to_the_end(run, lambda: seen.append((list(world.ran), types(run.events).count("call_start"))))
    assert seen == [(["read a"], 1), (["read a", "delete b"], 2)]
    assert world.ran == ["read a", "delete b", "delete c"]
    assert run.breakpoints[0].hits == 2
    assert len(pauses(run)) == 2


@pytest.mark.parametrize("at", ["call_start", {"event": "call_start"}, {"phase": "acting"}, "acting"])
async def test_a_breakpoint_on_call_start_or_a_phase_stops_before_the_call(at: Any) -> None:
    world, seen = World(), []
    run = world.loop().start("go", breakpoints=[at])
    await to_the_end(run, lambda: seen.append(list(world.ran)))
    each_call = [[], ["read a"], ["read a", "delete b"]]
    assert seen == (each_call if "call_start" in str(at) else [each_call[0], each_call[2]])


@pytest.mark.parametrize("drive", ["play", "await", "pull", "step"])
async def test_a_breakpoint_stops_before_the_tool_with_every_driver(drive: str) -> None:
    world = World()
    run = world.loop().start("go", breakpoints=["delete"])

    async def driven() -> None:
        if drive == "pull":
            async for _ in run:
                pass
        elif drive == "step":
            await run.step("turn")
        elif drive == "await":
            await run

    task = asyncio.create_task(driven())
    if drive == "play":
        run.play()
    await until(lambda: run.state.paused)
    assert world.ran == ["read a"]
    assert run.paused_for == "breakpoint at call_start of delete (c2), which has not started: delete"
    run.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert world.ran == ["read a"]


@pytest.mark.parametrize(
    "world",
    ["session", "agent", "parallel_agent", "execution", "engine", "loop_agent", "session_of_agents", "generator"],
)
async def test_in_every_design_a_breakpoint_stops_before_each_call_in_the_run_and_in_a_replay(world: str) -> None:
    def nothing_has_begun() -> None:
        before = pauses(run)[-1].before
        assert before is not None
        started = [event for event in run.events if event.type == "call_start" and event.path == before[0]]
        assert before[1] not in [event.call_id for event in started if event.attempt == 1]

    run = WORLDS[world]().start("go", approve=True, breakpoints=["call_start"])
    await to_the_end(run, nothing_has_begun)
    starts = [event for event in run.events if event.type == "call_start"]
    assert [pause.before for pause in pauses(run)] == [(start.path, start.call_id) for start in starts]
    assert run.breakpoints[0].hits == len(starts)
    recording = replay(run)
    here = recording.breakpoints.add("call_start")
    for start in starts:
        assert recording.continue_() is here
        assert recording.position == start.seq
    assert recording.continue_() is None
    assert here.hits == len(starts)


@pytest.mark.parametrize("kind", ["approval_decision", "approval_request", "call_end", "model_end", "model_start"])
async def test_a_breakpoint_at_another_event_stops_directly_after_it(kind: str) -> None:
    run = WORLDS["sequential_session"]().start("go", approve=[{"tool": "*", "decision": "approve"}])
    run.breakpoints.add(kind)
    await to_the_end(run)
    behind = [run.events[pause.seq - 1].type for pause in pauses(run)]
    assert set(behind) <= {kind}
    assert len(behind) == (types(run.events).count(kind))


@pytest.mark.parametrize("breakpoints", [(), ("delete",), ("call_start",)])
@pytest.mark.parametrize("way", ["snapshot", "store"])
async def test_a_run_stopped_before_a_call_is_restored_and_runs_it_without_approval(
    way: str, breakpoints: Any, tmp_path: Any
) -> None:
    world = World()
    store = Store(tmp_path / "runs.db") if way == "store" else None
    run = world.loop().start("go", breakpoints=["delete"], store=store)
    run.play()
    await until(lambda: run.state.paused)
    saved = Snapshot.from_json(run.snapshot().to_json()) if store is None else store.load(run.id)
    again = World()
    restored = restore(saved, SessionLoop(ScriptedLLM(["done"]), again.tools), breakpoints=breakpoints)
    assert restored.pending == []
    assert restored.paused_for == run.paused_for
    restored.resume()
    restored.play()
    await until(lambda: restored.state.over or restored.state.paused or restored.pending)
    assert (again.ran, restored.stop_reason) == (["delete b"], "completed")
    run.cancel()


async def test_concurrent_calls_finish_before_the_run_stops_at_a_breakpoint() -> None:
    world = World()
    run = world.loop().start("go", breakpoints=["delete"])
    run.play()
    await until(lambda: run.state.paused)
    assert types(run.events)[-3:] == ["call_start", "call_end", "run_paused"]
    run.cancel()


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_steps_continue_from_directly_before_the_call(unit: Any) -> None:
    world = World()
    run = world.loop().start("go", breakpoints=["delete", "read"])
    while step := await run.step(unit):
        assert step
    assert run.stop_reason == "completed"
    assert world.ran == ["read a", "delete b", "delete c"]
    assert [breakpoint.hits for breakpoint in run.breakpoints] == [2, 1]


# -- names -------------------------------------------------------------------------------------------------------------


def node(name: str, ran: list[str]) -> Callable[[], str]:
    def does() -> str:
        ran.append(name)
        return name

    does.__name__ = name
    return does


def flow(ran: list[str]) -> Loop:
    """Return a generator loop with functions; one of them is called by a generator that it delegates to."""
    first, second, queue = node("node_a", ran), node("node_b", ran), node("queue", ran)
    others = [node("researching", ran)]

    def part() -> Generator[Any, Any, Any]:
        return (yield want_call(queue))

    @Loop.from_generator(tools=World().tools, phases=["searching", "writing"])
    def graph(_: Any) -> Generator[Any, Any, Any]:
        yield want_call(first)
        yield phase("writing")
        yield want_call(second)
        yield want_call(others[0])
        return (yield from part())

    return graph


@pytest.mark.parametrize("name", ["node_a", "node_b", "queue", "researching"])
@pytest.mark.parametrize("form", ["word", "tool", "where"])
async def test_a_breakpoint_may_name_a_function_that_a_generator_has_not_called_yet(form: str, name: str) -> None:
    ran: list[str] = []
    at = {"word": name, "tool": {"tool": name}, "where": {"where": f"tool == {name!r}"}}[form]
    run = flow(ran).start(None, breakpoints=[at])
    await to_the_end(run, lambda: ran.append("paused"))
    assert ran == [one for node in ("node_a", "node_b", "researching", "queue")
                   for one in (["paused", node] if node == name else [node])]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("delte", "delete"),
        ("Delete", "delete"),
        ("raed", "read"),
        ({"tool": "delte"}, "delete"),
        ({"tool": "dlete", "event": "call_end"}, "delete"),
        ({"where": 'tool == "delte"'}, "delete"),
        ({"where": 'tool in ("read", "delet") and turn > 1'}, "delete"),
        ("actin", "acting"),
        ({"phase": "thinkng"}, "thinking"),
        ({"where": 'phase != "thinkin"'}, "thinking"),
        ("cal_end", "call_end"),
        ({"event": "approval_descision"}, "approval_decision"),
    ],
)
@pytest.mark.parametrize("of", ["a run", "a replay", "a loop that has it as a tool"])
async def test_a_misspelt_name_is_refused_with_the_closest_match(of: str, wrong: Any, meant: str) -> None:
    loop = World().loop()
    if of == "a loop that has it as a tool":
        loop = SessionLoop(ScriptedLLM(["done"]), [loop])
    run = loop.start("go")
    if of == "a replay":
        await run
    breakpoints = replay(run.snapshot()).breakpoints if of == "a replay" else run.breakpoints
    with pytest.raises(UsageError, match=f"Did you mean '{meant}'"):
        breakpoints.add(wrong)
    assert len(breakpoints) == 0


@pytest.mark.parametrize("wrong", ["serching", "delte", "writting"])
def test_a_misspelt_name_in_a_generator_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="Did you mean"):
        flow([]).start(None, breakpoints=[wrong])


@pytest.mark.parametrize("unknown", ["compute", {"tool": "compute"}, {"tool": "delte*"}, {"phase": "reviewing"}])
def test_an_unknown_name_may_be_of_a_loop_that_has_not_started(unknown: Any) -> None:
    assert len(World().loop().start("go", breakpoints=[unknown]).breakpoints) == 1
