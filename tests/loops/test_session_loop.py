from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from agentnb import RunCancelled, RunFailed, SessionLoop, UsageError, restore, tool
from agentnb.loops.session_loop import EventStream, MessageQueue
from agentnb.testing import ScriptedLLM, call, text
from tests.worlds import asks, assert_folds, collect, notation, provider_faults, running_tasks, says


class World:
    """Tools that record when they run, and call a function of the test while they run."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.during: dict[str, Callable[[], Any]] = {}

        @tool
        async def echo(value: str) -> str:
            """Give the value back."""
            self.ran.append(value)
            if value in self.during:
                done = self.during[value]()
                if asyncio.iscoroutine(done):
                    await done
            return f"R:{value}"

        @tool
        async def boom(value: str = "") -> str:
            """Fail."""
            raise RuntimeError("api down")

        self.tools = [echo, boom]

    def loop(self, *turns: Any, **options: Any) -> SessionLoop:
        return SessionLoop(ScriptedLLM(turns), self.tools, **options)


def sent(loop: SessionLoop, request: int) -> list[str]:
    """Return the history of a model request in short notation: roles, and ids of results."""
    messages = loop.llm.requests[request].messages
    assert provider_faults(messages) == []
    return [f"user:{m['content']}" if m["role"] == "user" else m.get("tool_call_id", m["role"]) for m in messages]


def results(loop: SessionLoop) -> dict[str, str]:
    return {m.tool_call_id: m.content for m in loop.messages if m.role == "tool"}


# -- the ten events, in order (session_loop/SEMANTICS.md, 9. Notation) ------------------------------------------------


async def test_pi_01_the_events_of_a_turn_with_text() -> None:
    loop = World().loop("hello")
    events = await collect(loop.run("hi"))
    assert notation(events) == ["AS", "TS", "M(user:hi)", "M(A)", "TE[]", "AE(2)"]
    assert [m.role for m in events[-1].messages] == ["user", "assistant"]
    assert events[-2].message.content == "hello"


async def test_pi_02_the_events_of_a_turn_with_a_call() -> None:
    world = World()
    loop = world.loop(asks("t1"), "done")
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "XS(t1)", "XE(t1)", "M(result:t1)", "TE[t1]"),
        *("TS", "M(A)", "TE[]", "AE(4)"),
    ]
    assert sent(loop, 1) == ["user:hi", "assistant", "t1"]
    loop.llm.assert_complete()


@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
async def test_pi_03_steering_is_sent_after_the_whole_batch(tool_execution: Any) -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "done", tool_execution=tool_execution)
    world.during["t1"] = lambda: loop.steer("STEER")
    said = notation(await collect(loop.run("hi")))
    batch = {
        "sequential": ["XS(t1)", "XE(t1)", "M(result:t1)", "XS(t2)", "XE(t2)", "M(result:t2)"],
        "parallel": ["XS(t1)", "XS(t2)", "XE(t1)", "XE(t2)", "M(result:t1)", "M(result:t2)"],
    }
    assert said == [
        *("AS", "TS", "M(user:hi)", "M(A)"),
        *batch[tool_execution],
        *("TE[t1,t2]", "TS", "M(user:STEER)", "M(A)", "TE[]", "AE(6)"),
    ]
    assert world.ran == ["t1", "t2"]
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]


async def test_skip_pending_skips_calls_that_have_not_started() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2", "t3"), "done", tool_execution="sequential", steering_mode="skip_pending")
    world.during["t1"] = lambda: loop.steer("STEER")
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "XS(t1)", "XE(t1)", "M(result:t1)"),
        *("XS(t2)", "XE(t2!)", "M(result:t2!)", "XS(t3)", "XE(t3!)", "M(result:t3!)", "TE[t1,t2,t3]"),
        *("TS", "M(user:STEER)", "M(A)", "TE[]", "AE(7)"),
    ]
    assert world.ran == ["t1"]
    assert results(loop) == {
        "t1": "R:t1",
        "t2": "Skipped due to queued user message.",
        "t3": "Skipped due to queued user message.",
    }
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "t3", "user:STEER"]


async def test_skip_pending_does_not_interrupt_running_calls() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "done", steering_mode="skip_pending")
    world.during["t1"] = lambda: loop.steer("STEER")
    await collect(loop.run("hi"))
    assert results(loop) == {"t1": "R:t1", "t2": "R:t2"}  # both calls had been started
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]


@pytest.mark.parametrize("with_hook", [False, True])
@pytest.mark.parametrize("said_at", ["message_end", "tool_execution_start"])
async def test_steering_skips_no_call_before_the_first_of_a_sequential_turn_has_ended(
    said_at: str, with_hook: bool
) -> None:
    """Steering is checked after each call, and not before the first one."""
    world = World()
    hooks: dict[str, Any] = {"before_tool_call": lambda context: None} if with_hook else {}
    modes: dict[str, Any] = {"tool_execution": "sequential", "steering_mode": "skip_pending"}
    loop = world.loop(asks("t1", "t2"), "done", **modes, **hooks)
    said = False
    async for event in loop.run("hi"):
        if event.type == said_at and loop.llm.requests and not said:
            said = True
            loop.steer("STEER")
    assert world.ran == ["t1"]
    assert results(loop)["t2"] == "Skipped due to queued user message."


async def turns(count: int = 20) -> None:
    """Let all other tasks of the event loop have this many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("steering_mode", ["skip_pending", "discard"])
async def test_steering_during_a_hook_skips_calls_that_were_already_checked(
    steering_mode: Any,
) -> None:
    async def before(context: Any) -> None:
        if context.tool_call.id == "t2":
            loop.steer("STEER")
            await turns()

    world = World()
    loop = world.loop(asks("t1", "t2", "t3"), "done", steering_mode=steering_mode, before_tool_call=before)
    said = notation(await collect(loop.run("hi")))
    assert world.ran == []
    assert set(results(loop).values()) == {"Skipped due to queued user message."}
    assert [word for word in said if word[0] == "X"] == [
        *("XS(t1)", "XS(t2)", "XE(t1!)", "XE(t2!)", "XS(t3)", "XE(t3!)"),
    ]
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "t3", "user:STEER"]


@pytest.mark.parametrize("steering_mode", ["skip_pending", "discard"])
async def test_steering_at_the_start_of_a_call_skips_it_before_its_hook_is_called(steering_mode: Any) -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "done", steering_mode=steering_mode, before_tool_call=lambda context: None)
    run = loop.start("hi")
    run.watch(lambda event: event.type == "call_start" and event.call_id == "t1" and run.steer("STEER"))
    async with asyncio.timeout(60):
        assert await run == "done"
    assert world.ran == []
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]


@pytest.mark.parametrize("steering_mode", ["skip_pending", "discard"])
async def test_steering_does_not_skip_a_call_that_had_started_before_a_crash(steering_mode: Any) -> None:
    world = World()
    loop = world.loop(asks("t1"), steering_mode=steering_mode)
    steered = asyncio.Event()

    async def steer() -> None:
        loop.steer("STEER")
        steered.set()
        await asyncio.Event().wait()

    world.during["t1"] = steer
    run = loop.start("hi")
    run.play()
    async with asyncio.timeout(60):
        await steered.wait()
    snapshot = run.snapshot()
    run.cancel()
    again = restore(snapshot, World().loop("done", steering_mode=steering_mode))
    while await again.step():
        pass
    assert [(asked.id, again.state.stop_reason) for asked in again.pending] == [("t1", None)]
    again.answer("t1", "it happened")
    assert await again == "done"


@pytest.mark.parametrize(
    ("steering_mode", "told"), [("skip_pending", "worked"), ("discard", "Skipped due to queued user message.")]
)
async def test_a_call_that_runs_during_steering_runs_to_its_end(steering_mode: Any, told: str) -> None:
    ended: list[str] = []

    @tool
    async def work() -> str:
        loop.steer("STEER")
        await turns()
        ended.append("work")
        return "worked"

    loop = SessionLoop(ScriptedLLM([[call("work", id="t1")], "done"]), [work], steering_mode=steering_mode)
    await collect(loop.run("hi"))
    assert ended == ["work"]
    assert results(loop) == {"t1": told}


@pytest.mark.parametrize("moment", ["call_proposed", "call_start"])
async def test_a_hook_called_during_steering_still_takes_effect(moment: str) -> None:
    asked: list[int] = []

    async def stop(context: Any) -> bool:
        asked.append(1)
        await turns()
        return True

    loop = SessionLoop(ScriptedLLM(["done"]), steering_mode="skip_pending", should_stop_after_turn=stop)
    run = loop.start("hi")
    run.watch(lambda event: event.type == moment and run.steer("STEER"))
    async with asyncio.timeout(60):
        assert await run == "done"
    assert asked == [1]


