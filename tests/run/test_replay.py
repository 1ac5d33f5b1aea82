from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any, ClassVar

import pytest

import agentnb
from agentnb import (
    ExecutionLoop,
    LimitReached,
    Loop,
    RunCancelled,
    RunFailed,
    SessionLoop,
    Snapshot,
    UsageError,
    replay,
    tool,
)
from agentnb.analysis import events
from agentnb.core.events import CallStart, Event, RunEnd
from agentnb.core.evolve import evolve, fold
from agentnb.core.loop import Calls
from agentnb.core.state import State
from agentnb.errors import ReplayDiverged
from agentnb.run import Replay
from agentnb.testing import ScriptedLLM, call
from tests.designs import WORLDS
from tests.run.agents import Agent, sends
from tests.test_designs import drive
from tests.worlds import asks

every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=list(WORLDS))


async def finished() -> Any:
    run = Agent().two_turns(name="talk").start("hi", name="mine")
    await run
    return run


# -- walking -----------------------------------------------------------------------------------------------------------


async def test_a_replay_starts_before_its_first_event() -> None:
    recorded = replay(await finished())
    assert recorded.position == 0
    assert list(recorded.events) == []
    assert recorded.messages == []
    assert recorded.phase == "idle"
    assert recorded.stop_reason is None


async def test_a_step_of_a_replay_returns_its_events() -> None:
    run = await finished()
    recorded = replay(run)
    assert recorded.step() == [run.events[0]]
    assert recorded.step() == [run.events[1]]
    assert recorded.position == 2


async def test_an_empty_recording_can_be_stepped() -> None:
    recorded = replay(Agent().two_turns().start("hi"))
    recorded.watch(lambda event: None)
    assert recorded.step() == []
    assert recorded.back() == []
    assert recorded.to(-1).pending == []


async def test_a_step_of_a_replay_may_be_awaited() -> None:
    run = await finished()
    assert await replay(run).step() == [run.events[0]]


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_steps_of_a_replay_end_where_the_steps_of_the_run_ended(unit: Any) -> None:
    run = Agent().two_turns().start("hi")
    taken: list[Any] = []
    while step := await run.step(unit):
        taken.append(step)
    recorded, walked = replay(run), []
    while walked_step := recorded.step(unit):
        walked.append(walked_step)
    assert walked == taken


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_back_moves_to_the_position_before_the_step(unit: Any) -> None:
    recorded = replay(await finished())
    before = []
    while True:
        position = recorded.position
        if not (step := recorded.step(unit)):
            break
        before.append((position, step))
    for position, step in reversed(before):
        assert recorded.back(unit) == step
        assert recorded.position == position
    assert recorded.back(unit) == []


async def test_an_unknown_unit_is_refused() -> None:
    recorded = replay(await finished())
    with pytest.raises(UsageError, match="event, call, turn, phase"):
        recorded.step("week")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="event, call, turn, phase"):
        recorded.back("week")  # type: ignore[arg-type]


async def test_to_moves_after_an_event_in_either_direction() -> None:
    run = await finished()
    recorded = replay(run)
    for seq in (5, 2, 7, 7, 0, -1):
        assert recorded.to(seq) is recorded
        assert recorded.position == seq + 1
        assert recorded.state == fold(run.events[: seq + 1])


@pytest.mark.parametrize("seq", [-2, 1000, True])
async def test_a_position_outside_the_recording_is_refused(seq: int) -> None:
    recorded = replay(await finished()).to(3)
    with pytest.raises(UsageError, match=r"events 0 to \d+"):
        recorded.to(seq)
    assert recorded.position == 4


async def test_an_event_number_from_a_table_is_accepted() -> None:
    run = await finished()
    at = events(run)["seq"].iloc[3]
    assert run.at(at).position == 4
    assert run.fork(at, message="other").events[0].forked_from == f"{run.id}@3"


async def test_find_moves_to_the_next_or_the_previous_matching_event() -> None:
    run = await finished()
    ends = [event.seq for event in run.events if event.type == "call_end"]
    recorded = replay(run)
    for seq in ends:
        assert recorded.find(lambda event, state: event.type == "call_end") == run.events[seq]
    assert recorded.find(lambda event, state: event.type == "call_end") is None
    assert recorded.position == ends[-1] + 1
    assert recorded.find(lambda event, state: event.type == "call_end", backwards=True) == run.events[ends[-2]]


