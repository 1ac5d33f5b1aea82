"""The scripted model, as somebody who writes a test with it finds it."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import Agent, UsageError, tool
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
    with pytest.raises(UsageError, match="Turns come as a list, also a single one"):
        ScriptedLLM(turns)


@pytest.mark.parametrize(
    "turn", [ConnectionError("down"), ConnectionError, [delay(0), ConnectionError("down")], [ConnectionError]]
)
async def test_a_turn_fails_where_its_error_stands(turn: Any) -> None:
    with pytest.raises(ConnectionError):
        async for _ in ScriptedLLM([turn]).stream([]):
            pass
