"""A model that pauses its answer is asked to continue: one answer, one turn, several requests."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from agentnb import Agent, ExecutionLoop, LimitReached, LoopAgent, SessionLoop, restore, tool
from agentnb.errors import RunFailed
from agentnb.llms import Anthropic
from agentnb.run.model_requests import MAX_PAUSES
from agentnb.testing import Recorded, ScriptedLLM, call
from tests.llms.peer import Peer, Reply, body
from tests.llms.peer import said as refused
from tests.llms.test_anthropic import HELLO, block, end, message, said, start
from tests.llms.test_order import FOUND, SEARCH


def half(text: str = "I look it up. ", reason: str = "pause_turn") -> Reply:
    opened = [block(0, said(text), type="text", text=""), block(1, **SEARCH)]
    return message(start(input_tokens=5, output_tokens=1), *opened, end(reason, output_tokens=3))


def rest() -> Reply:
    answer = block(1, said("Moss is green."), type="text", text="")
    return message(start(input_tokens=9, output_tokens=1), block(0, **FOUND), answer, end(output_tokens=4))


PAUSED = [{"type": "text_delta", "content": "Half. "}, {"type": "stop", "reason": "pause"}]


async def test_a_paused_answer_is_continued_in_the_same_turn(peer: Peer) -> None:
    peer.replies(half(), rest(), HELLO)
    run = SessionLoop(Anthropic("m", peer.url), max_turns=1).start("go")
    assert await run == "I look it up. Moss is green."
    said_so_far = {"role": "assistant", "content": [{"type": "text", "text": "I look it up. "}, SEARCH]}
    assert peer.requests[1].body["messages"][-1] == said_so_far
    starts = [event for event in run.events if event.type == "model_start"]
    assert [(one.turn, one.attempt, one.continues) for one in starts] == [(1, 1, False), (1, 2, True)]
    (answered,) = [event for event in run.events if event.type == "model_end"]
    assert answered.stop_reason == "stop"
    assert answered.usage == {"input_tokens": 14, "output_tokens": 7}


async def test_all_parts_of_a_paused_answer_are_sent_in_the_next_turn(peer: Peer) -> None:
    peer.replies(half(), rest(), HELLO)
    run = SessionLoop(Anthropic("m", peer.url)).start("go")
    await run.step("turn")
    run.follow_up("And?")
    await run
    blocks = peer.requests[2].body["messages"][1]["content"]
    assert [part["type"] for part in blocks] == ["text", "server_tool_use", "web_search_tool_result", "text"]


@pytest.mark.parametrize("reason", ["pause", "pause_turn"])
@pytest.mark.parametrize("pace", ["await", "pull", "step"])
@pytest.mark.parametrize(
    "design", [SessionLoop, Agent, lambda llm: LoopAgent("outer", [SessionLoop(llm, name="inner")], max_iterations=1)]
)
async def test_a_pause_does_not_end_a_loop_of_any_design(design: Any, pace: str, reason: str) -> None:
    llm = ScriptedLLM([[PAUSED[0], {"type": "stop", "reason": reason}], "Whole."])
    run = design(llm).start("go")
    if pace == "pull":
        async for _ in run:
            pass
    while pace == "step" and not run.state.over:
        await run.step("event")
    assert await run == "Half. Whole."
    assert len(llm.requests) == 2
    assert llm.requests[1].messages[-1] == {"role": "assistant", "content": "Half. "}


async def test_a_solution_paused_in_the_middle_of_its_text_is_completed() -> None:
    begun = [{"type": "text_delta", "content": '{"output": '}, PAUSED[1]]
    assert await ExecutionLoop(ScriptedLLM([begun, '"done"}'])).start("go") == "done"


@tool
def look() -> str:
    """Look."""
    return "seen"


async def test_the_calls_of_a_paused_answer_run_before_the_next_request() -> None:
    llm = ScriptedLLM([[call("look", id="c"), PAUSED[1]], "done"])
    run = SessionLoop(llm, [look]).start("go")
    assert await run == "done"
    assert [one.stop_reason for one in run.events if one.type == "model_end"] == ["tool_calls", "stop"]
    assert llm.requests[1].messages[-1]["role"] == "tool"


async def test_a_model_that_pauses_too_often_fails_the_request(peer: Peer) -> None:
    llm = ScriptedLLM([PAUSED], repeat=True)
    with pytest.raises(RunFailed, match="paused its answer"):
        await SessionLoop(llm).start("go")
    assert len(llm.requests) == MAX_PAUSES + 1


async def test_after_too_many_pauses_the_run_fails_and_can_be_resumed(peer: Peer) -> None:
    peer.replies(*[half()] * (MAX_PAUSES + 1), HELLO)
    run = SessionLoop(Anthropic("m", peer.url)).start("go")
    with pytest.raises(RunFailed, match=f"paused its answer {MAX_PAUSES + 1} times"):
        await run
    assert len(peer.requests) == MAX_PAUSES + 1
    (failed,) = [event for event in run.events if event.type == "model_error"]
    assert failed.error.type == "ModelProtocolError"
    run.resume()
    assert await run == "hello"


@pytest.mark.parametrize("pace", ["await", "pull", "step"])
@pytest.mark.parametrize(("limits", "requests"), [({"tokens": 20}, 3), ({"tokens": 8}, 1), ({"turns": 1}, 4)])
async def test_limits_are_checked_between_the_requests_of_one_answer(
    peer: Peer, limits: dict[str, float], requests: int, pace: str
) -> None:
    peer.replies(half(), half(), half(), rest())
    run = SessionLoop(Anthropic("m", peer.url)).start("go", limits=limits)
    with suppress(LimitReached):
        if pace == "await":
            await run
        elif pace == "pull":
            async for _ in run:
                pass
        while not run.state.over:
            await run.step("event")
    assert len(peer.requests) == requests
    assert run.stop_reason == ("completed" if requests == 4 else "limit")


async def test_a_cost_limit_is_checked_between_the_requests_of_one_answer() -> None:
    costly = [{"type": "usage", "usage": {"input_tokens": 1, "cost": 0.4}}, *PAUSED]
    llm = ScriptedLLM([costly], repeat=True)
    outer = LoopAgent("outer", [SessionLoop(llm, name="inner")], max_iterations=1)
    run = outer.start("go", limits={"cost": 1})
    with pytest.raises(LimitReached, match="limit of 1 cost"):
        await run
    assert len(llm.requests) == 3


async def test_after_a_failure_in_a_paused_answer_the_resumed_run_requests_the_whole_answer(
    peer: Peer,
) -> None:
    peer.replies(half(), body(400, refused("Too busy.")), half(), rest())
    run = SessionLoop(Anthropic("m", peer.url)).start("go")
    with pytest.raises(RunFailed, match="Too busy"):
        await run
    run.resume()
    assert await run == "I look it up. Moss is green."
    assert [one["role"] for one in peer.requests[2].body["messages"]] == ["user"]


async def test_a_run_restored_at_a_pause_requests_the_whole_answer() -> None:
    run = SessionLoop(ScriptedLLM([PAUSED, "Whole."])).start("go")
    while not any(event.type == "model_start" and event.continues for event in run.events):
        await run.step("event")
    again = ScriptedLLM(["All of it."])
    assert await restore(run.snapshot(), SessionLoop(again)) == "All of it."
    assert again.requests[0].messages[-1]["role"] == "user"


async def test_the_second_request_of_an_answer_is_a_separate_step() -> None:
    llm = ScriptedLLM([PAUSED, "Whole."])
    run = SessionLoop(llm).start("go")
    while not any(event.type == "model_start" and event.continues for event in run.events):
        await run.step("event")
    assert len(llm.requests) == 1
    assert await run == "Half. Whole."
    assert len(llm.requests) == 2


async def test_a_recorded_model_serves_a_paused_answer_completely(peer: Peer) -> None:
    peer.replies(half(), rest())
    run = SessionLoop(Anthropic("m", peer.url)).start("go")
    await run
    again = SessionLoop(Recorded(run, strict=True)).start("go")
    assert await again == "I look it up. Moss is green."
    assert json.dumps(again.state.messages[-1].plain) == json.dumps(run.state.messages[-1].plain)