@pytest.mark.parametrize("said_in", ["t1", "t2"])
@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
async def test_pi_05_discard_replaces_every_result_once(tool_execution: Any, said_in: str) -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "done", tool_execution=tool_execution, steering_mode="discard")
    world.during[said_in] = lambda: loop.steer("STEER")
    events = await collect(loop.run("hi"))
    said = notation(events)
    skipped = "Skipped due to queued user message."
    assert results(loop) == {"t1": skipped, "t2": skipped}
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "user:STEER"]
    assert [word for word in said if word.startswith("M(result")] == ["M(result:t1!)", "M(result:t2!)"]
    assert said[-6:] == ["TE[t1,t2]", "TS", "M(user:STEER)", "M(A)", "TE[]", "AE(6)"]
    assert said.count("XS(t1)") == said.count("XS(t2)") == 1


async def test_discard_without_steering_has_the_events_of_any_other_batch() -> None:
    loop = World().loop(asks("t1"), asks("t2"), "done", steering_mode="discard")
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "XS(t1)", "XE(t1)", "M(result:t1)", "TE[t1]"),
        *("TS", "M(A)", "XS(t2)", "XE(t2)", "M(result:t2)", "TE[t2]"),
        *("TS", "M(A)", "TE[]", "AE(6)"),
    ]


async def test_steering_during_a_turn_with_text_is_sent_in_the_next_turn() -> None:
    def steer(messages: Any) -> Any:
        loop.steer("STEER")
        return text("first")

    loop = SessionLoop(ScriptedLLM([steer, "second"]))
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "TE[]", "TS", "M(user:STEER)", "M(A)", "TE[]", "AE(4)"),
    ]


async def test_steering_queued_before_the_run_is_sent_with_the_prompt() -> None:
    loop = World().loop("done")
    loop.steer("EARLY")
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(user:EARLY)", "M(A)", "TE[]", "AE(3)"),
    ]


async def test_follow_ups_are_sent_when_the_session_would_stop() -> None:
    world = World()
    loop = world.loop(asks("t1"), "first", "second", "third")
    loop.follow_up("F1")
    loop.follow_up("F2")
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "XS(t1)", "XE(t1)", "M(result:t1)", "TE[t1]", "TS", "M(A)", "TE[]"),
        *("TS", "M(user:F1)", "M(A)", "TE[]", "TS", "M(user:F2)", "M(A)", "TE[]", "AE(8)"),
    ]


async def test_steering_is_sent_before_follow_ups() -> None:
    def both(messages: Any) -> Any:
        loop.follow_up("F")
        loop.steer("S")
        return text("first")

    loop = SessionLoop(ScriptedLLM([both, "second", "third"]))
    await collect(loop.run("hi"))
    assert [m.content for m in loop.messages if m.role == "user"] == ["hi", "S", "F"]


@pytest.mark.parametrize(
    ("drain", "users"),
    [
        ("one-at-a-time", ["hi", "hi S1", "hi S1 S2", "hi S1 S2 F1", "hi S1 S2 F1 F2"]),
        ("all", ["hi", "hi S1 S2", "hi S1 S2 F1 F2"]),
    ],
)
async def test_drain_determines_how_many_queued_messages_are_sent_at_a_time(drain: Any, users: list[str]) -> None:
    def queue(messages: Any) -> Any:
        for words in ("S1", "S2"):
            loop.steer(words)
        for words in ("F1", "F2"):
            loop.follow_up(words)
        return text("first")

    loop = SessionLoop(ScriptedLLM([queue, *["more"] * (len(users) - 1)]), drain=drain)
    await collect(loop.run("hi"))
    heard = [[m["content"] for m in r.messages if m["role"] == "user"] for r in loop.llm.requests]
    assert [" ".join(words) for words in heard] == users


async def test_pi_16_ends_have_the_order_of_completion_and_results_the_order_of_the_calls() -> None:
    world = World()
    second = asyncio.Event()
    loop = world.loop(asks("t1", "t2"), "done")
    world.during["t1"] = second.wait
    world.during["t2"] = second.set
    assert notation(await collect(loop.run("hi"))) == [
        *("AS", "TS", "M(user:hi)", "M(A)", "XS(t1)", "XS(t2)", "XE(t2)", "XE(t1)"),
        *("M(result:t1)", "M(result:t2)", "TE[t1,t2]", "TS", "M(A)", "TE[]", "AE(5)"),
    ]


async def test_a_sequential_tool_makes_its_whole_batch_sequential() -> None:
    running, most = 0, 0

    async def busy() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    @tool(sequential=True)
    async def alone() -> str:
        await busy()
        return "alone"

    @tool
    async def free() -> str:
        await busy()
        return "free"

    loop = SessionLoop(ScriptedLLM([[call("free"), call("alone"), call("free")], "done"]), [alone, free])
    await collect(loop.run("hi"))
    assert most == 1


async def test_parallel_calls_run_concurrently() -> None:
    world = World()
    barrier = asyncio.Barrier(3)
    loop = world.loop(asks("t1", "t2", "t3"), "done")
    world.during = dict.fromkeys(("t1", "t2", "t3"), barrier.wait)
    async with asyncio.timeout(60):
        await collect(loop.run("hi"))
    assert results(loop) == {"t1": "R:t1", "t2": "R:t2", "t3": "R:t3"}


async def test_sequential_calls_run_one_after_the_other() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "done", tool_execution="sequential")
    world.during["t1"] = lambda: asyncio.sleep(0.001)
    said = notation(await collect(loop.run("hi")))
    assert said.index("XE(t1)") < said.index("XS(t2)")


# -- calls that do not run ------------------------------------------------------------------------------------------


async def test_results_have_the_order_of_the_calls_also_with_a_refused_call() -> None:
    world = World()
    turn = [*asks("t1"), call("no_such_tool", id="t2"), *asks("t3")]
    loop = world.loop(turn, "done")
    said = notation(await collect(loop.run("hi")))
    assert [word for word in said if word.startswith("M(result")] == ["M(result:t1)", "M(result:t2!)", "M(result:t3)"]
    assert "Tool no_such_tool not found" in results(loop)["t2"]
    assert said.count("XS(t2)") == 1
    assert said[said.index("XS(t2)") + 1] == "XE(t2!)"


async def test_results_have_the_order_of_the_calls_also_with_errors() -> None:
    turn = [call("boom", id="a"), *asks("b"), call("no_such_tool", id="c"), call("echo", {"value": 5}, id="d")]
    loop = World().loop(turn, "done")
    said = notation(await collect(loop.run("hi")))
    assert [word for word in said if word.startswith("M(result")] == [
        *("M(result:a!)", "M(result:b)", "M(result:c!)", "M(result:d!)")
    ]
    assert sent(loop, 1) == ["user:hi", "assistant", "a", "b", "c", "d"]


async def test_the_error_for_invalid_arguments_is_sent_to_the_model() -> None:
    world = World()
    loop = world.loop([call("echo", {"valeu": "x"}, id="t1")], "done")
    await collect(loop.run("hi"))
    assert world.ran == []
    assert "value" in results(loop)["t1"]
    assert "Invalid arguments for echo" in results(loop)["t1"]


async def test_arguments_that_are_not_an_object_are_quoted_to_the_model() -> None:
    turn = [{"type": "tool_call", "id": "t1", "name": "echo", "arguments": '{"value": "x'}]
    loop = World().loop(turn, "done")
    await collect(loop.run("hi"))
    assert '{"value": "x' in results(loop)["t1"]


async def test_a_tool_that_fails_does_not_end_the_run() -> None:
    loop = World().loop([call("boom", id="t1")], "done")
    assert notation(await collect(loop.run("hi")))[4:8] == ["XS(t1)", "XE(t1!)", "M(result:t1!)", "TE[t1]"]
    assert results(loop)["t1"] == "RuntimeError: api down"
    assert loop.llm.requests[1].messages[2]["is_error"]


async def test_calls_truncated_by_the_output_limit_do_not_run() -> None:
    world = World()
    loop = world.loop([*asks("t1", "t2"), {"type": "stop", "reason": "length"}], "done")
    said = notation(await collect(loop.run("hi")))
    assert world.ran == []
    assert said[-7:] == ["M(result:t1!)", "M(result:t2!)", "TE[t1,t2]", "TS", "M(A)", "TE[]", "AE(5)"]
    assert all("output token limit" in words for words in results(loop).values())


async def test_two_calls_with_the_same_id_get_different_ids() -> None:
    loop = World().loop(asks("t1", "t1"), "done")
    await collect(loop.run("hi"))
    assert provider_faults(loop.messages) == []
    assert len(results(loop)) == 2


async def test_every_call_has_a_start_and_an_end_event_for_any_ids() -> None:
    said = notation(await collect(World().loop(asks("t1", "t1 ended"), "done", tool_execution="sequential").run("hi")))
    assert [one for one in said if one.startswith("X")] == ["XS(t1)", "XE(t1)", "XS(t1 ended)", "XE(t1 ended)"]


