"""A recording as the model and the tools of a loop, and as a test."""

from __future__ import annotations

import asyncio
import json
import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, RunFailed, SessionLoop, UsageError, replay, tool
from agentnb.analysis import diff
from agentnb.errors import ReplayDiverged
from agentnb.testing import Recorded, ScriptedLLM, call, delay, text, write_test
from tests.analysis.recordings import decided_run, researcher
from tests.designs import TOOLS, WORK, WORLDS, Answers, detached_execution, session_of_agents
from tests.worlds import collect, types


def session(llm: Any = None, tools: Any = None) -> SessionLoop:
    return SessionLoop(llm or Answers(*WORK), tools or TOOLS, name="session")


def agent(llm: Any = None, tools: Any = None) -> Agent:
    return Agent(llm or Answers(*WORK), tools or TOOLS, name="agent")


def detached(run: Any) -> list[str]:
    return sorted(event.name for event in run.events if event.type == "call_start" and event.detached)


def said(run: Any) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in run.messages]


# -- as a model and as tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", [session, agent])
async def test_a_loop_with_a_recorded_model_repeats_the_run(loop: Callable[..., Any]) -> None:
    run = loop().start("go", approve=True)
    await run
    recorded = Recorded(run, strict=True)
    again = loop(recorded, recorded.tools).start("go", approve=True)
    assert await again == await run
    assert said(again)[:5] == said(run)[:5]
    recorded.assert_complete()


async def test_concurrent_loops_get_their_own_recorded_answers() -> None:
    run = session_of_agents().start("go", approve=True)
    await run
    recorded = Recorded(run, strict=True)
    boss = session_of_agents()
    boss.llm = recorded
    for inner in boss.tools:
        inner.llm = recorded
    again = boss.start("go", approve=True)
    await again
    assert again.output == run.output
    recorded.assert_complete()


async def test_rewritten_prompts_get_the_answers_in_their_order() -> None:
    def shout(messages: Any) -> Any:
        return [{**message, "content": str(message["content"]).upper()} for message in messages]

    run = SessionLoop(Answers(*WORK), TOOLS, transform_context=shout).start("go", approve=True)
    await run
    recorded = Recorded(run)
    again = SessionLoop(recorded, recorded.tools, transform_context=shout).start("go", approve=True)
    assert await again == await run
    recorded.assert_complete()
    with pytest.raises(RunFailed, match="This request is not in the recording"):
        await SessionLoop(Recorded(run, strict=True), TOOLS, transform_context=shout).start("go", approve=True)


def solving(llm: Any, tools: Any = TOOLS, **options: Any) -> ExecutionLoop:
    told = [{"type": "data", "kind": "input", "data": {"n": 1}}, {"role": "user", "content": "Double it."}]
    return ExecutionLoop(llm, tools, context=options.pop("context", told), **options)


def doubles(native: bool) -> ScriptedLLM:
    """Return turns: calls of which one writes data, one depends on the data, and one fails; and then an output."""
    calls = [("double", "†input.n", "†state.two"), ("double", "†state.two", "†state.four"), ("fail", 1, "†state.no")]
    if native:
        turn = [call(name, {"n": n, "_outputPath": to}, id=to) for name, n, to in calls]
        return ScriptedLLM([turn, "done"])
    made = [{"_tool": name, "n": n, "_outputPath": to} for name, n, to in calls]
    return ScriptedLLM([json.dumps({"calls": made, "output": None}), '{"calls": [], "output": "done"}'])


@pytest.mark.parametrize("plan", [None, "lazy"])
@pytest.mark.parametrize("native", [False, True])
async def test_requests_of_an_execution_loop_are_matched(native: bool, plan: Any) -> None:
    run = solving(doubles(native), native=native, plan=plan).start("go", approve=True)
    assert await run == "done"
    recorded = Recorded(run, strict=True)
    again = solving(recorded, recorded.tools, native=native, plan=plan).start("go", approve=True)
    assert await again == "done"
    recorded.assert_complete()
    other = Recorded(run, strict=True)
    told = [{"type": "data", "kind": "input", "data": {"n": 2}}]
    with pytest.raises(RunFailed, match="This request is not in the recording"):
        await solving(other, other.tools, context=told, native=native, plan=plan).start("go", approve=True)