async def test_find_backwards_before_the_first_event_returns_none() -> None:
    recorded = replay(await finished())
    assert recorded.find(lambda event, state: True, backwards=True) is None
    assert recorded.position == 0


async def test_a_replay_has_the_attributes_of_a_run() -> None:
    run = await finished()
    recorded = replay(run)
    assert [event async for event in recorded] == list(run.events)
    assert await recorded == run.output == recorded.result()
    names = ("id", "name", "phase", "messages", "output", "stop_reason", "usage", "state")
    assert [getattr(recorded, name) for name in names] == [getattr(run, name) for name in names]


async def test_replaying_does_not_change_the_attributes_of_the_loop() -> None:
    loop = ExecutionLoop(ScriptedLLM([['{"calls": [], "output": "done"}']]), [])
    run = loop.start("hi")
    await run
    said = (loop.output, loop.state, loop.context)
    assert run.at(1).pending == []
    replay(run, loop).step()
    assert (loop.output, loop.state, loop.context) == said


async def test_a_snapshot_of_a_replay_has_the_name_of_the_run_by_default() -> None:
    recorded = replay(await finished())
    recorded.step()
    assert [recorded.snapshot().name, recorded.snapshot("then").name] == ["mine", "then"]


async def test_pending_and_decided_calls_of_a_replay_are_those_of_its_position() -> None:
    agent = Agent()
    run = agent.loop(sends("x"), "done").start("hi")
    while not run.pending:
        await run.step()
    asked = run.pending
    run.approve("x")
    await run
    recorded = replay(run)
    recorded.find(lambda event, state: event.type == "approval_request")
    assert recorded.pending == asked
    recorded.step()
    assert recorded.pending == []
    assert [(one.name, one.decision, one.by) for one in recorded.decided] == [("send", "approve", "code")]
    recorded.step()  # it starts
    assert recorded.decided == []


@pytest.mark.parametrize("end", ["cancelled", "failed", "limit"])
async def test_a_replay_raises_the_recorded_end_like_the_run(end: str) -> None:
    if end == "cancelled":
        run = Agent().two_turns().start("hi")
        await run.step("turn")
        run.cancel("enough")
    else:
        turns = ["x"] if end == "failed" else [asks("a"), "done"]
        llm: Any = ScriptedLLM(turns)
        if end == "failed":
            llm = type("Broken", (), {"stream": lambda self, messages, **_: 1 / 0})()
        run = SessionLoop(llm, Agent().tools).start("hi", limits={"turns": 1})
    raised = {"cancelled": RunCancelled, "failed": RunFailed, "limit": LimitReached}[end]
    with pytest.raises(raised) as first:
        await run
    with pytest.raises(raised) as second:
        await replay(run)
    assert str(second.value) in str(first.value)  # a replay has no model to call again


# -- nothing is performed ----------------------------------------------------------------------------------------------


async def test_a_file_is_replayed_without_the_loop(tmp_path: Path) -> None:
    run = await finished()
    recorded = replay(run.snapshot().save(tmp_path / "run.json"))
    assert recorded.loop.name == "talk"
    assert recorded.loop.kind() == "SessionLoop"
    assert recorded.loop.phases == SessionLoop.phases
    assert await recorded == run.output


async def test_a_recording_of_your_own_loop_is_replayed_without_it_with_its_recorded_phases() -> None:
    class Knock(Loop):
        phases: ClassVar[Mapping[str, Sequence[str]]] = {"shut": ["open", "broken"], "open": [], "broken": []}
        opened_by: ClassVar[Mapping[str, str]] = {"run_end": "open"}

        def advance(self, state: State) -> Event:
            return RunEnd(reason="completed")

    run = Knock().start(None)
    await run
    assert replay(Snapshot.from_json(run.snapshot().to_json())).loop.phases == {"shut": ["open"], "open": []}


async def test_a_recorded_loop_cannot_be_run(tmp_path: Path) -> None:
    run = await finished()
    recorded = replay(run.snapshot().save(tmp_path / "run.json"))
    with pytest.raises(UsageError, match="Pass the loop to continue"):
        recorded.loop.advance(recorded.state)


ONLY_OF_RUNS = [
    name
    for name in dir(agentnb.Run)
    if not name.startswith("_") and callable(getattr(agentnb.Run, name)) and not hasattr(Replay, name)
]


@pytest.mark.parametrize("name", ONLY_OF_RUNS)
async def test_a_method_that_only_a_run_has_raises_and_suggests_fork(name: str) -> None:
    recorded = replay(await finished())
    with pytest.raises(UsageError, match=rf"no {name}\(\). fork\(\) returns a run that continues from this position"):
        getattr(recorded, name)
    assert not hasattr(recorded, name)