async def test_calls_without_an_id_get_generated_ids() -> None:
    loop = World().loop([call("echo", {"value": "a"}), call("echo", {"value": "b"})], "done")
    await collect(loop.run("hi"))
    assert sorted(results(loop).values()) == ["R:a", "R:b"]
    assert provider_faults(loop.messages) == []


# -- hooks ----------------------------------------------------------------------------------------------------------


def sync_and_async(hook: Callable[..., Any]) -> list[Callable[..., Any]]:
    async def later(*arguments: Any) -> Any:
        await asyncio.sleep(0)
        return hook(*arguments)

    return [hook, later]


@pytest.mark.parametrize("form", [0, 1], ids=["sync", "async"])
async def test_a_hook_can_block_a_call_with_a_reason(form: int) -> None:
    seen: list[Any] = []

    def before(context: Any) -> Any:
        seen.append((context.tool_call.id, context["args"], [m.role for m in context.messages]))
        return {"block": True, "reason": "not today"} if context.args["value"] == "t2" else None

    world = World()
    loop = world.loop(asks("t1", "t2", "t3"), "done", before_tool_call=sync_and_async(before)[form])
    said = notation(await collect(loop.run("hi")))
    assert world.ran == ["t1", "t3"]
    assert results(loop)["t2"] == "not today"
    assert seen == [(id, {"value": id}, ["user", "assistant"]) for id in ("t1", "t2", "t3")]
    assert [w for w in said if w.startswith("M(result")] == ["M(result:t1)", "M(result:t2!)", "M(result:t3)"]
    assert [w for w in said if w.startswith("XS")] == ["XS(t1)", "XS(t2)", "XS(t3)"]


@pytest.mark.parametrize("form", [0, 1], ids=["sync", "async"])
async def test_a_hook_can_change_each_field_of_a_result(form: int) -> None:
    def after(context: Any) -> Any:
        changes: dict[str, Any] = {
            "t1": {"content": "other"},
            "t2": {"is_error": True},
            "t3": {"details": {"took": 1}},
            "t4": None,
        }
        assert context.result == f"R:{context.args['value']}"
        assert context.is_error is False
        return changes[context.tool_call.id]

    loop = World().loop(asks("t1", "t2", "t3", "t4"), "done", after_tool_call=sync_and_async(after)[form])
    await collect(loop.run("hi"))
    told = {m.tool_call_id: (m.content, m.is_error, m.details) for m in loop.messages if m.role == "tool"}
    assert told == {
        "t1": ("other", False, None),
        "t2": ("R:t2", True, None),
        "t3": ("R:t3", False, {"took": 1}),
        "t4": ("R:t4", False, None),
    }


async def test_a_hook_can_turn_an_error_into_a_success() -> None:
    seen: list[Any] = []

    def mend(context: Any) -> dict[str, Any]:
        seen.append((context.result, context.is_error))
        return {"content": "fine", "is_error": False}

    loop = World().loop([call("boom", id="t1")], "done", after_tool_call=mend)
    assert "XE(t1)" in notation(await collect(loop.run("hi")))
    assert seen == [("RuntimeError: api down", True)]
    assert results(loop) == {"t1": "fine"}


async def test_the_after_hook_is_not_called_for_refused_calls() -> None:
    told: list[str] = []

    def after(context: Any) -> None:
        told.append(context.tool_call.id)

    loop = World().loop(
        [call("no_such", id="t1"), call("echo", {"valeu": "x"}, id="t2"), *asks("t3", "t4")],
        "done",
        before_tool_call=lambda context: {"block": True, "reason": "no"} if context.tool_call.id == "t3" else None,
        after_tool_call=after,
    )
    await collect(loop.run("hi"))
    assert told == ["t4"]
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "t2", "t3", "t4"]


@pytest.mark.parametrize("which", ["before_tool_call", "after_tool_call"])
async def test_an_exception_of_a_hook_is_an_error_result(which: str) -> None:
    def fail(context: Any) -> None:
        raise LookupError("hook down")

    world = World()
    loop = world.loop(asks("t1"), "done", **{which: fail})
    said = notation(await collect(loop.run("hi")))
    assert world.ran == ([] if which == "before_tool_call" else ["t1"])
    assert "XE(t1!)" in said
    assert said[-1] == "AE(4)"
    assert results(loop)["t1"] == "LookupError: hook down"


@pytest.mark.parametrize("said", ["no", 5, ["block"], True])
@pytest.mark.parametrize("hook", ["before_tool_call", "after_tool_call"])
async def test_a_hook_that_does_not_return_a_dict_is_an_error_result(hook: str, said: Any) -> None:
    loop = World().loop(asks("t1"), "done", **{hook: lambda context: said})
    await collect(loop.run("hi"))
    assert results(loop) == {"t1": f"TypeError: {hook} returned {said!r}; it returns None or a dict."}


@pytest.mark.parametrize(
    ("hook", "said", "keys"),
    [
        ("before_tool_call", {"blocked": True, "reason": "no"}, "block, reason, terminate"),
        ("after_tool_call", {"isError": True}, "content, details, is_error, terminate"),
    ],
)
async def test_a_hook_that_returns_an_unknown_field_is_an_error_result(hook: str, said: Any, keys: str) -> None:
    world = World()
    loop = world.loop(asks("t1"), "done", **{hook: lambda context: said})
    await collect(loop.run("hi"))
    unknown = next(iter(said))
    assert results(loop) == {"t1": f"TypeError: {hook} returned a dict with {unknown!r}; it may have {keys}."}
    assert world.ran == ([] if hook == "before_tool_call" else ["t1"])


async def test_a_hook_that_changes_arguments_changes_the_call_and_not_the_history() -> None:
    def meddle(context: Any) -> None:
        context.args["value"] = "changed"
        context.tool_call.arguments["value"] = "meddled"

    world = World()
    loop = world.loop(asks("t1"), "done", before_tool_call=meddle)
    await collect(loop.run("hi"))
    assert world.ran == ["changed"]
    assert [made.arguments for m in loop.messages for made in m.tool_calls] == [{"value": "t1"}]


@pytest.mark.parametrize("form", [0, 1], ids=["sync", "async"])
async def test_context_hooks_change_only_the_messages_of_the_request(form: int) -> None:
    asked: list[str] = []

    def transform(messages: Any) -> Any:
        asked.append("transform")
        return messages[-2:]

    def convert(messages: Any) -> Any:
        asked.append("convert")
        return [{"role": m.role, "content": f"<{m.content}>"} for m in messages if m.role != "note"]

    loop = SessionLoop(
        ScriptedLLM(["done"]),
        transform_context=sync_and_async(transform)[form],
        convert_to_llm=sync_and_async(convert)[form],
        messages=[{"role": "user", "content": "old"}, {"role": "note", "content": "n"}],
    )
    await collect(loop.run("hi"))
    assert loop.llm.requests[0].messages == [{"role": "user", "content": "<hi>"}]
    assert [m.content for m in loop.messages] == ["old", "n", "hi", "done"]
    assert asked == ["transform", "convert"]


async def test_messages_with_other_roles_stay_in_the_history_and_are_not_sent() -> None:
    loop = SessionLoop(ScriptedLLM(["done"]), messages=[{"role": "note", "content": "n"}])
    await collect(loop.run("hi"))
    assert [m["role"] for m in loop.llm.requests[0].messages] == ["user"]
    assert [m.role for m in loop.messages] == ["note", "user", "assistant"]


@pytest.mark.parametrize("said", [None, "text", 5, [5], {"role": "user", "content": "one"}])
@pytest.mark.parametrize("hook", ["transform_context", "convert_to_llm"])
async def test_a_context_hook_that_returns_no_messages_is_an_error_before_the_request(hook: str, said: Any) -> None:
    loop = World().loop("done", **{hook: lambda messages: said})
    events = await collect(loop.run("hi"))
    assert loop.llm.requests == []
    assert f"{hook} returned" in events[-1].messages[-1].error_message


async def test_an_exception_of_a_context_hook_is_a_model_failure() -> None:
    def fail(messages: Any) -> Any:
        raise LookupError("transform down")

    loop = SessionLoop(ScriptedLLM(["done"]), transform_context=fail)
    events = await collect(loop.run("hi"))
    assert notation(events) == ["AS", "TS", "M(user:hi)", "M(A:error)", "TE[]", "AE(2)"]
    assert "transform down" in events[-2].message.error_message


