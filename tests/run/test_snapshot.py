from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import math
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import (
    ExecutionLoop,
    LimitReached,
    Loop,
    LoopAgent,
    Run,
    RunFailed,
    SessionLoop,
    Snapshot,
    Store,
    restore,
    tool,
)
from agentnb.core.errors import RecordingCorrupt, RecordingMismatch, StorageError, UsageError, VersionMismatch
from agentnb.loops import want
from agentnb.loops.loop_agent import BaseAgent
from agentnb.testing import ScriptedLLM, call, text
from tests.core.test_loop import Ladder
from tests.run.agents import Agent, sends
from tests.worlds import (
    asks,
    assert_folds,
    assert_one_terminal_event_last,
    collect,
    finished_calls,
    payload,
    provider_faults,
    types,
    until,
)


async def a_run() -> Any:
    run = Agent().two_turns(system_prompt="be é \U0001f600").start("hi \u2028 \x00")
    await run
    return run


def goes_on(run: Any) -> Any:
    return restore(Snapshot.from_json(run.snapshot().to_json()), run.loop)


async def test_a_snapshot_is_a_position_in_a_journal() -> None:
    run = Agent().two_turns().start("hi")
    await run.step("turn")
    snapshot = run.snapshot("here")
    assert snapshot.position == len(run.events)
    assert snapshot.run_id == run.id
    assert snapshot.name == "here"
    assert snapshot.state == run.state
    await run
    assert snapshot.position < len(run.events)


async def test_a_snapshot_is_restored_from_json_and_from_a_file(tmp_path: Path) -> None:
    snapshot = (await a_run()).snapshot("the name")
    assert Snapshot.from_json(snapshot.to_json()) == snapshot
    path = snapshot.save(tmp_path / "run.json")
    loaded = Snapshot.load(path)
    assert loaded == snapshot
    assert loaded.state == snapshot.state
    assert loaded.name == "the name"
    assert os.listdir(tmp_path) == ["run.json"]


@pytest.mark.parametrize("name", [5, "", "a\0b"])
async def test_a_snapshot_name_that_is_not_text_is_refused_and_not_stored(name: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    run = Agent().loop("ok").start("hi", name="run", store=store)
    await run
    with pytest.raises(UsageError, match=r"snapshot\(name\)"):
        run.snapshot(name)
    assert store.names() == ["run"]
    store.close()


async def test_a_run_with_nan_as_output_can_be_read_again() -> None:
    def nothing(given: Any) -> Generator[Any, Any, float]:
        yield want.phase("working")
        return math.nan

    run = Loop.from_generator(nothing, phases=["working"]).start("go")
    await run
    assert math.isnan(Snapshot.from_json(run.snapshot().to_json()).state.output)


async def test_a_snapshot_is_json_with_one_event_per_line() -> None:
    run = await a_run()
    text = run.snapshot().to_json()
    data = json.loads(text)
    assert data["agentnb"] == "snapshot"
    assert len(data["events"]) == len(run.events)
    assert sum(line.startswith('{"chain"') for line in text.splitlines()) <= len(run.events)


async def test_a_file_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    run = Agent().loop("ok").start("hi")
    await run
    path = run.snapshot().save(tmp_path / "run.json")
    whole = path.read_bytes()
    accepted, unnamed = [], 0
    for position in range(len(whole)):
        line = whole.count(b"\n", 0, position) + 1
        for other in {whole[position] ^ 1, whole[position] ^ 0x80, ord("9")} - {whole[position]}:
            path.write_bytes(whole[:position] + bytes([other]) + whole[position + 1 :])
            try:
                Snapshot.load(path)
            except StorageError as error:
                unnamed += f"line {line}" not in str(error)
            else:
                accepted.append((position, other))
    assert unnamed < 250  # a change in the line of the digest may also be a change of the name in line 1
    assert accepted == []


@pytest.mark.parametrize(
    "change", ["cut", "add", "twice", "swap lines", "drop line", "empty", "other json", "crlf", "bom"]
)
async def test_a_file_with_other_changes_is_refused(change: str, tmp_path: Path) -> None:
    path = (await a_run()).snapshot().save(tmp_path / "run.json")
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "add": whole + b" ",
            "twice": whole * 2,
            "swap lines": b"\n".join([*lines[:2], lines[3], lines[2], *lines[4:]]),
            "drop line": b"\n".join([*lines[:3], *lines[4:]]),
            "empty": b"",
            "other json": b'{"version": 1, "events": []}',
            "crlf": whole.replace(b"\n", b"\r\n"),
            "bom": b"\xef\xbb\xbf" + whole,
        }[change]
    )
    with pytest.raises(RecordingCorrupt, match=r"run\.json"):
        Snapshot.load(path)