async def test_an_unknown_attribute_of_a_replay_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'Replay' object has no attribute 'levitate'"):
        replay(await finished()).levitate  # type: ignore[attr-defined]  # noqa: B018


@every_world
async def test_a_replay_of_every_design_has_the_recorded_state_at_every_event_and_performs_nothing(
    world: Callable[[], Any],
) -> None:
    run = world().start("go")
    seen: list[Any] = []
    run.watch(lambda event: event.seq is not None and seen.append(run.state.dump()))
    await drive(run)
    recorded = replay(agentnb.Snapshot.from_json(run.snapshot().to_json()))  # without the loop, nothing can run
    for dumped in seen:
        recorded.step()
        assert recorded.state.dump() == dumped
    for dumped in reversed(seen[:-1]):
        recorded.back()
        assert recorded.state.dump() == dumped


@every_world
async def test_run_at_has_the_state_at_every_event(world: Callable[[], Any]) -> None:
    run = await drive(world().start("go"))
    for seq in range(len(run.events)):
        moment = run.at(seq)
        assert moment.state == fold(run.events[: seq + 1])
        assert moment.position == seq + 1
    assert run.at(len(run.events) - 1).output == run.output


async def test_a_watcher_of_a_replay_gets_the_current_event_or_none_before_the_first() -> None:
    recorded = replay(await finished())
    heard: list[Any] = []
    recorded.watch(heard.append)
    recorded.to(2).to(-1).step()
    assert [event and event.seq for event in heard] == [2, None, 0]


async def test_a_replay_of_a_run_without_events_does_not_move() -> None:
    recorded = replay(Agent().two_turns().start("hi"))
    heard: list[Any] = []
    recorded.watch(heard.append)
    assert (recorded.step(), recorded.back(), recorded.continue_(), recorded.position) == ([], [], None, 0)
    assert set(heard) == {None}
    with pytest.raises(UsageError, match="no events yet"):
        recorded.to(0)


# -- from several threads ----------------------------------------------------------------------------------------------


class Overtaken:
    """The lock of a replay, which another thread takes first and moves the replay to the end."""

    def __init__(self, recorded: Any) -> None:
        self._recorded, self._lock, self._is_free = recorded, recorded.lock, True

    def __enter__(self) -> None:
        if self._is_free:
            self._is_free = False
            other = threading.Thread(target=self._recorded.to, args=(len(self._recorded.recording) - 1,))
            other.start()
            other.join()
        self._lock.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._lock.__exit__(*raised)


async def test_iterating_a_replay_ends_if_another_thread_has_moved_it_to_the_end() -> None:
    recorded = replay(await finished()).to(3)
    recorded._lock = Overtaken(recorded)  # type: ignore[assignment]
    assert [event async for event in recorded] == []
    assert recorded.position == len(recorded.recording)