async def test_requests_with_retrieved_documents_are_matched() -> None:
    run = Agent(Answers(*WORK), TOOLS, retriever=lambda query: ["a fact"]).start("go", approve=True)
    await run
    recorded = Recorded(run, strict=True)
    again = Agent(recorded, recorded.tools, retriever=lambda query: ["a fact"]).start("go", approve=True)
    assert await again == await run
    other = Recorded(run, strict=True)
    with pytest.raises(RunFailed, match="This request is not in the recording"):
        await Agent(other, other.tools, retriever=lambda query: ["a lie"]).start("go", approve=True)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        ['{"calls": [{"_tool": "double", "n": 1}, {"_tool": "double", "n": 2}]}'],
        ['{"calls": [{"_tool": "double", "n": 1}]}', call("double", {"n": 2}, id="b")],
        ['{"calls": [{"_tool": "double", "n": 1}, {"_tool": "double", "n": 1}]}'],
        [call("double", {"n": 1}, id="a"), call("double", {"n": 2}, id="b")],
        [*text("I will."), call("double", {"n": 1}, id="a"), call("double", {"n": 2}, id="b")],
    ],
    ids=["in the text", "one in it and one beside it", "twice in it", "beside it", "beside words"],
)
async def test_each_recorded_call_is_made_once_in_every_form(answer: list[Any], native: bool) -> None:
    turns = [answer, '{"output": "done"}']
    run = ExecutionLoop(ScriptedLLM(turns), TOOLS, native=native).start("go", approve=True)
    await run
    recorded = Recorded(run)
    again = ExecutionLoop(recorded, recorded.tools, native=native).start("go", approve=True)
    await again
    assert said(again) == said(run)
    assert types(again.events).count("call_start") == types(run.events).count("call_start") == 2


async def test_a_detached_tool_is_detached_again() -> None:
    run = detached_execution().start("go", approve=True)
    await run
    recorded = Recorded(run)
    again = ExecutionLoop(recorded, recorded.tools).start("go", approve=True)
    await again
    assert detached(again) == detached(run) != []


async def test_recorded_text_reasoning_calls_and_usage_are_streamed_again() -> None:
    turn = [{"type": "reasoning_delta", "content": "hm"}, *text("one two"), call("double", {"n": 1}, id="c1")]
    turn.append({"type": "usage", "input_tokens": 3, "output_tokens": 4})
    run = session(ScriptedLLM([turn, "done"])).start("go", approve=True)
    await run
    chunks = await collect(Recorded(run).stream([{"role": "user", "content": "go"}]))
    assert chunks[0] == {"type": "reasoning_delta", "content": "hm"}
    assert "".join(chunk["content"] for chunk in chunks if chunk["type"] == "text_delta") == "one two"
    assert [chunk["type"] for chunk in chunks][-3:] == ["tool_call", "usage", "stop"]


async def test_speed_determines_the_pauses_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(ScriptedLLM([["a", delay(0.2), "b"]])).start("go")
    await run
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", wait)
    waits = []
    for speed in (1.0, 4.0, None):
        waited.clear()
        await collect(Recorded(run, speed=speed).stream([{"role": "user", "content": "go"}]))
        waits.append(sum(waited))
    assert waits[0] >= 0.199  # to the millisecond, and longer if the machine was busy during the recording
    assert waits == [waits[0], pytest.approx(waits[0] / 4), 0]


async def test_a_strict_recorded_model_refuses_an_unrecorded_request() -> None:
    run = session().start("go", approve=True)
    await run
    with pytest.raises(AssertionError, match="This request is not in the recording"):
        await collect(Recorded(run, strict=True).stream([{"role": "user", "content": "something else"}]))


async def test_a_request_beyond_the_recorded_ones_is_refused() -> None:
    run = session(ScriptedLLM(["hello"])).start("go")
    await run
    recorded = Recorded(run)
    await collect(recorded.stream([{"role": "user", "content": "go"}]))
    with pytest.raises(AssertionError, match="this is one more"):
        await collect(recorded.stream([{"role": "user", "content": "go"}]))


async def test_assert_complete_reports_requests_that_were_not_repeated() -> None:
    run = session().start("go", approve=True)
    await run
    with pytest.raises(AssertionError, match="3 of 3 recorded requests were not made"):
        Recorded(run).assert_complete()


async def test_a_recorded_model_failure_is_raised_again() -> None:
    run = session(ScriptedLLM([["so f", ConnectionError("gone")]])).start("go")
    with pytest.raises(Exception, match="gone"):
        await run
    with pytest.raises(Exception, match="ConnectionError: gone"):
        await collect(Recorded(run).stream([{"role": "user", "content": "go"}]))


async def test_a_recorded_tool_returns_only_recorded_results() -> None:
    run = await decided_run()
    tools = {tool.name: tool for tool in Recorded(run).tools}
    assert set(tools) == {"read", "write"}
    assert await tools["read"].bind({"table": "b"})(print) == "b read"
    with pytest.raises(AssertionError, match="no \\(further\\) call of read"):
        await tools["read"].bind({"table": "b"})(print)


async def test_a_recorded_call_is_matched_by_the_json_of_its_arguments(tmp_path: Path) -> None:
    given = [math.nan, 1, True, 1.0, -0.0, 0.0, math.inf, "1", None]

    @tool
    def tell(x: Any) -> str:
        return repr(x)

    run = SessionLoop(ScriptedLLM([[call("tell", {"x": x}) for x in given], "end"]), [tell]).start("go")
    await run
    run.snapshot().save(tmp_path / "run.json")
    (told,) = Recorded(tmp_path / "run.json").tools
    for x in reversed(given):
        assert await told.bind({"x": x})(print) == repr(x)