@pytest.mark.parametrize("form", [0, 1], ids=["sync", "async"])
async def test_should_stop_after_turn_is_called_before_the_queues_are_read(form: int) -> None:
    def stop(messages: Any) -> bool:
        return len(messages) >= 3

    loop = World().loop(asks("t1"), "never", should_stop_after_turn=sync_and_async(stop)[form])
    loop.follow_up("F")
    said = notation(await collect(loop.run("hi")))
    assert said[-2:] == ["TE[t1]", "AE(3)"]
    assert len(loop.llm.requests) == 1
    assert [m.content for m in loop.queue.dequeue_followup()] == ["F"]


async def test_an_exception_of_should_stop_after_turn_ends_the_stream_with_an_error() -> None:
    def fail(messages: Any) -> bool:
        raise LookupError("stop down")

    loop = World().loop("done", should_stop_after_turn=fail)
    events = await collect(loop.run("hi"))
    assert notation(events)[-1].startswith("AE(")
    assert events[-1].messages[-1].error_message == "stop down"
    assert loop._last_stream is not None
    with pytest.raises(RunFailed, match="LookupError: stop down"):
        await loop._last_stream.run


@pytest.mark.parametrize(
    ("option", "wrong"), [("queue", []), ("messages", "be brief"), ("messages", {"role": "user", "content": "hi"})]
)
def test_an_invalid_option_is_refused_in_the_constructor(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} must be a"):
        SessionLoop(ScriptedLLM([]), **{option: wrong})


@pytest.mark.parametrize(
    "hook", ["before_tool_call", "after_tool_call", "transform_context", "convert_to_llm", "should_stop_after_turn"]
)
def test_a_hook_that_is_not_callable_is_refused_in_the_constructor(hook: str) -> None:
    with pytest.raises(UsageError, match=f"{hook} must be a function or None, not {{}}"):
        SessionLoop(ScriptedLLM([]), **{hook: {}})


async def test_no_further_request_is_sent_if_every_result_has_terminate() -> None:
    @tool
    def finish() -> dict[str, Any]:
        return {"content": "bye", "terminate": True}

    loop = SessionLoop(ScriptedLLM([[call("finish", id="t1"), call("finish", id="t2")]]), [finish])
    assert notation(await collect(loop.run("hi")))[-2:] == ["TE[t1,t2]", "AE(4)"]
    assert results(loop) == {"t1": "bye", "t2": "bye"}


async def test_a_hook_can_set_terminate_for_a_result() -> None:
    loop = World().loop(asks("t1"), "never", after_tool_call=lambda context: {"terminate": True})
    await collect(loop.run("hi"))
    assert [message.role for message in loop.messages] == ["user", "assistant", "tool"]


async def test_one_result_without_terminate_continues_the_session() -> None:
    @tool
    def finish(really: bool) -> dict[str, Any]:
        return {"content": "bye", "terminate": really}

    turn = [call("finish", {"really": True}), call("finish", {"really": False})]
    loop = SessionLoop(ScriptedLLM([turn, "done"]), [finish])
    await collect(loop.run("hi"))
    loop.llm.assert_complete()


async def test_terminate_does_not_lose_queued_messages() -> None:
    @tool
    def finish() -> dict[str, Any]:
        return {"content": "bye", "terminate": True}

    loop = SessionLoop(ScriptedLLM([[call("finish", id="t1")], "done"]), [finish])
    loop.follow_up("F")
    await collect(loop.run("hi"))
    assert sent(loop, 1) == ["user:hi", "assistant", "t1", "user:F"]


# -- the end of a run -----------------------------------------------------------------------------------------------


async def test_pi_19_abort_inside_a_sequential_batch_ends_it() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), tool_execution="sequential")

    def abort() -> None:
        loop.steer("S")
        loop.follow_up("F")
        assert loop.abort()

    world.during["t1"] = abort
    said = notation(await collect(loop.run("hi")))
    assert said[:5] == ["AS", "TS", "M(user:hi)", "M(A)", "XS(t1)"]
    assert sorted(said[5:-5]) == sorted(["XE(t1)", "M(result:t1)", "XS(t2)", "XE(t2!)", "M(result:t2!)"])
    assert said.index("M(result:t1)") < said.index("M(result:t2!)")
    assert said[-5:] == ["TE[t1,t2]", "TS", "M(A:aborted)", "TE[]", "AE(5)"]
    assert world.ran == ["t1"]
    assert results(loop) == {"t1": "R:t1", "t2": "Operation aborted"}
    assert [m.tool_call_id for m in loop.messages if m.role == "tool"] == ["t1", "t2"]
    assert [m.content for m in loop.queue.dequeue_steering()] == ["S"]
    assert [m.content for m in loop.queue.dequeue_followup()] == ["F"]


async def test_sequential_calls_have_events_one_by_one_also_after_an_abort() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2", "t3"), tool_execution="sequential")
    world.during["t1"] = loop.abort
    assert notation(await collect(loop.run("hi")))[4:-5] == [
        *("XS(t1)", "XE(t1)", "M(result:t1)", "XS(t2)", "XE(t2!)", "M(result:t2!)"),
        *("XS(t3)", "XE(t3!)", "M(result:t3!)"),
    ]


@pytest.mark.parametrize("tool_execution", ["sequential", "parallel"])
async def test_a_tool_that_aborts_its_own_session_is_not_cancelled(tool_execution: Any) -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), tool_execution=tool_execution)

    async def abort() -> None:
        loop.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)

    world.during["t1"] = abort
    world.during["t2"] = lambda: asyncio.sleep(60)
    async with asyncio.timeout(60):
        await collect(loop.run("hi"))
    assert results(loop) == {"t1": "R:t1", "t2": "Operation aborted"}


async def test_aborting_during_the_answer_keeps_the_text_so_far() -> None:
    loop = World().loop(says("one two three", *asks("t1")))
    said: list[Any] = []
    stream = loop.run("hi")
    async for event in stream:
        said.append(event)
        if event.type == "message_update":
            loop.abort()
    assert notation(said) == ["AS", "TS", "M(user:hi)", "M(A:aborted)", "TE[]", "AE(2)"]
    assert [(m.role, m.content, m.stop_reason) for m in loop.messages] == [
        ("user", "hi", None),
        ("assistant", "one", "aborted"),
    ]
    assert loop.abort() is False


async def test_aborting_closes_the_stream_of_the_model() -> None:
    closed: list[bool] = []

    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            try:
                for chunk in says("one two three"):
                    yield chunk
            finally:
                closed.append(True)

    loop = SessionLoop(Model())
    async for event in loop.run("hi"):
        if event.type == "message_update":
            loop.abort()
    assert closed == [True]


async def test_aborting_without_a_run_has_no_effect() -> None:
    loop = SessionLoop(ScriptedLLM([lambda messages: text(f"to {messages[-1]['content']}")] * 2))
    for prompt in ("hi", "more"):
        assert loop.abort() is False
        assert notation(await collect(loop.run(prompt)))[-1] == "AE(2)"


@pytest.mark.parametrize("tool_execution", ["parallel", "sequential"])
@pytest.mark.parametrize("position", range(1, 13))
async def test_a_session_aborted_at_any_event_ends_everything_that_has_started(
    tool_execution: Any, position: int
) -> None:
    loop = World().loop(asks("t1", "t2"), "done", tool_execution=tool_execution)
    events: list[Any] = []
    async with asyncio.timeout(60):
        async for event in loop.run("hi"):
            if event.type == "agent_start":
                loop.steer("S") if position > 7 else loop.follow_up("F")
            events.append(event)
            if len(events) == position:
                loop.abort()
    kinds = [event.type for event in events]
    assert kinds.count("agent_end") == 1
    assert notation(events)[-1].startswith("AE(")  # no message starts inside another
    assert kinds.count("turn_start") == kinds.count("turn_end")
    assert kinds.count("tool_execution_start") == kinds.count("tool_execution_end")
    assert provider_faults(loop.messages) == []


async def test_no_request_is_sent_if_a_context_hook_aborts() -> None:
    def transform(messages: Any) -> Any:
        loop.abort()
        return messages

    loop = World().loop("never", transform_context=transform)
    assert notation(await collect(loop.run("hi"))) == ["AS", "TS", "M(user:hi)", "M(A:aborted)", "TE[]", "AE(2)"]
    assert loop.llm.requests == []


async def test_agent_end_is_the_last_event_also_if_the_model_aborts() -> None:
    class Model:
        async def stream(self, messages: Any, **options: Any) -> Any:
            loop.abort()
            yield from_the_model

    (from_the_model,) = says("one")
    loop = SessionLoop(Model())
    assert notation(await collect(loop.run("hi"))) == ["AS", "TS", "M(user:hi)", "M(A:aborted)", "TE[]", "AE(2)"]


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_the_prompt_is_kept_if_the_session_is_aborted_before_it_was_added(position: int) -> None:
    loop = World().loop("done")
    stream = loop.run("hi")
    events = [await anext(stream) for _ in range(position)]
    assert loop.abort()
    assert notation([*events, *await collect(stream)]) == ["AS", "TS", "M(user:hi)", "M(A:aborted)", "TE[]", "AE(2)"]
    assert [(m.role, m.content) for m in loop.messages] == [("user", "hi"), ("assistant", "")]


