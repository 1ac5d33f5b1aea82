"""The scripted model, as authors of tests use it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from agentnb import Agent, RunFailed, SessionLoop, UsageError, restore, tool
from agentnb.testing import ScriptedLLM, call, delay


@tool
def double(n: int) -> int:
    return 2 * n


async def test_a_single_chunk_can_be_a_turn() -> None:
    llm = ScriptedLLM([call("double", {"n": 21}), {"type": "text_delta", "content": "42"}])
    run = Agent(llm, [double]).start("go")
    assert await run == "42"
    assert [message.content for message in run.messages] == ["go", "", "42", "42"]
    llm.assert_complete()


@pytest.mark.parametrize("turns", ["42", call("double", {"n": 21}), ConnectionError("down")])
def test_turns_that_are_not_a_list_are_refused(turns: Any) -> None:
    with pytest.raises(UsageError, match="The turns must be a list, also for a single turn"):
        ScriptedLLM(turns)


@pytest.mark.parametrize(
    "turn", [ConnectionError("down"), ConnectionError, [delay(0), ConnectionError("down")], [ConnectionError]]
)
async def test_a_turn_raises_at_the_position_of_its_error(turn: Any) -> None:
    with pytest.raises(ConnectionError):
        async for _ in ScriptedLLM([turn]).stream([]):
            pass


# -- each run has its own position in the script ----------------------------------------------------------------------


def looking_up() -> tuple[ScriptedLLM, SessionLoop]:
    llm = ScriptedLLM([call("double", {"n": 1}, id="c1"), call("double", {"n": 2}, id="c2"), "done"])
    return llm, SessionLoop(llm, [double])


async def test_each_run_starts_with_the_first_turn() -> None:
    llm = ScriptedLLM(["one", "two"])
    loop = SessionLoop(llm)
    assert [await loop.start("a"), await loop.start("b")] == ["one", "one"]
    with pytest.raises(AssertionError, match="1 of 2 scripted turns"):
        llm.assert_complete()


async def test_concurrent_runs_have_independent_scripts() -> None:
    llm, loop = looking_up()
    first, second = loop.start("a"), loop.start("b")
    for _ in range(2):
        await first.step("turn")
        await second.step("turn")
    assert [await first, await second] == ["done", "done"]
    llm.assert_complete()


async def test_a_resumed_run_continues_after_the_failed_turn() -> None:
    run = SessionLoop(ScriptedLLM([ConnectionError("down"), "up"])).start("hi")
    with pytest.raises(RunFailed):
        await run
    run.resume()
    assert await run == "up"


async def test_a_fork_continues_after_the_inherited_turns() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run
    asked = [event.seq for event in run.events if event.type == "model_start"]
    answered = [event.seq for event in run.events if event.type == "model_end"]
    for seq, turns in [(0, 3), (asked[0], 3), (answered[0], 2), (asked[1], 2), (answered[1], 1), (asked[2], 1)]:
        fork = run.fork(at=seq)
        assert await fork == "done"
        assert sum(event.type == "model_end" for event in fork.events[seq + 1 :]) == turns


async def test_a_fork_of_a_fork_continues_at_its_position() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    fork = run.fork().fork()
    assert await fork == "done"
    assert [message.tool_calls[0].id for message in fork.messages if message.tool_calls] == ["c1", "c2"]


async def test_a_fork_with_another_model_starts_with_its_first_turn() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    assert await run.fork(loop=SessionLoop(ScriptedLLM(["mine", "never"]), [double])) == "mine"


async def test_a_run_restored_with_another_model_starts_with_its_first_turn() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    again = restore(run.snapshot(), SessionLoop(ScriptedLLM(["mine", "never"]), [double]))
    assert await again == "mine"


async def test_a_run_restored_with_the_same_model_continues_its_script() -> None:
    llm, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    first = run.snapshot()
    await run
    again = restore(first, loop)
    assert await again == "done"
    assert [message.tool_calls[0].id for message in again.messages if message.tool_calls] == ["c1", "c2"]
    llm.assert_complete()


async def test_nested_loops_share_the_script_of_their_run() -> None:
    llm = ScriptedLLM([call("inner", {"input": "hi"}, id="c1"), "from inside", "from outside"])
    run = SessionLoop(llm, [SessionLoop(llm, name="inner")]).start("go")
    assert await run == "from outside"
    assert [message.content for message in run.messages if message.role == "tool"] == ["from inside"]


async def test_a_run_started_by_a_tool_shares_the_script_of_the_outer_run() -> None:
    llm = ScriptedLLM([call("research", id="c1"), "first", "second", "done"])

    @tool
    async def research() -> list[str]:
        inside = SessionLoop(llm)
        return [await inside.start("one"), await inside.start("two")]

    run = SessionLoop(llm, [research]).start("go")
    assert await run == "done"
    assert run.messages[2].content == '["first","second"]'


async def test_a_copy_of_a_model_starts_with_the_first_turn() -> None:
    llm = ScriptedLLM(["one", "two"])
    await SessionLoop(llm).start("a")
    assert await SessionLoop(pickle.loads(pickle.dumps(llm))).start("a") == "one"