async def test_a_recorded_model_matches_a_history_with_nan() -> None:
    run = SessionLoop(ScriptedLLM([[call("tell", {"x": math.nan})], "end"]), [tool(name="tell")(lambda x: 5)]).start(
        "go"
    )
    await run
    recorded = Recorded(run, strict=True)
    assert await SessionLoop(recorded, recorded.tools).start("go") == "end"


async def test_a_run_with_recorded_decisions_differs_only_in_call_ends() -> None:
    run = researcher().start("Look it up.", approve=True)
    await run
    recorded = Recorded(run.snapshot("nile"), strict=True)
    again = SessionLoop(recorded, recorded.tools, name="researcher").start("Look it up.", approve=True)
    await again
    kinds = {pair.left.type for pair in diff(run, again).events if pair.how != "same" and pair.left is not None}
    assert kinds <= {"call_end"}  # with another class of the error


# -- as a test -------------------------------------------------------------------------------------------------------


def pytest_of(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(file.parent), str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


async def test_a_generated_test_passes(tmp_path: Path) -> None:
    run = await decided_run()
    file = write_test(run, tmp_path / "test_nile.py", "tests.analysis.recordings:researcher")
    assert file == tmp_path / "test_nile.py"
    done = pytest_of(file)
    assert "1 passed" in done.stdout, done.stdout
    assert "def test_nile_decides_as_recorded" in file.read_text()


async def test_a_generated_test_fails_if_the_loop_decides_differently(tmp_path: Path) -> None:
    run = await decided_run()
    file = write_test(run, tmp_path / "test_nile.py", "tests.analysis.recordings:researcher")
    file.write_text(file.read_text().replace("else loop_or_function()", "else loop_or_function(max_turns=1)"))
    done = pytest_of(file)
    assert "1 failed" in done.stdout
    assert "ReplayDiverged" in done.stdout


def test_a_test_that_would_fail_is_not_written(tmp_path: Path) -> None:
    run = asyncio.run(decided_run())
    with pytest.raises(ReplayDiverged):
        write_test(run, tmp_path / "test_nile.py", "tests.designs:session")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "where",
    [
        "nowhere",
        "tests.designs:nothing",
        "no.such.module:loop",
        "tests.designs:WORK",
        "tests/designs.py:session",
        "tests.designs:double",
        3,
    ],
)
async def test_an_invalid_reference_to_a_loop_is_refused(tmp_path: Path, where: str) -> None:
    run = await decided_run()
    with pytest.raises(UsageError, match="loop"):
        write_test(run, tmp_path / "test_nile.py", where)


@pytest.mark.parametrize("nowhere", ["nile", "folder", "folder/nile.txt"])
def test_a_path_that_is_not_a_python_file_is_refused(tmp_path: Path, nowhere: str) -> None:
    (tmp_path / "folder").mkdir()
    run = asyncio.run(decided_run())
    with pytest.raises(UsageError, match="must be a Python file"):
        write_test(run, tmp_path / nowhere, "tests.analysis.recordings:researcher")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def cut(run: Any) -> Any:
    """Return the recording up to the start of a call, as a process leaves it that is killed during the call."""
    return run.at(next(event.seq for event in run.events if event.type == "call_start")).snapshot()


@pytest.mark.parametrize(
    "kind", [lambda run: run, cut, lambda run: replay(run).to(3), lambda run: run.fork(4, name="f")]
)
@pytest.mark.parametrize("world", list(WORLDS))
async def test_a_generated_test_passes_for_every_design_and_kind_of_recording(
    tmp_path: Path, world: str, kind: Callable[[Any], Any]
) -> None:
    run = WORLDS[world]().start("go", name="w\u00f6rld \u202e'\n", approve=True)
    await run
    file = write_test(kind(run), tmp_path / "test_it.py", f"tests.designs:{world}")
    tests = [made for name, made in runpy.run_path(str(file)).items() if name.startswith("test_")]
    assert len(tests) == 1
    tests[0]()


@pytest.mark.parametrize("name", ["loop", "agentnb", "Path", "Design", "RECORDING", "given", "test_loop"])
async def test_a_generated_test_passes_for_any_name_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = WORLDS["session"]().start("go", approve=True)
    await run
    module = ModuleType("loops_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    setattr(module, name, WORLDS["session"])
    file = write_test(run, tmp_path / "test_it.py", f"{module.__name__}:{name}")
    (test,) = [made for made_as, made in runpy.run_path(str(file)).items() if made_as.startswith("test_")]
    test()


@pytest.mark.parametrize("speed", [0, -1.0, float("nan"), "fast", True])
async def test_an_invalid_speed_is_refused(speed: Any) -> None:
    with pytest.raises(UsageError, match="speed="):
        Recorded(await decided_run(), speed=speed)


async def test_requests_are_matched_without_roles_that_are_not_sent() -> None:
    said = [{"role": role, "content": role} for role in ("system", "note", "user")]
    run = session(ScriptedLLM(["hello"])).start(said)
    await run
    assert await session(Recorded(run, strict=True)).start(said) == "hello"