@pytest.mark.parametrize("position", [1, 2])
async def test_a_session_whose_stream_was_closed_continues_with_its_prompt(position: int) -> None:
    loop = World().loop("done")
    stream = loop.run("hi")
    for _ in range(position):
        await anext(stream)
    await stream.aclose()
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]
    assert sent(loop, 0) == ["user:hi"]


async def test_a_failed_model_request_ends_the_stream_with_the_error() -> None:
    loop = SessionLoop(ScriptedLLM([[*text("one two"), ConnectionError("line cut")], "again"]))
    loop.follow_up("F")
    events = await collect(loop.run("hi"))
    assert notation(events) == ["AS", "TS", "M(user:hi)", "M(A:error)", "TE[]", "AE(2)"]
    assert events[-1].messages[-1].content == "one two"
    assert events[-1].messages[-1].error_message == "line cut"
    assert [m.content for m in loop.queue.waiting()["follow_up"]] == ["F"]


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_the_stream_of_a_resumed_run_is_that_of_a_run_without_a_failure(elsewhere: bool) -> None:
    loop = World().loop(asks("t1"), [ConnectionError("line cut")], "done")
    run = loop.run("hi").run
    assert "M(A:error)" in notation(await collect(EventStream(run)))
    if elsewhere:
        run = restore(run.snapshot(), World().loop("done"))
    else:
        assert run.resume()
    whole = await collect(World().loop(asks("t1"), "done").run("hi"))
    assert notation(await collect(EventStream(run))) == notation(whole)


async def test_a_session_aborted_after_a_model_failure_ends_once() -> None:
    loop = SessionLoop(ScriptedLLM([[ConnectionError("line cut")]]))
    stream = loop.run("hi")
    stream.run.watch(lambda event: event.type == "model_error" and loop.abort())
    assert notation(await collect(stream)) == ["AS", "TS", "M(user:hi)", "M(A:error)", "TE[]", "AE(2)"]


async def test_a_session_accepts_another_message_after_a_model_failure() -> None:
    world = World()
    loop = world.loop(asks("t1"), [ConnectionError("line cut")], "again")
    await collect(loop.run("hi"))
    loop.llm = ScriptedLLM(["again"])
    await collect(loop.run("go on"))
    assert sent(loop, 0) == ["user:hi", "assistant", "t1", "user:go on"]
    assert world.ran == ["t1"]


async def test_calls_of_an_interrupted_answer_do_not_run() -> None:
    world = World()
    loop = world.loop([*asks("t1"), ConnectionError("line cut")])
    events = await collect(loop.run("hi"))
    assert world.ran == []
    assert notation(events)[-4:] == ["M(A:error)", "M(result:t1!)", "TE[t1]", "AE(3)"]


@pytest.mark.parametrize("reason", ["error", "aborted"])
async def test_an_answer_with_the_stop_reason_error_ends_the_run_without_its_calls(reason: str) -> None:
    world = World()
    loop = world.loop([*text("so far"), *asks("t1"), {"type": "stop", "reason": reason, "error": "overheated"}])
    loop.follow_up("F")
    events = await collect(loop.run("hi"))
    assert notation(events) == ["AS", "TS", "M(user:hi)", "M(A:error)", "M(result:t1!)", "TE[t1]", "AE(3)"]
    assert events[-1].messages[1].error_message == "overheated"
    assert world.ran == []
    assert [message.content for message in loop.queue.dequeue_followup()] == ["F"]


async def test_continue_repeats_a_failed_model_request() -> None:
    loop = SessionLoop(ScriptedLLM([[ConnectionError("line cut")]]))
    await collect(loop.run("hi"))
    loop.llm = ScriptedLLM(["again"])
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]
    assert [m.content for m in loop.messages] == ["hi", "again"]


async def test_messages_queued_at_a_model_failure_are_sent_in_the_next_run() -> None:
    loop = SessionLoop(ScriptedLLM([[ConnectionError("line cut")]]))
    loop.follow_up("F")
    await collect(loop.run("hi"))
    loop.llm = ScriptedLLM(["again", "then"])
    await collect(loop.continue_())
    assert [m.content for m in loop.messages] == ["hi", "again", "F", "then"]


async def test_messages_queued_at_a_model_failure_are_sent_also_after_an_assignment() -> None:
    loop = SessionLoop(ScriptedLLM([RuntimeError("down")]))
    failed = loop.run("hi")
    await collect(failed)
    loop.llm = ScriptedLLM(["one", "two"])
    loop.steer("S")
    loop.follow_up("F")
    loop.messages = [{"role": "user", "content": "hello"}]
    await collect(loop.continue_())
    assert [m.content for m in loop.messages] == ["hello", "S", "one", "F", "two"]


@pytest.mark.parametrize("first", ["one", RuntimeError("down")])
async def test_reset_deletes_the_conversation_and_the_queued_messages(first: Any) -> None:
    loop = SessionLoop(ScriptedLLM([first]))
    stream = loop.run("hi")
    await collect(stream)
    loop.llm = ScriptedLLM(["two"])
    loop.steer("S")
    loop.follow_up("F")
    loop.reset()
    assert loop.messages == []
    await collect(loop.run("again"))
    assert [m.content for m in loop.messages] == ["again", "two"]


async def test_a_reset_of_a_running_session_is_refused() -> None:
    loop = SessionLoop(ScriptedLLM(["one", "two"]))
    loop.follow_up("F")
    async for event in loop.run("hi"):
        if event.type == "turn_start":
            with pytest.raises(UsageError, match="is running"):
                loop.reset()
    assert [m.content for m in loop.messages] == ["hi", "one", "F", "two"]


async def test_the_run_of_a_session_raises_where_its_stream_has_an_error_event() -> None:
    run = SessionLoop(ScriptedLLM([[ConnectionError("line cut")], "again"])).start("hi")
    with pytest.raises(RunFailed, match="line cut"):
        await run
    assert run.stop_reason is None
    assert run.resume()
    assert await run == "again"


@pytest.mark.parametrize("limit", [0, 1, 2])
async def test_the_number_of_model_requests_never_exceeds_max_turns(limit: int) -> None:
    loop = World().loop(asks("t1"), asks("t2"), asks("t3"), "done", max_turns=limit)
    events = await collect(loop.run("hi"))
    assert len(loop.llm.requests) == limit
    assert notation(events)[-1].startswith("AE(")
    assert loop._last_stream is not None
    assert loop._last_stream.run.stop_reason == "max_turns"
    assert provider_faults(loop.messages) == []


async def test_queued_messages_are_kept_at_max_turns() -> None:
    loop = World().loop("first", "second", max_turns=1)
    loop.follow_up("F")
    await collect(loop.run("hi"))
    assert [m.content for m in loop.queue.waiting()["follow_up"]] == ["F"]


@pytest.mark.parametrize("position", range(12))
async def test_closing_a_stream_at_any_event_ends_every_task(position: int) -> None:
    world = World()
    closed: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            closed.append("slow")

    world.during["t2"] = slow
    loop = world.loop(says("well now", *asks("t1", "t2")))
    stream = loop.run("hi")
    async with asyncio.timeout(60):
        for _ in range(position):
            if (await anext(stream)).type == "tool_execution_end":
                break
        await stream.aclose()
    assert running_tasks() == set()
    assert closed == (["slow"] if "t2" in world.ran else [])
    assert provider_faults(loop.messages) == []
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


# -- the session ----------------------------------------------------------------------------------------------------


async def test_a_session_continues_its_conversation() -> None:
    loop = SessionLoop(ScriptedLLM(["one"]))
    await collect(loop.run("a"))
    loop.llm = ScriptedLLM(["two"])
    events = await collect(loop.run("b"))
    assert [m["content"] for m in loop.llm.requests[0].messages] == ["a", "one", "b"]
    assert [m.content for m in events[-1].messages] == ["b", "two"]  # only the new messages


async def test_a_session_is_idle_after_its_agent_end_event() -> None:
    loop = World().loop("one", "two")
    async for event in loop.run("a"):
        if event.type == "agent_end":
            break
    assert notation(await collect(loop.run("b")))[-1] == "AE(2)"


async def test_a_second_concurrent_run_is_refused() -> None:
    loop = SessionLoop(ScriptedLLM(["one", "two"]))
    stream = loop.run("a")
    await anext(stream)
    for illegal in (lambda: loop.run("b"), loop.continue_):
        with pytest.raises(UsageError, match="is running"):  # not an error about the last message
            illegal()
    with pytest.raises(UsageError):
        loop.messages = []
    assert notation([*await collect(stream)])[-1] == "AE(2)"
    await collect(loop.run("b"))