async def test_a_changed_event_is_named() -> None:
    text = (await a_run()).snapshot().to_json()
    with pytest.raises(RecordingCorrupt, match=r"line 10 \(event 8\)"):
        Snapshot.from_json(text.replace('"turn":2', '"turn":3'))


async def test_a_snapshot_of_a_newer_version_is_refused() -> None:
    text = (await a_run()).snapshot().to_json()
    with pytest.raises(VersionMismatch, match="version 2"):
        Snapshot.from_json(text.replace('"version":1', '"version":2'))


async def test_a_file_with_the_state_of_another_release_is_accepted() -> None:
    snapshot = (await a_run()).snapshot()
    text, digest, _ = snapshot.to_json().replace('"unsaid":false', '"known_elsewhere":1').partition('"digest":"')
    text += digest
    assert "known_elsewhere" in text
    other = f'{text}{hashlib.sha256(text.encode()).hexdigest()}"}}\n'
    assert Snapshot.from_json(other).events == snapshot.events


async def test_a_file_with_an_impossible_event_is_refused() -> None:
    text = (await a_run()).snapshot().to_json()
    header, *entries, footer, _, _ = text.split("\n")
    kept = [json.loads(entry.removesuffix(",")) for entry in entries if '"type":"model_start"' not in entry]
    chain, lines = hashlib.sha256(), []
    for entry in kept:  # as a person who rewrites such a file makes it
        line = json.dumps(entry["event"], separators=(",", ":"))
        chain.update(f"{line}\n".encode())
        lines.append(f'{{"chain":"{chain.hexdigest()[:16]}","event":{line}}}')
    text = "\n".join([header, ",\n".join(lines), footer, '"digest":"'])
    with pytest.raises(RecordingCorrupt, match="The model was not asked for this answer"):
        Snapshot.from_json(f'{text}{hashlib.sha256(text.encode()).hexdigest()}"}}\n')