async def test_reading_a_replay_during_a_move_shows_the_old_position(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = replay(await finished()).to(7)
    seen: list[Any] = []

    def look(state: Any, event: Any) -> None:
        seen.append((recorded.position, len(recorded.events), recorded.state is before))
        evolve(state, event)

    before = recorded.state
    monkeypatch.setattr("agentnb.run.checkpoints.evolve", look)
    recorded.to(5)
    assert set(seen) == {(8, 8, True)}
    assert recorded.position == 6


@pytest.mark.parametrize("unit", ["event", "call", "turn", "phase"])
async def test_back_finds_the_start_of_a_long_step(unit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.run.past.playback.NEAR", 2)
    run = await finished()
    forwards, backwards = replay(run), replay(run).to(len(run.events) - 1)
    starts = [forwards.position]
    while forwards.step(unit):
        starts.append(forwards.position)
    for start in reversed(starts[:-1]):
        backwards.back(unit)
        assert backwards.position == start
    assert backwards.back(unit) == []
    assert backwards.find(lambda event, state: True, backwards=True) is None


async def test_result_returns_the_output_even_if_a_watcher_moves_the_replay() -> None:
    recorded = replay(await finished())
    end = recorded.recording[-1]
    recorded.watch(lambda event: event is end and recorded.to(-1))
    assert recorded.result() == "done"
    assert recorded.position == 0


# -- divergence --------------------------------------------------------------------------------------------------------


@every_world
async def test_a_replay_against_the_recorded_loop_does_not_diverge(world: Callable[[], Any]) -> None:
    run = await drive(world().start("go"))
    recorded = replay(run, world())
    assert len([event async for event in recorded]) == len(run.events)
    recorded.to(len(run.events) // 2)
    assert recorded.to(len(run.events) - 1).stop_reason == run.stop_reason


async def test_another_configuration_diverges_at_the_first_event() -> None:
    run = await finished()
    recorded = replay(run, Agent().two_turns(name="talk", max_turns=1))
    with pytest.raises(ReplayDiverged, match="max_turns") as raised:
        await recorded
    assert raised.value.recorded is run.events[0]
    assert recorded.position == 0


async def test_a_replay_stops_before_the_first_event_that_differs() -> None:
    run = await finished()

    class Hasty(SessionLoop):
        def advance(self, state: Any) -> Any:
            return self._end(state, "completed") if state.turn == 1 else super().advance(state)

        @classmethod
        def kind(cls) -> str:
            return "SessionLoop"

    recorded = replay(run, Hasty(ScriptedLLM([]), Agent().tools, name="talk"))
    with pytest.raises(ReplayDiverged) as raised:
        await recorded
    assert raised.value.recorded.type == "model_start"
    assert raised.value.expected.type == "run_end"
    assert recorded.position == raised.value.recorded.seq
    with pytest.raises(ReplayDiverged):
        recorded.step()
    heard: list[Any] = []
    recorded.to(0).watch(heard.append)
    with pytest.raises(ReplayDiverged):
        recorded.to(len(run.events) - 1)
    assert heard == [run.events[raised.value.recorded.seq - 1]]  # watchers get the position at which it has stopped


async def test_diverged_is_set_while_the_replay_is_at_the_divergence() -> None:
    run = SessionLoop(ScriptedLLM([[call("add", {"a": 1, "b": 2})], "3"]), [add]).start("go")
    await run
    recorded = replay(run, SessionLoop(ScriptedLLM([])))
    told: list[int] = []
    recorded.watch(lambda event: told.append(recorded.position))
    with pytest.raises(ReplayDiverged) as raised:
        recorded.to(len(run.events) - 1)
    assert told == [raised.value.recorded.seq]  # watchers are notified of the position that it reached
    assert recorded.diverged is raised.value
    recorded.back()
    assert recorded.diverged is None


async def test_a_tool_with_other_parameters_diverges_at_its_call() -> None:
    run = SessionLoop(ScriptedLLM([[call("add", {"a": 1, "b": 2})], "3"]), [add]).start("go")
    await run

    @tool(name="add")
    def other(a: int) -> int:
        return a

    recorded = replay(run, SessionLoop(ScriptedLLM([]), [other]))
    with pytest.raises(ReplayDiverged, match="add") as raised:
        await recorded
    assert raised.value.recorded.type == "call_start"
    assert raised.value.expected.outcome == "invalid"


async def test_a_missing_tool_diverges_at_its_call() -> None:
    run = SessionLoop(ScriptedLLM([[call("add", {"a": 1, "b": 2})], "3"]), [add]).start("go")
    await run
    with pytest.raises(ReplayDiverged, match="not found"):
        await replay(run, SessionLoop(ScriptedLLM([])))


async def test_a_call_that_is_valid_now_diverges_where_it_was_refused() -> None:
    @tool(name="add")
    def other(a: int) -> int:
        return a

    turns = [[call("add", {"a": 1, "b": 2}, id="c1")], "3"]
    run = SessionLoop(ScriptedLLM(turns), [other]).start("go")
    await run
    with pytest.raises(ReplayDiverged) as raised:
        await replay(run, SessionLoop(ScriptedLLM([]), [add]))
    assert raised.value.recorded.outcome == "invalid"
    assert raised.value.expected == CallStart(call_id="c1", name="add", arguments={"a": 1, "b": 2}, attempt=1)


async def test_a_call_with_other_arguments_diverges_at_its_start() -> None:
    class Doubled(Calls):
        def arguments(self, call: Any, state: Any) -> dict[str, Any]:
            return {name: 2 * value for name, value in call.arguments.items()}

    class Doubles(SessionLoop):
        calls_class = Doubled

        @classmethod
        def kind(cls) -> str:
            return "SessionLoop"

    run = SessionLoop(ScriptedLLM([[call("add", {"a": 1, "b": 2})], "3"]), [add], name="talk").start("go")
    await run
    with pytest.raises(ReplayDiverged) as raised:
        await replay(run, Doubles(ScriptedLLM([]), [add], name="talk"))
    assert (raised.value.recorded.type, raised.value.recorded.arguments) == ("call_start", {"a": 1, "b": 2})
    assert (raised.value.expected.type, raised.value.expected.arguments) == ("call_start", {"a": 2, "b": 4})


async def test_a_divergence_shows_both_events_abbreviated_and_without_stamps() -> None:
    words = 100 * "a long word "
    run = SessionLoop(ScriptedLLM([[call("echo", {"value": words})], "3"]), Agent().tools).start("go")
    await run
    with pytest.raises(ReplayDiverged) as raised:
        await replay(run, SessionLoop(ScriptedLLM([]), [add]))
    head, recorded, expected = str(raised.value).splitlines()
    assert head == f"Event {raised.value.recorded.seq} of the recording is not what the loop does now."
    assert recorded.startswith("  recorded: type='call_start' call_id=")
    assert recorded.endswith("…")
    assert len(recorded) < 320
    assert expected.startswith("  expected: type='call_end' call_id=")


async def test_malformed_calls_and_calls_deferred_by_a_policy_are_replayed_as_recorded() -> None:
    @tool
    async def look(where: str = "here") -> str:
        return where

    def loop(*turns: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), [look])

    no_json = [{"type": "tool_call", "id": "c1", "name": "look", "arguments": "[1]"}]
    run = loop(no_json, [call("look", id="c2")], "done").start("hi", approve=lambda proposed: None)
    await drive(run)
    assert [event.call_id for event in run.events if event.type == "approval_request"] == ["c2"]
    assert replay(run, loop()).result() == "done"


def boss(*performers: Any) -> SessionLoop:
    return SessionLoop(ScriptedLLM([[call("worker", {"input": "go"}, id="c1")], "done"]), performers, name="boss")


def worker(**options: Any) -> agentnb.Agent:
    return agentnb.Agent(ScriptedLLM(["worked"]), name="worker", **options)


@tool(name="worker")
async def at_once(input: str) -> str:
    return "worked"


@pytest.mark.parametrize(
    ("then", "now", "recorded", "expected"),
    [
        (worker, lambda: worker(max_iterations=3), "run_start", "run_start"),
        (worker, lambda: SessionLoop(ScriptedLLM([]), name="worker"), "run_start", "run_start"),
        (worker, lambda: at_once, "run_start", "call_end"),
        (lambda: at_once, worker, "call_end", "run_start"),
    ],
    ids=["configured otherwise", "of another kind", "now a tool", "now a loop"],
)
async def test_another_nested_loop_diverges_at_its_start(then: Any, now: Any, recorded: str, expected: str) -> None:
    run = boss(then()).start("go")
    await run
    with pytest.raises(ReplayDiverged) as raised:
        await replay(run, boss(now()))
    assert (raised.value.recorded.type, raised.value.expected.type) == (recorded, expected)
    assert (raised.value.recorded.path or "worker") == "worker"


@pytest.mark.parametrize(
    ("then", "recorded", "expected"),
    [(True, "approval_request", "call_start"), (False, "call_start", "approval_request")],
    ids=["it asks no more", "it asks now"],
)
async def test_a_tool_with_another_approve_option_diverges_at_its_call(
    then: bool, recorded: str, expected: str
) -> None:
    def world(approve: bool) -> SessionLoop:
        wipe = tool(name="wipe", approve=approve)(lambda: "wiped")
        return SessionLoop(ScriptedLLM([[call("wipe")], "done"]), [wipe], name="world")

    run = world(then).start("go")
    await drive(run)
    with pytest.raises(ReplayDiverged) as raised:
        await replay(run, world(not then))
    assert (raised.value.recorded.type, raised.value.expected.type) == (recorded, expected)


async def test_another_kind_of_loop_diverges_at_the_first_event() -> None:
    run = await finished()
    with pytest.raises(ReplayDiverged):
        replay(run, agentnb.Agent(ScriptedLLM([]))).step()


@tool
def add(a: int, b: int) -> int:
    return a + b


async def test_a_replay_with_nan_does_not_diverge() -> None:
    @tool
    async def halve(x: float) -> float:
        return x / 2

    def loop(*turns: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), [halve])

    run = loop([call("halve", {"x": nan}, id="c1")], "done").start("hi")
    await run
    assert replay(Snapshot.from_json(run.snapshot().to_json()), loop()).result() == "done"