CUT = {
    "nobody answered": [("c1", "c2"), "user"],
    "one was answered": [("c1", "c2"), "c2", "user"],
    "at the end": [("c1",)],
    "twice": [("c1", "c2"), "c1", ("c3",), "user"],
    "after what came later": [("c1", "c2"), "user", "c2", "c1"],
    "with an id that comes again": [("c1",), "user", ("c1",), "c1"],
}


@pytest.mark.parametrize("cut", CUT.values(), ids=CUT)
async def test_a_truncated_conversation_is_sent_with_a_result_for_every_call(cut: list[Any]) -> None:
    def message(part: Any) -> dict[str, Any]:
        if isinstance(part, tuple):
            calls = [{"id": id, "name": "echo", "arguments": {"value": id}} for id in part]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        if part == "user":
            return {"role": "user", "content": "and?"}
        return {"role": "tool", "tool_call_id": part, "content": "real"}

    loop = World().loop("done", messages=[{"role": "user", "content": "hi"}, *map(message, cut)])
    await collect(loop.run("go on"))
    made = [id for part in cut if isinstance(part, tuple) for id in part]
    assert [entry for entry in sent(loop, 0) if entry in made] == made
    said = [message.content for message in loop.messages if message.role == "tool"]
    assert said.count("real") == sum(isinstance(part, str) and part != "user" for part in cut)
    assert said.count("No result provided") == len(said) - said.count("real")


@pytest.mark.parametrize("results", [["first"], ["first", "second"]])
@pytest.mark.parametrize("at_once", [1, 2])
async def test_each_call_of_a_conversation_is_sent_with_exactly_one_result(results: list[str], at_once: int) -> None:
    call = {"id": "c1", "name": "echo", "arguments": {}}
    answered = [{"role": "tool", "tool_call_id": "c1", "content": words} for words in results]
    calls = {"role": "assistant", "content": "", "tool_calls": [call] * at_once}
    loop = SessionLoop(ScriptedLLM(["done"]), messages=[{"role": "user", "content": "a"}, calls, *answered])
    await collect(loop.run("go on"))
    told = [message["content"] for message in loop.llm.requests[0].messages if message["role"] == "tool"]
    assert told == [*results, "No result provided"][:at_once]


async def test_results_of_an_interrupted_answer_are_not_sent() -> None:
    failed = {"role": "assistant", "content": "", "stop_reason": "error", "tool_calls": [{"id": "c1", "name": "echo"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "Operation aborted", "is_error": True}
    loop = SessionLoop(ScriptedLLM(["done"]), messages=[{"role": "user", "content": "a"}, failed, result])
    await collect(loop.run("go on"))
    assert sent(loop, 0) == ["user:a", "user:go on"]


@pytest.mark.parametrize("id", ["gone", None])
async def test_a_result_without_its_call_is_not_sent(id: str | None) -> None:
    kept = [{"role": "tool", "tool_call_id": id, "content": "R"}, {"role": "assistant", "content": "b"}]
    loop = SessionLoop(ScriptedLLM(["done"]), messages=kept)
    await collect(loop.run("go on"))
    assert sent(loop, 0) == ["assistant", "user:go on"]


async def test_continue_is_refused_if_only_an_interrupted_answer_follows_an_answer() -> None:
    answer = {"role": "assistant", "content": "b"}
    failed = {"role": "assistant", "content": "", "stop_reason": "error", "tool_calls": [{"id": "c1", "name": "echo"}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "Operation aborted", "is_error": True}
    loop = SessionLoop(ScriptedLLM([]), messages=[{"role": "user", "content": "a"}, answer, failed, result])
    with pytest.raises(UsageError, match="Cannot continue from message role: assistant"):
        loop.continue_()


async def test_a_conversation_is_continued_without_its_failed_answer() -> None:
    loop = World().loop([RuntimeError("down")])
    events = await collect(loop.run("hi"))
    loop.llm = ScriptedLLM(["done"])
    loop.messages = events[-1].messages
    assert loop.messages[-1].stop_reason == "error"
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]
    assert sent(loop, 0) == ["user:hi"]


async def test_an_aborted_session_can_run_again_before_its_stream_was_consumed() -> None:
    world = World()
    loop = world.loop(asks("t1"))
    world.during["t1"] = lambda: asyncio.sleep(60)
    stream = loop.run("hi")
    async for event in stream:
        if event.type == "tool_execution_start":
            break
    with pytest.raises(UsageError, match="is running"):
        loop.run("again")
    assert loop.abort()
    loop.llm = ScriptedLLM(["done"])
    await collect(loop.run("again"))
    assert sent(loop, 0) == ["user:hi", "assistant", "t1", "user:again"]
    assert results(loop) == {"t1": "Operation aborted"}
    await stream.aclose()


def test_pi_20_continue_without_a_message_to_answer_is_refused() -> None:
    loop = SessionLoop(ScriptedLLM([]))
    with pytest.raises(UsageError, match="No messages to continue from"):
        loop.continue_()
    loop.messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(UsageError, match="Cannot continue from message role: assistant"):
        loop.continue_()


async def test_pi_20_continue_from_a_result_requests_an_answer() -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "name": "echo", "arguments": {}}]},
        {"role": "tool", "content": "R", "tool_call_id": "t1"},
    ]
    loop = SessionLoop(ScriptedLLM(["done"]), messages=history)
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]


@pytest.mark.parametrize("queue", ["steer", "follow_up"])
async def test_pi_20_continue_from_an_answer_sends_queued_messages_one_at_a_time(queue: str) -> None:
    loop = SessionLoop(
        ScriptedLLM(["one", "two"]), messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    )
    for words in ("Q1", "Q2"):
        getattr(loop, queue)(words)
    events = await collect(loop.continue_())
    assert [m.content for m in events[-1].messages] == ["Q1", "one", "Q2", "two"]
    assert len(loop.llm.requests) == 2
    assert all(r.messages[-1]["role"] == "user" for r in loop.llm.requests)


async def test_pi_20_continue_from_an_answer_sends_all_follow_ups_if_drain_is_all() -> None:
    loop = SessionLoop(ScriptedLLM(["one"]), messages=[{"role": "assistant", "content": "b"}], drain="all")
    for words in ("F1", "F2"):
        loop.follow_up(words)
    said = notation(await collect(loop.continue_()))
    assert said == ["AS", "TS", "M(user:F1)", "M(user:F2)", "M(A)", "TE[]", "AE(3)"]


@pytest.mark.parametrize("how", ["assign", "append", "extend"])
async def test_pi_20_continue_from_assigned_messages_requests_an_answer(how: str) -> None:
    brought: list[Any] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "name": "echo", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "t1", "content": "R"},
    ]
    loop = World().loop("done")
    if how == "assign":
        loop.messages = brought
    elif how == "append":
        for message in brought:
            loop.messages.append(message)
    else:
        loop.messages.extend(brought)
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]
    assert sent(loop, 0) == ["user:hi", "assistant", "t1"]
    assert [message.role for message in loop.messages] == ["user", "assistant", "tool", "assistant"]


async def test_messages_can_be_added_and_removed_after_a_run() -> None:
    loop = SessionLoop(ScriptedLLM([lambda messages: text(f"to {messages[-1]['content']}")], repeat=True))
    await collect(loop.run("hi"))
    more: Any = {"role": "user", "content": "more"}
    loop.messages.append(more)
    await collect(loop.continue_())
    assert sent(loop, 1) == ["user:hi", "assistant", "user:more"]
    loop.messages.clear()
    with pytest.raises(UsageError, match="No messages to continue from"):
        loop.continue_()
    await collect(loop.run("anew"))
    assert sent(loop, 2) == ["user:anew"]


async def test_continue_from_an_answer_sends_steering_first() -> None:
    loop = SessionLoop(ScriptedLLM(["one", "two"]), messages=[{"role": "assistant", "content": "b"}])
    loop.follow_up("F")
    loop.steer("S")
    events = await collect(loop.continue_())
    assert [m.content for m in events[-1].messages] == ["S", "one", "F", "two"]


async def test_continue_after_an_abort_sends_the_results() -> None:
    world = World()
    loop = world.loop(asks("t1"))
    world.during["t1"] = loop.abort
    await collect(loop.run("hi"))
    loop.llm = ScriptedLLM(["done"])
    assert notation(await collect(loop.continue_())) == ["AS", "TS", "M(A)", "TE[]", "AE(1)"]
    assert provider_faults(loop.messages) == []


async def test_a_session_without_messages_ends_with_the_reason_empty() -> None:
    run = SessionLoop(ScriptedLLM([])).start(None)
    assert await run is None
    assert run.stop_reason == "empty"