async def test_a_missing_snapshot_file_raises(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Snapshot.load(tmp_path / "none.json")


async def test_the_error_for_a_store_in_place_of_a_snapshot_names_load(tmp_path: Path) -> None:
    Store(tmp_path / "runs.db").close()
    with pytest.raises(UsageError, match=r"runs.db'\).load\(name\) returns a snapshot"):
        Snapshot.load(tmp_path / "runs.db")


async def test_a_snapshot_cannot_be_restored_into_another_loop() -> None:
    with pytest.raises(RecordingMismatch, match=r"SessionLoop.*Ladder"):
        restore((await a_run()).snapshot(), Ladder())


async def test_a_loop_with_another_configuration_causes_a_warning() -> None:
    snapshot = (await a_run()).snapshot()
    with pytest.warns(UserWarning, match="max_turns"):
        restore(snapshot, Agent().loop(max_turns=3, system_prompt="be é \U0001f600"))


class NewLadder(Ladder):
    """A ladder of a later version, which has more settings."""

    def __init__(self, mode: str = "slow", max_answers: int | None = None) -> None:
        super().__init__()
        self.mode, self.max_answers = mode, max_answers

    def config(self) -> dict[str, Any]:
        return {**super().config(), "mode": self.mode, "max_answers": self.max_answers, "listens": False}

    @classmethod
    def kind(cls) -> str:
        return "Ladder"


@pytest.mark.parametrize(("settings", "named"), [({"max_answers": 3}, "max_answers"), ({"mode": "quick"}, "mode")])
async def test_a_setting_that_the_recording_lacks_is_named_in_the_warning(settings: Any, named: str) -> None:
    snapshot = Ladder().start("go").snapshot()
    with pytest.warns(UserWarning, match=rf"differs from the recording: {named}\."):
        restore(snapshot, NewLadder(**settings))


async def test_a_setting_that_the_recording_lacks_causes_no_warning_if_it_has_its_default() -> None:
    snapshot = Ladder().start("go").snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore(snapshot, NewLadder())


@pytest.mark.parametrize("design", [SessionLoop, ExecutionLoop, agentnb.Agent])
async def test_a_recording_without_settings_causes_no_warning_for_a_loop_with_the_defaults(design: Any) -> None:
    class Older(design):  # type: ignore[misc]
        def config(self) -> dict[str, Any]:
            return {}

        @classmethod
        def kind(cls) -> str:
            return design.__name__

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore(Older(ScriptedLLM([])).start("go").snapshot(), design(ScriptedLLM([])))


@pytest.mark.parametrize("position", range(1, 12))
async def test_a_run_restored_at_any_event_ends_like_the_original(position: int) -> None:
    whole = Agent().two_turns().start("hi")
    await whole
    agent = Agent()
    run = agent.loop(asks("a", "b"), "done").start("hi")
    for _ in range(position):
        await run.step()
    run.loop.llm.requests.clear()
    turns = run.loop.llm.turns[[e.type for e in run.events].count("model_end") :]
    run.loop.llm = ScriptedLLM(turns)
    again = goes_on(run)
    assert again.state == run.state
    while not again.state.over:
        await again.step("turn")
        for item in again.pending:
            assert item.unknown
            again.answer(item, f"R:{item.id}")
    assert again.output == "done"
    assert [m.plain for m in again.messages] == [m.plain for m in whole.messages]
    assert sorted(finished_calls(again.events)) == ["a", "b"]
    assert_one_terminal_event_last(again.events)
    assert_folds(again)
    run.cancel()
    await run.step()


async def test_a_run_restored_between_effects_has_the_same_remaining_events() -> None:
    whole = Agent().two_turns().start("hi")
    await whole
    in_flight = {"model_start", "call_start"}
    for position, event in enumerate(whole.events, start=1):
        prefix = Snapshot.of(whole.events[:position])
        if event.type in in_flight or prefix.state.model == "asked" or event.terminal:
            continue
        if any(call.status == "running" for call in prefix.state.open.values()):
            continue
        turns = whole.loop.llm.turns[types(prefix.events).count("model_end") :]
        again = restore(Snapshot.from_json(prefix.to_json()), Agent().loop(*turns))
        await again
        assert [payload(e) for e in again.events] == [payload(e) for e in whole.events]


async def half_way(agent: Agent, turn: Any) -> Any:
    """Return a run whose call `hold` has started and not ended, as another process would restore it."""
    run = agent.loop(turn, "done").start("hi")
    run.play()
    await agent.holding.wait()
    text = run.snapshot().to_json()
    run.cancel()
    agent.release.set()
    await until(lambda: not run.driven)
    return restore(Snapshot.from_json(text), Agent().loop("done"))


async def test_a_call_of_unknown_outcome_needs_a_decision() -> None:
    run = await half_way(Agent(), asks("hold"))
    assert "call_end" not in types(run.events)
    await run.step("turn")
    (item,) = run.pending
    assert (item.id, item.name, item.arguments, item.unknown) == ("hold", "echo", {"value": "hold"}, True)
    assert "nobody knows how it ended" in item.reason
    run.answer("hold", "it happened")
    assert await run == "done"
    assert run.messages[2].content == "it happened"


async def test_a_call_of_unknown_outcome_is_pending_before_the_run_is_driven() -> None:
    agent = Agent()
    run = agent.loop(asks("hold", "b"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    again = restore(run.snapshot(), agent.loop("done"))
    (item,) = (item for item in again.pending if item.id == "hold")
    assert item.unknown
    assert "nobody knows how it ended" in item.reason
    again.answer("hold", "it was done")
    assert "hold" not in [item.id for item in again.pending]
    with pytest.raises(agentnb.AlreadyDecided):
        again.approve("hold")
    for other in again.pending:
        again.answer(other.id, "so was this")
    await again
    assert agent.ran[0] == "hold"
    assert agent.ran.count("hold") == 1
    assert [e.type for e in again.events].count("approval_request") == [e.type for e in again.events].count(
        "approval_decision"
    )
    run.cancel()


async def test_a_call_of_unknown_outcome_can_be_run_again_or_failed() -> None:
    again = await half_way(Agent(), asks("hold"))
    await again.step("turn")
    again.edit("hold", {"value": "again"})
    assert await again == "done"
    assert again.messages[2].content == "R:again"
    assert [e.attempt for e in again.events if e.type == "call_start"] == [1, 2]
    failed = await half_way(Agent(), asks("hold"))
    await failed.step("turn")
    failed.reject("hold", "gone")
    assert await failed == "done"
    assert failed.messages[2].is_error
    assert provider_faults(failed.messages) == []


async def test_an_idempotent_call_runs_again_without_a_decision() -> None:
    agent = Agent()
    run = await half_way(agent, asks("hold", tool="look"))
    other: Any = run.loop
    restored = Agent()
    restored.release.set()
    other.tools = restored.tools
    run = restore(run.snapshot(), other)
    assert await run == "done"
    assert restored.ran == ["hold"]
    assert "approval_request" not in types(run.events)


async def test_calls_that_have_ended_do_not_run_again() -> None:
    agent = Agent()
    run = agent.loop(asks("b", "hold"), "done").start("hi")
    run.play()
    await agent.holding.wait()
    await until(lambda: "b" in finished_calls(run.events))
    text = run.snapshot().to_json()
    run.cancel()
    await until(lambda: not run.driven)
    restored = Agent()
    again = restore(Snapshot.from_json(text), restored.loop("done"))
    await again.step("turn")
    assert [item.id for item in again.pending] == ["hold"]
    again.answer("hold", "known")
    await again
    assert restored.ran == []
    assert [m.content for m in again.messages if m.role == "tool"] == ["R:b", "known"]


async def test_a_restored_run_with_pending_calls_has_them_pending() -> None:
    run = Agent().loop(sends("a", "b")).start("hi")
    await run.step("turn")
    while len(run.pending) < 2:
        await run.step()
    run.approve("a")
    restored = Agent()
    again = restore(Snapshot.from_json(run.snapshot().to_json()), restored.loop("done"))
    assert [(item.id, item.arguments, item.unknown) for item in again.pending] == [("b", {"value": "b"}, False)]
    again.edit("b", {"value": "edited"})
    assert await again == "done"
    assert sorted(restored.ran) == ["a>all", "edited>all"]


POLICIES: dict[str, tuple[Any, list[str], int]] = {
    "yes": (True, ["n>all"], 0),
    "no": (False, [], 0),
    "a rule": ([{"needs": "network", "decision": "approve"}], ["n>all"], 0),
    "no rule matches": ([{"tool": "echo", "decision": "approve"}], [], 1),
}


@pytest.mark.parametrize(("policy", "ran", "still_waiting"), POLICIES.values(), ids=list(POLICIES))
async def test_the_policy_of_a_restored_run_decides_about_pending_calls(
    policy: Any, ran: list[str], still_waiting: int
) -> None:
    agent = Agent()
    run = agent.loop(sends("n"), "done").start("hi")
    await run.step("turn")
    again = restore(run.snapshot(), agent.loop("done"), approve=policy)
    await again.step("turn")
    assert agent.ran == ran
    assert len(again.pending) == still_waiting


async def test_a_question_that_the_policy_of_the_restored_run_leaves_open_is_not_recorded_again() -> None:
    agent = Agent()
    run = agent.loop(sends("n"), "done").start("hi")
    await run.step("turn")
    again = restore(run.snapshot(), agent.loop("done"), approve=lambda call: None)
    await again.step("turn")
    assert types(again.events).count("approval_request") == 1


async def test_the_policy_of_a_restored_run_does_not_decide_again_about_a_decided_call() -> None:
    def outer(*turns: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), [SessionLoop(ScriptedLLM(["looked"]), [], name="inner")])

    run = outer([call("inner", {"input": "go"}, id="h")], "done").start("hi", approve=lambda call: None)
    await run.step("turn")
    again = restore(run.snapshot(), outer("done"), approve=lambda call: False)
    again.approve("h")
    again.watch(lambda event: event.type == "call_start" and again.pause())
    again.play()
    await until(lambda: again.state.paused)  # no question to the policy prevents the step from ending
    again.resume()
    assert await again == "done"
    assert types(again.events).count("approval_decision") == 1


async def test_an_interrupted_request_is_repeated_in_a_restored_run() -> None:
    run = Agent().loop("never").start("hi")
    while types(run.events)[-1:] != ["model_start"]:
        await run.step()
    again = restore(run.snapshot(), Agent().loop("done"))
    assert await again == "done"
    assert [(e.turn, e.attempt) for e in again.events if e.type == "model_start"] == [(1, 1), (1, 2)]


async def test_a_restored_cancelled_run_continues_before_the_cancellation() -> None:
    agent = Agent()
    run = agent.loop(sends("a")).start("hi")
    await run.step("turn")
    run.cancel()
    assert run.stop_reason == "cancelled"
    restored = Agent()
    again = restore(run.snapshot(), restored.loop("done"))
    assert again.stop_reason is None
    assert [item.id for item in again.pending] == ["a"]
    again.approve("a")
    assert await again == "done"


async def test_a_call_approved_in_another_process_needs_no_approval_again() -> None:
    @tool(approve=True)
    async def halve(x: float) -> float:
        return x / 2

    run = SessionLoop(ScriptedLLM([[call("halve", {"x": math.nan}, id="a")], "done"]), [halve]).start("hi")
    await run.step("turn")
    again = goes_on(run)
    again.approve("a")
    await again
    assert types(again.events).count("approval_request") == 1


async def test_a_run_killed_during_a_cancellation_continues_before_the_cancellation() -> None:
    run = Agent().loop(sends("a")).start("hi")
    await run.step("turn")
    run.cancel()
    cancelled = next(event.seq for event in run.events if event.type == "cancel")
    again = restore(run.at(cancelled).snapshot(), Agent().loop("done"))
    assert [item.id for item in again.pending] == ["a"]
    again.approve("a")
    assert await again == "done"


async def test_a_run_saved_while_it_reached_its_limit_continues_before_the_limit() -> None:
    run = Agent().loop([call("look", {"value": value}, id=value) for value in "ab"]).start("hi", limits={"calls": 1})
    with pytest.raises(LimitReached):
        await run
    ends = [event.seq for event in run.events if event.type == "call_end"]
    for end in ends:
        again = restore(run.at(end).snapshot(), Agent().loop("done"), limits={})
        assert await again == "done"
        assert [event.result for event in again.events if event.type == "call_end"] == ["R:a", "R:b"]


async def test_a_run_at_its_limit_continues_if_restored_with_other_limits() -> None:
    run = Agent().loop([call("look", {"value": "a"})]).start("hi", limits={"turns": 1})
    with pytest.raises(LimitReached):
        await run
    rest = Agent()
    assert await restore(run.snapshot(), rest.loop("done"), limits={"turns": 2}) == "done"
    assert rest.ran == []


async def test_a_run_at_its_limit_has_ended_if_restored_without_new_limits() -> None:
    run = Agent().loop([call("look", {"value": "a"})]).start("hi", limits={"calls": 0})
    with pytest.raises(LimitReached):
        await run
    assert restore(run.snapshot(), Agent().loop("done")).stop_reason == "limit"


async def test_an_approved_call_of_a_missing_tool_is_an_error_result() -> None:
    run = Agent().loop(sends("a"), "done").start("hi")
    await run.step("turn")
    again = restore(run.snapshot(), SessionLoop(ScriptedLLM(["done"])))
    again.approve("a")
    assert await again == "done"
    assert [message.content for message in again.messages if message.role == "tool"] == [
        "Tool send not found. Available tools: none."
    ]


async def test_the_text_of_a_snapshot_as_a_path_is_refused_and_not_quoted() -> None:
    text = (await a_run()).snapshot().to_json()
    for read in (Snapshot.load, agentnb.replay, lambda text: restore(text, SessionLoop(ScriptedLLM([])))):
        with pytest.raises(UsageError, match=r"^This is the text of a snapshot, .* Use Snapshot.from_json\(text\)"):
            read(text)


async def read_to_the_end(run: Run) -> Any:
    await collect(run)
    return run.output


DRIVEN: dict[str, Callable[[Run], Any]] = {
    "await": lambda run: run,
    "async for": read_to_the_end,
    "result": lambda run: asyncio.to_thread(run.result, 60),
}


@pytest.mark.parametrize("driven", DRIVEN.values(), ids=list(DRIVEN))
async def test_a_failed_request_is_repeated_in_a_restored_run(driven: Callable[[Run], Any]) -> None:
    run = Agent().loop([ConnectionError("cut")]).start("hi")
    with pytest.raises(RunFailed):
        await run
    again = restore(Snapshot.from_json(run.snapshot().to_json()), Agent().loop("done"))
    assert await driven(again) == "done"
    assert types(again.events)[3:6] == ["model_error", "run_resumed", "model_start"]


async def test_a_second_failure_in_a_restored_run_waits_for_resume() -> None:
    run = Agent().loop([ConnectionError("cut")]).start("hi")
    with pytest.raises(RunFailed):
        await run
    again = restore(run.snapshot(), Agent().loop([ConnectionError("still cut")], "done"))
    for _ in range(2):
        with pytest.raises(RunFailed, match="still cut"):
            await again
    assert len(again.loop.llm.requests) == 1
    assert again.resume()
    assert await again == "done"


async def test_a_failed_nested_loop_has_failed_in_a_restored_run() -> None:
    class Failing(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> Any:
            ran.append(self.name)
            yield
            raise RuntimeError("down")

    def loop() -> LoopAgent:
        return LoopAgent("outer", [LoopAgent("inner", [Failing("failing")], 1)], 1)

    ran: list[str] = []
    run = loop().start("go")
    with pytest.raises(RunFailed):
        await run
    ran.clear()
    for end in [event.seq for event in run.events if event.type == "run_end" and not event.terminal]:
        again = restore(run.at(end).snapshot(), loop())
        with pytest.raises(RunFailed):
            await again
        assert types(again.events) == types(run.events)
    assert ran == []


async def test_an_ended_run_is_restored_as_ended() -> None:
    run = await a_run()
    again = goes_on(run)
    assert await again == "done"
    assert again.events == run.events
    assert await again.step() == []


async def test_restore_accepts_a_run_a_snapshot_or_a_path(tmp_path: Path) -> None:
    run = await a_run()
    path = run.snapshot().save(tmp_path / "run.json")
    for source in (run, run.snapshot(), path, str(path)):
        assert restore(source, run.loop).events == run.events


async def test_queued_messages_are_restored() -> None:
    run = Agent().loop("one").start("hi")
    run.steer("S")
    run.follow_up("F")
    again = restore(Snapshot.from_json(run.snapshot().to_json()), Agent().loop("one", "two"))
    await again
    assert [m.content for m in again.messages] == ["hi", "S", "one", "F", "two"]


FRESH = """
import asyncio, sys, warnings
from agentnb import SessionLoop, restore, tool
from agentnb.testing import ScriptedLLM

@tool
async def echo(value: str) -> str:
    return f"R:{value}"

run = restore(sys.argv[1], SessionLoop(ScriptedLLM(["done"]), [echo]))

async def go_on():
    return await run

print(asyncio.run(go_on()))
print([m.content for m in run.messages])
"""


async def test_a_new_process_continues_a_saved_run(tmp_path: Path) -> None:
    run = Agent().two_turns().start("hi")
    while types(run.events)[-1:] != ["model_end"]:
        await run.step()
    path = run.snapshot().save(tmp_path / "run.json")
    fresh = await asyncio.create_subprocess_exec(sys.executable, "-c", FRESH, str(path), stdout=subprocess.PIPE)
    said, _ = await asyncio.wait_for(fresh.communicate(), 60)
    assert said.decode().splitlines() == ["done", "['hi', '', 'R:a', 'R:b', 'done']"]


async def test_nothing_in_a_snapshot_is_evaluated(tmp_path: Path) -> None:
    hostile = "__import__('os').system('touch owned')"
    run = SessionLoop(ScriptedLLM(["ok"])).start({"role": "user", "content": hostile, "py/object": "os.system"})
    await run
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = restore(Snapshot.load(run.snapshot().save(tmp_path / "s.json")), SessionLoop(ScriptedLLM([])))
    assert again.messages[0]["content"] == hostile
    assert agentnb.__version__


def levels(count: int) -> Any:
    value: Any = "x"
    for _ in range(count):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *((where, levels(count)) for where in ("input", "arguments", "result") for count in (199, 250)),
        ("input", 10**5000),
        ("result", 10**5000),
    ],
    ids=["input", "input", "arguments", "arguments", "result", "result", "long input", "long result"],
)
async def test_every_value_that_can_be_recorded_can_be_read_again(where: str, value: Any, tmp_path: Path) -> None:
    """pydantic writes more levels and longer integers than parsers read."""

    @tool
    async def give(what: object = None) -> object:
        """Give it."""
        return value if where == "result" else "given"

    arguments = {"what": value} if where == "arguments" else {}
    turn = [{"type": "tool_call", "id": "1", "name": "give", "arguments": arguments}]
    store = Store(tmp_path / "runs.db")
    loop = SessionLoop(ScriptedLLM([turn, text("done")]), [give])
    run = loop.start(value if where == "input" else "go", name="odd", store=store)
    await run
    assert store.load("odd").events == tuple(run.events)
    assert store.export(tmp_path / "odd.jsonl") == len(run.events)
    assert store.import_(tmp_path / "odd.jsonl") == [run.id]
    assert Snapshot.from_json(run.snapshot().to_json()).events == tuple(run.events)
    store.close()


async def test_unreadable_arguments_do_not_end_the_run() -> None:
    arguments = f'{{"what": {"[" * 900}{"]" * 900}}}'
    run = Agent().loop([{"type": "tool_call", "id": "1", "name": "read", "arguments": arguments}], "done").start("hi")
    await run
    assert run.stop_reason == "completed"


def test_a_text_with_too_many_levels_is_refused_as_a_snapshot() -> None:
    with pytest.raises(RecordingCorrupt, match="is not a snapshot"):
        Snapshot.from_json("[" * 100_000)


@pytest.mark.parametrize("taking", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_copying_or_pickling_a_run_raises_and_suggests_a_snapshot(taking: Callable[[Any], Any]) -> None:
    run = Agent().two_turns().start("hi")
    await run
    for one in (run, agentnb.replay(run)):
        with pytest.raises(UsageError, match=r"run\.snapshot\(\) can be pickled"):
            taking(one)
    assert pickle.loads(pickle.dumps(run.snapshot())) == run.snapshot()


@pytest.mark.parametrize("taking", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_or_pickling_a_store_raises(taking: Callable[[Any], Any], tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    with pytest.raises(UsageError, match="Open it in each process"):
        taking(store)
    store.close()
