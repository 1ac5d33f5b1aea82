"""A conversation that was interrupted, as the input of a run: every call is sent with exactly one result."""

from typing import Any

import pytest

from agentnb import Agent, LoopAgent, SessionLoop, tool
from agentnb.testing import ScriptedLLM, call

INTERRUPTED = {
    "before a message": [("c1",), "user"],
    "at the end": [("c1",)],
    "one of two": [("c1", "c2"), "c2", "user"],
    "before an answer": [("c1",), (), "user"],
    "a result later": [("c1",), "user", "c1", "user"],
    "a result twice": [("c1",), "c1", "c1", "user"],
    "a result without a call": ["c9", "user"],
    "an id that comes again": [("c1",), "c1", ("c1",), "user"],
}

DESIGNS = {
    "SessionLoop": lambda llm: SessionLoop(llm),
    "Agent": lambda llm: Agent(llm),
    "LoopAgent": lambda llm: LoopAgent(name="L", max_iterations=1, sub_agents=[SessionLoop(llm, name="A")]),
}


def message(part: Any) -> dict[str, Any]:
    if part == "user":
        return {"role": "user", "content": "go on"}
    if isinstance(part, str):
        return {"role": "tool", "tool_call_id": part, "content": "real"}
    calls = [{"id": id, "type": "function", "function": {"name": "add", "arguments": "{}"}} for id in part]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def called_and_answered(messages: Any) -> tuple[list[str], list[str]]:
    called = [call["id"] for message in messages for call in message.get("tool_calls") or []]
    return called, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("parts", INTERRUPTED.values(), ids=INTERRUPTED)
async def test_each_call_of_the_input_is_sent_with_one_result(parts: list[Any], design: str) -> None:
    llm = ScriptedLLM(["ok"])
    await DESIGNS[design](llm).start([{"role": "user", "content": "hi"}, *map(message, parts)])
    called, answered = called_and_answered(llm.requests[0].messages)
    assert answered == called


async def test_the_messages_of_a_run_that_waits_are_sent_with_a_result_for_its_question() -> None:
    @tool(approve=True)
    def ask() -> None:
        """Ask."""

    waiting = SessionLoop(ScriptedLLM([call("ask", {}), "done"]), [ask]).start("q")
    async for event in waiting:
        if event.type == "approval_request":
            break
    llm = ScriptedLLM(["ok"])
    await SessionLoop(llm, [ask]).start([*waiting.state.messages, "What do you wait for?"])
    called, answered = called_and_answered(llm.requests[0].messages)
    assert called
    assert answered == called
