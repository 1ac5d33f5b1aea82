from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import json
import math
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from agentnb import RunFailed, SessionLoop, Snapshot, Store, ToolError, tool
from agentnb.core.events import CallEnd, Delta, plain_event
from agentnb.testing import ScriptedLLM, call
from agentnb.threads import MAX_THREADS
from tests.run.agents import Agent
from tests.worlds import asks, assert_folds, collect, facts, provider_faults


async def result_of(function: Any, arguments: dict[str, Any] | None = None, **options: Any) -> tuple[CallEnd, Any]:
    """Return the end of a call of this tool, and its run, after a round trip through JSON."""
    agent = Agent()
    agent.tools.append(function)
    run = agent.loop([call(function.name, arguments, id="t1")], "done").start("hi", **options)
    async with asyncio.timeout(60):
        assert await run == "done"
    assert provider_faults(run.messages) == []
    assert_folds(run)
    snapshot = Snapshot.from_json(run.snapshot().to_json())
    assert repr(list(snapshot.events)) == repr(run.events)
    (end,) = [event for event in run.events if isinstance(event, CallEnd)]
    return end, run


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Model(BaseModel):
    name: str


class Plain:
    def __str__(self) -> str:
        return "a plain object"


class Mute:
    def __repr__(self) -> str:
        raise LookupError("no words")

    __str__ = __repr__


def cycle(width: int = 1) -> list[Any]:
    made: list[Any] = []
    made.extend([made] * width)
    return made


def deep(levels: int) -> Any:
    made: Any = "\ud800"
    for _ in range(levels):
        made = [made]
    return made


class Never(datetime.datetime):
    """An invalid moment, as in a table with a missing date (pandas.NaT)."""

    year = math.nan  # type: ignore[assignment]