async def test_several_prompts_are_sent_together() -> None:
    loop = SessionLoop(ScriptedLLM(["done"]))
    said = notation(await collect(loop.run(["a", {"role": "user", "content": "b"}])))
    assert said == ["AS", "TS", "M(user:a)", "M(user:b)", "M(A)", "TE[]", "AE(3)"]


@pytest.mark.parametrize(("prompt", "answer"), [("", "done"), ("ü ☃ ж", "☃"), ("hi", [])])
async def test_pi_01_prompt_and_answer_can_be_any_text(prompt: str, answer: Any) -> None:
    said = notation(await collect(World().loop(answer).run(prompt)))
    assert said == ["AS", "TS", f"M(user:{prompt})", "M(A)", "TE[]", "AE(2)"]


async def test_the_system_prompt_is_sent_and_is_not_a_message() -> None:
    loop = SessionLoop(ScriptedLLM(["done"]), system_prompt="be brief")
    await collect(loop.run("hi"))
    assert loop.llm.requests[0].messages[0] == {"role": "system", "content": "be brief"}
    assert [m.role for m in loop.messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    "wrong", [{"steering_mode": "never"}, {"drain": "some"}, {"tool_execution": "both"}, {"max_turns": -1}]
)
def test_an_unknown_mode_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SessionLoop(ScriptedLLM([]), **wrong)


# -- updates --------------------------------------------------------------------------------------------------------


async def test_the_answer_is_streamed_as_updates() -> None:
    loop = SessionLoop(ScriptedLLM([says("one two three")]))
    events = await collect(loop.run("hi"))
    updates = [event for event in events if event.type == "message_update"]
    assert [event.delta for event in updates] == ["one", " two", " three"]
    assert [event.message.content for event in updates] == ["one", "one two", "one two three"]


async def test_an_answer_starts_empty_and_each_update_appends_to_it() -> None:
    loop = SessionLoop(ScriptedLLM([says("one two three")]))
    shown = ""
    async for event in loop.run("hi"):
        if event.type == "message_start":
            shown = event.message.content
        elif event.type == "message_update":
            shown += event.delta
    assert shown == "one two three"


async def test_an_update_contains_its_kind_of_content() -> None:
    chunks = [
        {"type": "reasoning_delta", "content": "hm"},
        {"type": "text_delta", "content": "so"},
        {"type": "tool_call_delta", "index": 0, "id": "t1", "name": "echo", "arguments": '{"value":'},
        {"type": "tool_call_delta", "index": 0, "arguments": '"v"}'},
    ]
    events = await collect(World().loop(chunks, "done").run("hi"))
    said = [event.assistant_message_event for event in events if event.type == "message_update"]
    assert said[:4] == [
        {"type": "reasoning_delta", "delta": "hm"},
        {"type": "text_delta", "delta": "so"},
        {"type": "tool_call_delta", "delta": '{"value":', "index": 0, "id": "t1", "name": "echo"},
        {"type": "tool_call_delta", "delta": '"v"}', "index": 0, "id": None, "name": None},
    ]
    assert [event.type for event in events if event.assistant_message_event] == ["message_update"] * len(said)


async def test_progress_is_streamed_while_the_call_runs() -> None:
    seen = asyncio.Event()

    @tool
    async def work(progress: Any) -> str:
        progress({"done": 1})
        await seen.wait()  # the consumer must get the event now, not after the end of the call
        return "worked"

    loop = SessionLoop(ScriptedLLM([[call("work", id="t1")], "done"]), [work])
    events = []
    async with asyncio.timeout(60):
        async for event in loop.run("hi"):
            events.append(event)
            if event.type == "tool_execution_update":
                assert event.partial_result == {"done": 1}
                assert event.tool_call_id == "t1"
                seen.set()
    assert notation(events)[4:8] == ["XS(t1)", "XU(t1)", "XE(t1)", "M(result:t1)"]


async def test_progress_after_the_result_is_ignored() -> None:
    late: list[Any] = []

    @tool
    async def work(progress: Any) -> str:
        late.append(progress)
        return "worked"

    def meddle(messages: Any) -> Any:
        late[0]("too late")
        return text("done")

    loop = SessionLoop(ScriptedLLM([[call("work", id="t1")], meddle]), [work])
    assert "XU(t1)" not in notation(await collect(loop.run("hi")))
    assert late


async def test_events_have_the_fields_of_the_design() -> None:
    loop = World().loop(asks("t1"), "done")
    events = {event.type: event for event in await collect(loop.run("hi"))}
    start, end = events["tool_execution_start"], events["tool_execution_end"]
    assert (start.tool_call_id, start.tool_name, start.args) == ("t1", "echo", {"value": "t1"})
    assert (end.tool_call_id, end.tool_name, end.result, end.is_error) == ("t1", "echo", "R:t1", False)
    assert isinstance(events["turn_end"].tool_results, list)


async def test_the_end_of_a_turn_has_its_answer_and_its_results() -> None:
    events = await collect(World().loop(asks("t1", "t2"), "done").run("hi"))
    first, last = (event for event in events if event.type == "turn_end")
    assert [made.id for made in first.message.tool_calls] == ["t1", "t2"]
    assert [result.content for result in first.tool_results] == ["R:t1", "R:t2"]
    assert (last.message.content, last.tool_results) == ("done", [])


async def test_the_start_of_a_call_has_the_arguments_of_the_model() -> None:
    @tool
    def count(to: int) -> int:
        return to

    loop = SessionLoop(ScriptedLLM([[call("count", {"to": "7"}, id="t1")], "done"]), [count])
    (start,) = [event for event in await collect(loop.run("hi")) if event.type == "tool_execution_start"]
    assert start.args == {"to": "7"}


async def test_every_event_is_one_of_the_ten_and_is_json() -> None:
    ten = {
        *("agent_start", "agent_end", "turn_start", "turn_end", "message_start", "message_update", "message_end"),
        *("tool_execution_start", "tool_execution_update", "tool_execution_end"),
    }
    for event in await collect(World().loop(asks("t1"), says("x y")).run("hi")):
        assert event.type in ten
        assert json.loads(event.model_dump_json())["type"] == event.type


async def test_a_stream_returns_its_new_messages() -> None:
    stream = World().loop(asks("t1"), "done").run("hi")
    assert isinstance(stream, EventStream)
    assert [m.role for m in await stream.result()] == ["user", "assistant", "tool", "assistant"]


# -- the queue ------------------------------------------------------------------------------------------------------


def test_a_queue_returns_all_its_messages() -> None:
    queue = MessageQueue()
    queue.add_steering("s1")
    queue.add_steering({"role": "user", "content": "s2"})
    queue.add_followup("f")
    assert [m.content for m in queue.dequeue_steering()] == ["s1", "s2"]
    assert queue.dequeue_steering() == []
    assert [m.content for m in queue.dequeue_followup()] == ["f"]


async def test_a_message_withdrawn_during_a_run_is_not_sent() -> None:
    taken: list[Any] = []

    def change_of_mind(messages: Any) -> Any:
        loop.steer("S")
        taken.extend(loop.queue.dequeue_steering())
        return text("done")

    loop = SessionLoop(ScriptedLLM([change_of_mind]))
    await collect(loop.run("hi"))
    assert [m.content for m in taken] == ["S"]
    assert [m.content for m in loop.messages] == ["hi", "done"]


async def test_messages_can_be_added_to_a_given_queue_before_and_after_a_run() -> None:
    queue = MessageQueue()
    queue.add_followup("F")
    loop = SessionLoop(ScriptedLLM(["one", "two"]), queue=queue)
    await collect(loop.run("hi"))
    assert [m.content for m in loop.messages] == ["hi", "one", "F", "two"]
    queue.add_steering("later")
    assert [m.content for m in queue.dequeue_steering()] == ["later"]


async def test_queuing_a_message_while_the_run_ends_causes_no_deadlock() -> None:
    loop = World().loop("never")
    run = loop.start("hi")
    steering = threading.Thread(target=loop.steer, args=["S"], daemon=True)

    def steer_while_the_run_ends(event: Any) -> None:
        if event.type == "cancel":
            steering.start()
            time.sleep(0.05)  # until it waits for the lock of the run

    run.watch(steer_while_the_run_ends)
    ending = threading.Thread(target=run.cancel, daemon=True)
    for thread in (ending, steering):
        if thread is ending:
            thread.start()
        await asyncio.to_thread(thread.join, 5)
        assert not thread.is_alive()
    assert [m.content for m in loop.queue.dequeue_steering()] == ["S"]


# -- as a run -------------------------------------------------------------------------------------------------------


async def test_the_output_of_a_session_is_its_last_answer() -> None:
    run = World().loop(asks("t1"), "the end").start("hi")
    assert await run == "the end"
    assert run.stop_reason == "completed"
    assert run.phase == "done"
    assert_folds(run)


