"""The scripted model, as somebody who writes a test with it finds it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from agentnb import Agent, RunFailed, SessionLoop, UsageError, restore, tool
from agentnb.testing import ScriptedLLM, call, delay


@tool
def double(n: int) -> int:
    return 2 * n


async def test_one_chunk_alone_is_a_turn() -> None:
    llm = ScriptedLLM([call("double", {"n": 21}), {"type": "text_delta", "content": "42"}])
    run = Agent(llm, [double]).start("go")
    assert await run == "42"
    assert [message.content for message in run.messages] == ["go", "", "42", "42"]
    llm.assert_complete()


@pytest.mark.parametrize("turns", ["42", call("double", {"n": 21}), ConnectionError("down")])
def test_a_turn_that_is_not_in_a_list_is_refused(turns: Any) -> None:
    with pytest.raises(UsageError, match="The turns must be a list, also a single turn"):
        ScriptedLLM(turns)


@pytest.mark.parametrize(
    "turn", [ConnectionError("down"), ConnectionError, [delay(0), ConnectionError("down")], [ConnectionError]]
)
async def test_a_turn_fails_where_its_error_stands(turn: Any) -> None:
    with pytest.raises(ConnectionError):
        async for _ in ScriptedLLM([turn]).stream([]):
            pass


# -- a script is counted run by run ----------------------------------------------------------------------------------


def looking_up() -> tuple[ScriptedLLM, SessionLoop]:
    llm = ScriptedLLM([call("double", {"n": 1}, id="c1"), call("double", {"n": 2}, id="c2"), "done"])
    return llm, SessionLoop(llm, [double])


async def test_each_run_begins_at_the_first_turn() -> None:
    llm = ScriptedLLM(["one", "two"])
    loop = SessionLoop(llm)
    assert [await loop.start("a"), await loop.start("b")] == ["one", "one"]
    with pytest.raises(AssertionError, match="1 of 2 scripted turns"):
        llm.assert_complete()


async def test_runs_side_by_side_have_the_script_each_for_itself() -> None:
    llm, loop = looking_up()
    first, second = loop.start("a"), loop.start("b")
    for _ in range(2):
        await first.step("turn")
        await second.step("turn")
    assert [await first, await second] == ["done", "done"]
    llm.assert_complete()


async def test_a_run_that_failed_goes_on_at_the_turn_behind_the_failure() -> None:
    run = SessionLoop(ScriptedLLM([ConnectionError("down"), "up"])).start("hi")
    with pytest.raises(RunFailed):
        await run
    run.resume()
    assert await run == "up"


async def test_a_fork_goes_on_at_the_turn_behind_those_it_has_inherited() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run
    asked = [event.seq for event in run.events if event.type == "model_start"]
    answered = [event.seq for event in run.events if event.type == "model_end"]
    for seq, turns in [(0, 3), (asked[0], 3), (answered[0], 2), (asked[1], 2), (answered[1], 1), (asked[2], 1)]:
        fork = run.fork(at=seq)
        assert await fork == "done"
        assert sum(event.type == "model_end" for event in fork.events[seq + 1 :]) == turns


async def test_a_fork_of_a_fork_goes_on_where_it_departs() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    fork = run.fork().fork()
    assert await fork == "done"
    assert [message.tool_calls[0].id for message in fork.messages if message.tool_calls] == ["c1", "c2"]


async def test_a_fork_with_another_model_begins_the_script_of_that_one() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    assert await run.fork(loop=SessionLoop(ScriptedLLM(["mine", "never"]), [double])) == "mine"


async def test_a_restored_run_that_the_model_has_not_answered_begins_at_the_first_turn() -> None:
    _, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    again = restore(run.snapshot(), SessionLoop(ScriptedLLM(["mine", "never"]), [double]))
    assert await again == "mine"


async def test_a_run_restored_with_the_model_that_has_answered_it_goes_on_where_it_was() -> None:
    llm, loop = looking_up()
    run = loop.start("go")
    await run.step("turn")
    first = run.snapshot()
    await run
    again = restore(first, loop)
    assert await again == "done"
    assert [message.tool_calls[0].id for message in again.messages if message.tool_calls] == ["c1", "c2"]
    llm.assert_complete()


async def test_the_loops_inside_a_run_share_the_script_with_it() -> None:
    llm = ScriptedLLM([call("inner", {"input": "hi"}, id="c1"), "from inside", "from outside"])
    run = SessionLoop(llm, [SessionLoop(llm, name="inner")]).start("go")
    assert await run == "from outside"
    assert [message.content for message in run.messages if message.role == "tool"] == ["from inside"]


async def test_a_run_that_a_tool_starts_shares_the_script_with_the_run_around_it() -> None:
    llm = ScriptedLLM([call("research", id="c1"), "first", "second", "done"])

    @tool
    async def research() -> list[str]:
        inside = SessionLoop(llm)
        return [await inside.start("one"), await inside.start("two")]

    run = SessionLoop(llm, [research]).start("go")
    assert await run == "done"
    assert run.messages[2].content == '["first","second"]'


async def test_a_copy_of_a_model_begins_at_the_first_turn() -> None:
    llm = ScriptedLLM(["one", "two"])
    await SessionLoop(llm).start("a")
    assert await SessionLoop(pickle.loads(pickle.dumps(llm))).start("a") == "one"