HOSTILE = {
    "bytes": b"\xff\x00",
    "surrogate": "a\ud800b",
    "surrogate inside": {"k\udfff": ["\ud83d"]},
    "nan": math.nan,
    "infinities": [math.inf, -math.inf],
    "set": {1},
    "object": Plain(),
    "object inside": [Plain(), {"a": object}],
    "mute": Mute(),
    "mute inside": ["\ud800", Mute()],
    "cycle": cycle(),
    "wide cycle": cycle(3),
    "dataclass": Point(1, 2),
    "model": Model(name="m"),
    "date": datetime.datetime(2026, 1, 1),
    "no date": Never(2026, 1, 1),
    "decimal": decimal.Decimal("1.5"),
    "keys": {1: "a", None: "b", (1, 2): "c"},
    "huge": 10**400,
    "deep": deep(200),
    "complex": 1j,
    "function": print,
    "exception": ValueError("x"),
    "nul": "\x00",
    "lines": "\u2028\u0085",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
async def test_any_result_of_a_tool_is_converted_to_json(value: Any) -> None:
    @tool
    async def odd() -> Any:
        return value

    end, run = await result_of(odd)
    assert end.outcome == "returned"
    assert isinstance(run.messages[2].content, str | list)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
async def test_any_progress_value_of_a_tool_is_shown(value: Any) -> None:
    @tool
    async def odd(progress: Any) -> str:
        progress(value)
        return "ok"

    agent = Agent()
    agent.tools.append(odd)
    run = agent.loop([call("odd", id="t1")], "done").start("hi")
    shown = [news for news in await collect(run) if isinstance(news, Delta) and news.type == "call_delta"]
    assert [news.call_id for news in shown] == ["t1"]
    json.dumps(plain_event(shown[0]))


async def test_json_values_are_kept_next_to_converted_ones() -> None:
    @tool
    async def row() -> Any:
        return {"model": Model(name="m"), "day": datetime.date(2026, 1, 1), "never": Never(2026, 1, 1)}

    end, _ = await result_of(row)
    assert end.result | {"never": ""} == {"model": {"name": "m"}, "day": "2026-01-01", "never": ""}


@pytest.mark.parametrize(
    ("value", "number"),
    [(np.int64(3), 3), (np.float32(1.5), 1.5), (np.bool_(True), True), (np.array(7), 7)],
    ids=["int", "float", "bool", "no dimensions"],
)
async def test_a_number_of_numpy_is_a_number(value: Any, number: float) -> None:
    @tool
    async def mean() -> Any:
        return {"mean": [value]}

    end, run = await result_of(mean)
    assert end.result == {"mean": [number]}
    assert type(end.result["mean"][0]) is type(number)
    assert run.messages[2].content == json.dumps({"mean": [number]}, separators=(",", ":"))


async def test_a_numpy_datetime_is_converted_to_text() -> None:
    @tool
    async def when() -> Any:
        return [np.datetime64("2026-01-01", "ns"), np.timedelta64(3, "ns")]

    end, _ = await result_of(when)
    assert all(isinstance(moment, str) for moment in end.result)


@pytest.mark.parametrize("value", [[], {}, "", 0, False, None, [1], {"a": None}, 1.5, 2**70])
async def test_json_values_are_kept_unchanged(value: Any) -> None:
    @tool
    async def plain() -> Any:
        return value

    end, _ = await result_of(plain)
    assert end.result == value
    assert type(end.result) is type(value)


async def test_changing_a_result_later_does_not_change_the_recorded_one() -> None:
    kept: list[Any] = [1]

    @tool
    async def keeper() -> Any:
        return kept

    end, _ = await result_of(keeper)
    kept.append(2)
    assert end.result == [1]


async def test_changing_the_arguments_in_a_tool_does_not_change_the_history() -> None:
    @tool
    async def eater(items, options: Any) -> str:  # type: ignore[no-untyped-def]
        items.clear()
        options["deep"]["er"] = "changed"
        return "ate"

    arguments = {"items": [1, 2], "options": {"deep": {"er": "as it was"}}}
    _, run = await result_of(eater, arguments)
    assert run.messages[1].tool_calls[0].arguments == {"items": [1, 2], "options": {"deep": {"er": "as it was"}}}


class Panic(BaseException):
    """Like the exception of pyo3 if a library written in Rust panics; it is not an Exception."""


class Mumbling(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ToolError("in my own words"), "in my own words"),
        (TimeoutError("upstream"), "TimeoutError: upstream"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (Mumbling(), "Mumbling: <Mumbling, whose text is a LookupError>"),
        (ExceptionGroup("both", [ValueError("a"), KeyError("b")]), "ExceptionGroup: both (2 sub-exceptions)"),
        (StopIteration("odd"), "RuntimeError: "),
        (StopAsyncIteration("odd"), "StopAsyncIteration: odd"),
        (SystemExit(2), "SystemExit: 2"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt: stop"),
        (GeneratorExit("closed"), "GeneratorExit: closed"),
        (Panic("index out of bounds"), "Panic: index out of bounds"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("timeout", [None, 30])
async def test_an_error_of_a_tool_reaches_the_model(error: BaseException, words: str, timeout: float | None) -> None:
    @tool(timeout=timeout)
    async def failing() -> None:
        raise error

    end, run = await result_of(failing)
    assert end.is_error
    assert end.outcome == "raised"
    assert end.result.startswith(words)
    assert end.error is not None
    assert run.messages[2].is_error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (StopIteration("empty"), "RuntimeError: StopIteration: empty"),
        (KeyboardInterrupt("stop"), "RuntimeError: KeyboardInterrupt: stop"),
        (GeneratorExit("closed"), "RuntimeError: GeneratorExit: closed"),
        (SystemExit(2), "SystemExit: 2"),
        (Panic("index out of bounds"), "Panic: index out of bounds"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_of_a_sync_tool_reaches_the_model(error: BaseException, words: str) -> None:
    @tool
    def failing() -> None:
        raise error

    end, _ = await result_of(failing)
    assert end.is_error
    assert end.result == words


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), GeneratorExit("closed")], ids=repr)
@pytest.mark.parametrize("calls", [1, 2])
def test_an_exception_of_a_tool_does_not_end_a_blocking_wait(error: BaseException, calls: int) -> None:
    @tool
    async def failing() -> None:
        await asyncio.sleep(0)
        raise error

    agent = Agent()
    agent.tools.append(failing)
    run = agent.loop([call("failing")] * calls, "done").start("hi")
    assert run.result(timeout=30) == "done"
    assert [m.content for m in run.messages if m.role == "tool"] == [f"{type(error).__name__}: {error}"] * calls


def test_ctrl_c_with_a_custom_handler_ends_the_wait_and_is_not_a_failure_of_a_tool() -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    @tool
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    async def wait() -> None:
        await SessionLoop(ScriptedLLM([[call("interrupted")], "done"]), [interrupted]).start("hi")

    before = signal.signal(signal.SIGINT, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(wait())
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [KeyboardInterrupt("stop"), GeneratorExit("closed")], ids=repr)
def test_an_exception_of_a_model_fails_a_blocking_run(error: BaseException) -> None:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            yield {"type": "text_delta", "content": "He"}
            raise error

    run = SessionLoop(Model(), []).start("hi")
    with pytest.raises(RunFailed, match=f"{type(error).__name__}: {error}"):
        run.result(timeout=30)


async def test_a_tool_that_exceeds_its_timeout_is_cancelled() -> None:
    cleaned: list[bool] = []

    @tool(timeout=0.02)
    async def sleepy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(True)

    end, _ = await result_of(sleepy)
    assert end.outcome == "timed_out"
    assert end.result == "sleepy took longer than 0.02 s."
    assert cleaned == [True]


async def test_the_error_of_a_timed_out_call_is_a_timeout_error() -> None:
    @tool(timeout=0.02)
    async def sleepy() -> None:
        await asyncio.sleep(60)

    end, _ = await result_of(sleepy)
    assert end.error is not None
    assert (end.error.type, end.error.message) == ("TimeoutError", "sleepy took longer than 0.02 s.")


async def test_the_late_result_of_a_timed_out_sync_tool_is_ignored() -> None:
    let_go = threading.Event()

    @tool(timeout=0.02)
    def sleepy(progress: Any) -> str:
        let_go.wait(10)
        progress("too late")
        return "late"

    try:
        end, run = await result_of(sleepy)
    finally:
        let_go.set()
    assert end.outcome == "timed_out"
    assert "late" not in str(run.messages)


async def test_timed_out_sync_tools_do_not_use_up_the_threads() -> None:
    let_go = threading.Event()

    @tool(timeout=0.02)
    def hang(n: int) -> None:
        let_go.wait(60)

    @tool(timeout=30)
    def answer() -> str:
        return "here"

    agent = Agent()
    agent.tools += [hang, answer]
    try:
        await agent.loop([call("hang", {"n": n}) for n in range(MAX_THREADS)], "done").start("hi")
        run = agent.loop([call("answer")], "done").start("hi")
        async with asyncio.timeout(60):
            await run
    finally:
        let_go.set()
    assert [m.content for m in run.messages if m.role == "tool"] == ["here"]


HANGS = """
import threading

import agentnb
from agentnb import threads
from agentnb.testing import ScriptedLLM, call

threads.ABANDONED_SECONDS = 0.0

@agentnb.tool(timeout=0.02)
def hang() -> None:
    threading.Event().wait()

print(agentnb.SessionLoop(ScriptedLLM([[call("hang")], "done"]), [hang]).start("go").result())
"""


def test_a_timed_out_sync_tool_does_not_prevent_the_process_from_ending() -> None:
    ran = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("done\n", "", 0)


async def test_sync_tools_run_concurrently_in_threads() -> None:
    together = threading.Barrier(20)
    threads: set[int] = set()

    @tool
    def meet(value: int) -> int:
        together.wait(10)
        threads.add(threading.get_ident())
        return value

    agent = Agent()
    agent.tools.append(meet)
    turn = [call("meet", {"value": n}) for n in range(20)]
    run = agent.loop(turn, "done").start("hi")
    async with asyncio.timeout(60):
        await run
    assert threading.get_ident() not in threads
    assert [m.content for m in run.messages if m.role == "tool"] == [str(n) for n in range(20)]


async def test_a_sync_tool_does_not_block_the_event_loop() -> None:
    ticking = threading.Event()

    @tool
    def blocking() -> str:
        return "ticked" if ticking.wait(10) else "held up"

    async def tick() -> None:
        await asyncio.sleep(0.01)
        ticking.set()

    (end, _), _ = await asyncio.gather(result_of(blocking), tick())
    assert end.result == "ticked"


async def test_progress_arrives_while_the_call_runs() -> None:
    @tool
    async def work(progress: Any) -> str:
        for part in range(3):
            progress(part)
            await seen.wait()
            seen.clear()
        return "worked"

    seen = asyncio.Event()
    agent = Agent()
    agent.tools.append(work)
    run = agent.loop([call("work", id="t1")], "done").start("hi")
    parts: list[Any] = []
    async with asyncio.timeout(60):
        async for news in run:
            if isinstance(news, Delta) and news.type == "call_delta":
                parts.append(news.data)
                seen.set()
    assert parts == [0, 1, 2]
    assert all(event.type != "call_delta" for event in run.events)


async def test_progress_of_a_thread_arrives_while_the_call_runs() -> None:
    seen = threading.Event()

    @tool
    def work(progress: Any) -> str:
        progress("half")
        return "seen" if seen.wait(30) else "not seen"

    agent = Agent()
    agent.tools.append(work)
    run = agent.loop([call("work", id="t1")], "done").start("hi")
    async for news in run:
        if isinstance(news, Delta) and news.type == "call_delta":
            seen.set()
    assert run.messages[2].content == "seen"


async def test_errors_of_invalid_calls_reach_the_model() -> None:
    agent = Agent()
    turn = [
        call("nope", id="t1"),
        call("echo", {"valeu": 1}, id="t2"),
        {"type": "tool_call", "id": "t3", "name": "echo", "arguments": "[1]"},
    ]
    run = agent.loop(turn, "done").start("hi")
    await run
    ends = {event.call_id: event for event in run.events if isinstance(event, CallEnd)}
    assert {end.outcome for end in ends.values()} == {"invalid"}
    assert "Available tools: echo, look, send, slow" in ends["t1"].result
    assert "value" in ends["t2"].result
    assert "not a JSON object: [1]" in ends["t3"].result
    assert agent.ran == []


HALF = "\ud83d"  # half of an emoji, as a model's escaped JSON may give it


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    "turn",
    [
        [{"type": "text_delta", "content": f"a{HALF}b"}],
        [{"type": "reasoning_delta", "content": HALF}, {"type": "text_delta", "content": "x"}],
        [{"type": "tool_call", "id": "t1", "name": "echo", "arguments": '{"value": "\\ud83d"}'}],
        [{"type": "tool_call", "id": "t1", "name": "echo", "arguments": {"value": HALF}}],
        [{"type": "tool_call", "id": "t1", "name": "echo", "arguments": "{" + HALF}],
        [{"type": "tool_call", "id": HALF, "name": f"echo{HALF}", "arguments": {}}],
        [{"type": "text_delta", "content": HALF}, ConnectionError(HALF)],
    ],
    ids=["text", "reasoning", "text of arguments", "arguments", "malformed", "names", "failure"],
)
async def test_lone_surrogates_in_the_text_of_a_model_are_replaced(turn: Any, stored: bool, tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db") if stored else None
    run = Agent().loop(turn, "done", "done").start("hi", store=store)
    try:
        await run
    except RunFailed:
        assert run.stop_reason is None
        run.resume()
        await run
    assert run.stop_reason == "completed"
    read = Snapshot.from_json(run.snapshot().to_json())
    assert "\ufffd" in str(read.events)
    if store is not None:
        assert list(store.load(run.id).events) == run.events
        store.close()


async def test_a_surrogate_pair_in_two_deltas_is_joined() -> None:
    halves = [{"type": "text_delta", "content": half} for half in ("\ud83d", "\ude00")]
    assert await Agent().loop(halves).start("hi") == "\U0001f600"


@pytest.mark.parametrize("words", ["\ud800", "\udfff a"])
async def test_lone_surrogates_in_the_text_of_a_person_are_replaced(words: str, tmp_path: Any) -> None:
    store = Store(tmp_path / "runs.db")
    run = Agent().loop("one", "two", "three").start(words, store=store)
    run.steer(words)
    run.follow_up({"role": "user", "content": words})
    await run
    assert list(store.load(run.id).events) == run.events
    store.close()


async def test_results_with_blocks_and_details_are_recorded_as_such() -> None:
    @tool
    async def picture() -> Any:
        return {"content": [{"type": "text", "text": "a"}], "details": {"b": b"x"}, "is_error": True}

    end, run = await result_of(picture)
    assert end.result == [{"type": "text", "text": "a"}]
    assert end.details == {"b": "x"}
    assert run.messages[2].is_error


async def test_calls_that_never_wait_do_not_block_other_tasks() -> None:
    """The model and the tools never wait."""
    agent = Agent()
    run = agent.loop(*[[call("echo", {"value": str(n)})] for n in range(300)], "done").start("hi")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while not run.state.over:
            ticks += 1
            await asyncio.sleep(0)

    began = time.monotonic()
    await asyncio.gather(collect(run), tick())
    assert len(facts(run.events)) > 1000
    assert ticks >= (time.monotonic() - began) / 0.1


async def gives_up(*_: Any) -> None:
    """Wait for a task that other code has cancelled. This code itself is not cancelled."""
    waited_for = asyncio.get_running_loop().create_future()
    waited_for.cancel()
    await waited_for


@pytest.mark.parametrize(
    ("hook", "ran"), [("before_tool_call", []), ("after_tool_call", ["a"])], ids=["before", "after"]
)
async def test_a_hook_that_raises_a_cancellation_has_failed(hook: str, ran: list[str]) -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done", **{hook: gives_up}).start("hi")
    async with asyncio.timeout(60):
        assert await run == "done"
    assert agent.ran == ran
    assert run.messages[2].content == "CancelledError: "


async def test_a_policy_that_raises_a_cancellation_does_not_approve() -> None:
    agent = Agent()
    run = agent.loop(asks("a"), "done").start("hi", approve=gives_up)
    async with asyncio.timeout(60):
        while not run.pending:
            await run.step()
    assert run.pending[0].reason == "The policy failed: CancelledError: "
    assert agent.ran == []
    run.cancel()