async def test_a_step_by_turn_ends_after_the_model_and_its_tools() -> None:
    world = World()
    loop = world.loop(asks("t1", "t2"), "the end")
    run = loop.start("hi")
    await run.step("turn")
    assert (world.ran, len(loop.llm.requests), run.stop_reason) == (["t1", "t2"], 1, None)
    await run.step("turn")
    assert len(loop.llm.requests) == 2
    while await run.step("turn"):
        pass
    assert (run.stop_reason, run.output) == ("completed", "the end")
    assert await run.step() == []


async def test_steering_and_follow_ups_of_the_run_are_sent() -> None:
    world = World()
    run = world.loop(asks("t1"), "x", "y").start("hi")
    run.follow_up("F")
    world.during["t1"] = lambda: run.steer("S")
    await run
    assert [m.content for m in run.messages if m.role == "user"] == ["hi", "S", "F"]


async def test_the_phases_of_a_session_are_recorded_in_order() -> None:
    run = World().loop(asks("t1"), "done").start("hi")
    await run
    phases = [event.phase for event in run.events if event.phase is not None]
    assert phases == ["idle", "listening", "thinking", "acting", "thinking", "done"]


async def test_calls_start_in_source_order_independent_of_the_duration_of_their_hooks() -> None:
    second_hook_may_end = asyncio.Event()

    async def before(context: Any) -> None:
        if context.tool_call.id == "t1":
            await asyncio.sleep(0.02)
            second_hook_may_end.set()
        else:
            await second_hook_may_end.wait()

    @tool
    async def echo(value: str = "") -> str:
        return value

    loop = SessionLoop(ScriptedLLM([asks("t1", "t2"), "done"]), [echo], before_tool_call=before)
    said = notation(await collect(loop.run("hi")))
    assert [word for word in said if word.startswith("XS")] == ["XS(t1)", "XS(t2)"]


@pytest.mark.parametrize(
    ("tool_execution", "order"),
    [
        ("parallel", ["XS(t1)", "hook t1", "XS(t2)", "hook t2", "XE(t1)", "XE(t2)"]),
        ("sequential", ["XS(t1)", "hook t1", "XE(t1)", "XS(t2)", "hook t2", "XE(t2)"]),
    ],
)
async def test_the_start_event_of_a_call_precedes_its_hook(tool_execution: Any, order: list[str]) -> None:
    seen: list[str] = []
    loop = World().loop(
        asks("t1", "t2"),
        "done",
        tool_execution=tool_execution,
        before_tool_call=lambda context: seen.append(f"hook {context.tool_call.id}"),
    )
    async for event in loop.run("hi"):
        if event.type in ("tool_execution_start", "tool_execution_end"):
            seen += notation([event])
    assert seen == order


async def test_a_hook_can_wait_for_a_decision_of_the_consumer() -> None:
    decided: dict[str, asyncio.Event] = {"t1": asyncio.Event(), "t2": asyncio.Event()}

    async def before(context: Any) -> dict[str, Any] | None:
        await decided[context.tool_call.id].wait()
        return {"block": True, "reason": "no"} if context.tool_call.id == "t2" else None

    loop = World().loop(asks("t1", "t2"), "done", before_tool_call=before)
    async with asyncio.timeout(60):
        async for event in loop.run("hi"):
            if event.type == "tool_execution_start":
                decided[event.tool_call_id].set()
    assert results(loop) == {"t1": "R:t1", "t2": "no"}


async def test_the_start_event_of_a_call_precedes_its_approval() -> None:
    loop = World().loop(asks("t1"), "done")
    stream = loop.run("hi", approve={"tool": "echo", "decision": "ask"})
    said: list[Any] = []
    async with asyncio.timeout(60):
        async for event in stream:
            said.append(event)
            if event.type == "tool_execution_start":
                stream.run.approve("t1")
    assert notation(said)[4:8] == ["XS(t1)", "XE(t1)", "M(result:t1)", "TE[t1]"]


# -- events and records agree with what happened --------------------------------------------------------------------


async def test_an_aborted_answer_has_no_content_of_the_previous_answer() -> None:
    @tool
    def stop() -> str:
        loop.abort()
        return "stopped"

    loop = SessionLoop(ScriptedLLM([[*text("let me look"), call("stop", id="s")]]), [stop])
    said = [event.message for event in await collect(loop.run("hi")) if event.type == "message_end"]
    assert [(m.content, m.stop_reason) for m in said if m.role == "assistant"] == [
        ("let me look", None),
        ("", "aborted"),
    ]


@pytest.mark.parametrize("force", [True, "true", 1])
async def test_hooks_get_the_converted_arguments_of_the_tool(force: Any) -> None:
    seen: list[Any] = []

    @tool
    def remove(path: str, force: bool) -> str:
        seen.append(force)
        return "removed"

    loop = SessionLoop(
        ScriptedLLM([[call("remove", {"path": "p", "force": force})], "done"]),
        [remove],
        before_tool_call=lambda about: seen.append(about.args["force"]),
        after_tool_call=lambda about: seen.append(about.args["force"]),
    )
    run = loop.start("go")
    await run
    assert seen == [True, True, True]
    assert all(value is True for value in seen)
    assert run.messages[1].tool_calls[0].arguments == {"path": "p", "force": force}


@pytest.mark.parametrize("mode", ["after_batch", "skip_pending", "discard"])
async def test_should_stop_after_turn_gets_the_results_of_the_turn(mode: Any) -> None:
    loop = World().loop(
        asks("a"),
        "not asked for",
        steering_mode=mode,
        should_stop_after_turn=lambda messages: messages[-1].content == "R:a",
    )
    await loop.start("hi")
    assert len(loop.llm.requests) == 1


@pytest.mark.parametrize("mode", ["after_batch", "discard"])
async def test_should_stop_after_turn_gets_the_turn_by_parameter_name(mode: Any) -> None:
    told: list[Any] = []

    def stop(turn: Any) -> None:
        told.append((turn.message.content, [m.content for m in turn.tool_results], [m.role for m in turn.messages]))

    loop = World().loop(asks("a", "b"), "done", steering_mode=mode, should_stop_after_turn=stop)
    await loop.start("hi")
    assert told == [
        ("", ["R:a", "R:b"], ["user", "assistant", "tool", "tool"]),
        ("done", [], ["user", "assistant", "tool", "tool", "assistant"]),
    ]


async def test_the_error_of_a_failed_nested_loop_has_the_same_text_everywhere() -> None:
    inner = SessionLoop(ScriptedLLM([[RuntimeError("inner down")]]), name="helper")
    loop = SessionLoop(ScriptedLLM([[call("helper", {"input": "q"}, id="h")], "done"]), [inner])
    (end,) = [event for event in await collect(loop.run("hi")) if event.type == "agent_end"]
    await collect(loop.run("go on"))
    told = [end.messages[2].content, loop.messages[2].content, loop.llm.requests[1].messages[2]["content"]]
    assert told == ["RuntimeError: inner down"] * 3


async def test_a_new_run_continues_the_conversation_whether_or_not_the_stream_was_consumed() -> None:
    loop = World().loop("one", "two")
    await collect(loop.run("hi"))
    await loop.start("and then?")
    assert sent(loop, 1) == ["user:hi", "assistant", "user:and then?"]


async def test_abort_cancels_the_run_that_was_started_last() -> None:
    world = World()
    world.during["a"] = lambda: loop.abort("enough")
    loop = world.loop(asks("a"), "not asked for")
    run = loop.start("hi")
    with pytest.raises(RunCancelled, match="enough"):
        await run
    assert not loop.abort()


async def test_abort_cancels_a_restored_run() -> None:
    world = World()
    run = world.loop(asks("a"), "not asked for").start("hi")
    await run.step("event")
    world.during["a"] = lambda: loop.abort("enough")
    loop = world.loop(asks("a"), "not asked for")
    with pytest.raises(RunCancelled, match="enough"):
        await restore(run.snapshot(), loop)
    assert not loop.abort()


async def test_changes_of_messages_in_a_hook_are_not_recorded() -> None:
    def redact(messages: list[Any]) -> list[Any]:
        for message in messages:
            message.content[0]["text"] = "redacted"
        return messages

    loop = World().loop("done", transform_context=redact, messages=[])
    said = [{"role": "user", "content": [{"type": "text", "text": "secret"}]}]
    run = loop.start(said)
    await run
    assert loop.llm.requests[0].messages[0]["content"] == [{"type": "text", "text": "redacted"}]
    assert run.messages[0].content == [{"type": "text", "text": "secret"}]


async def test_changes_of_arguments_by_a_consumer_do_not_change_the_call() -> None:
    world = World()
    async for event in world.loop(asks("a"), "done").run("hi"):
        if event.type == "tool_execution_start":
            event.args["value"] = "changed"
    assert world.ran == ["a"]
