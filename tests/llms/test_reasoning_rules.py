"""Runs of ten turns with reasoning and calls, against servers that refuse lost, reordered or altered reasoning.

Three dialects: the items of the Responses API, Anthropic's interleaved thinking, Gemini's signatures. At every event a
run is restored, forked, steered, and cancelled and restored; each time it continues to its end without a refusal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentnb import Agent, SessionLoop, Snapshot, restore, tool
from agentnb.core.errors import ModelRequestError
from agentnb.llms import Anthropic, OpenAI
from tests.llms import responses_peer as responses
from tests.llms.collecting import collect, text, until_failure
from tests.llms.enforcing_peer import AnthropicPeer, EnforcingPeer, GeminiPeer

pytestmark = pytest.mark.other_body("signatures of Gemini", fields=["extra_content"])
TURNS = 10


@tool(idempotent=True)
def look(n: int) -> str:
    """Look at a number."""
    return f"seen {n}"


# The answers: each turn has another order of reasoning, text and calls.


def of_responses(turn: int) -> list[Any]:
    think, say, call = responses.reasoning, responses.message, responses.called
    if turn >= TURNS - 1:
        return [think("At the end."), say("Done.", phase="final_answer")]
    return [
        [think("First|then"), call("look", n=turn)],
        [think(), say("Two at once.", phase="commentary"), call("look", n=turn), call("look", n=-turn)],
        [think(), dict(responses.SEARCH), think("Found."), say("Moss is "), say("green."), call("look", n=1)],
        [think(), call("look", n=turn), think(), call("look", n=2)],
        [say("No thought."), call("look", n=turn)],
    ][turn % 5]


def of_anthropic(turn: int) -> list[Any]:
    def think(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": ""}

    def say(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    def call(n: int) -> dict[str, Any]:
        return {"type": "tool_use", "id": "", "name": "look", "input": {"n": n}}

    if turn >= TURNS - 1:
        return [think("At the end."), say("Done.")]
    return [
        [think("Grüezi\n"), call(turn)],
        [think("One."), say("Two at once."), call(turn), call(-turn)],
        [think("One."), say("Moss is"), think("Two."), say(" green."), call(1)],
        [{"type": "redacted_thinking", "data": ""}, think(""), call(turn), think("Two."), call(2)],
        [say("No thought."), call(turn)],
    ][turn % 5]


def of_gemini(turn: int) -> list[Any]:
    if turn >= TURNS - 1:
        return [{"thought": "At the end.", "content": "Done."}]
    return [
        [{"thought": "First.\n", "calls": [("look", {"n": turn})]}],
        [{"content": "Two at once.", "calls": [("look", {"n": turn}), ("look", {"n": -turn})]}],
        [{"thought": "One.", "content": "Moss is green.", "calls": [("look", {"n": 1})]}],
        [{"calls": [("look", {"n": 1}), ("look", {"n": 1})]}],
        [{"content": "No thought.", "calls": [("look", {"n": turn})]}],
    ][turn % 5]


Dialect = tuple[Callable[..., EnforcingPeer], Callable[[int], list[Any]], Callable[[str], Any]]
DIALECTS: dict[str, Dialect] = {
    "responses": (
        responses.ResponsesPeer,
        of_responses,
        lambda url: OpenAI("gpt-x", f"{url}/v1", api="responses", max_retries=0),
    ),
    "anthropic": (AnthropicPeer, of_anthropic, lambda url: Anthropic("claude-x", url, max_retries=0, caching=True)),
    "gemini": (GeminiPeer, of_gemini, lambda url: OpenAI("gemini-3-x", url, max_retries=0)),
}


@pytest.fixture(params=DIALECTS)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[EnforcingPeer, Any]]:
    """The server of a dialect, and a client of it."""
    make, turns, client = DIALECTS[request.param]
    peer = make(turns)
    yield peer, client(peer.url)
    peer.close()


Served = tuple[EnforcingPeer, Any]
DESIGNS = pytest.mark.parametrize("design", [SessionLoop, Agent])


async def run_to_end(run: Any, change: str, at: int) -> Any:
    """Drive a run to its end, with a change at an event. Return the run that has ended."""
    async for event in run:
        if event.seq == at and change == "steer":
            run.steer("Faster.")
        elif event.seq == at:
            run.cancel()
    return run


@DESIGNS
async def test_ten_turns_with_reasoning_and_calls(design: Any, served: Served) -> None:
    peer, llm = served
    run = design(llm, [look], system_prompt="Be brief.").start("Count.", limits={"turns": 20})
    result = await run
    assert (peer.refused, len(peer.requests)) == ([], TURNS)
    assert "Done." in str(result)


@pytest.mark.sampled(1000)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_answers_that_come_byte_by_byte_are_sent_back_whole(dialect: str) -> None:
    make, turns, client = DIALECTS[dialect]
    peer = make(turns, chopped=True)
    try:
        assert "Done." in await SessionLoop(client(peer.url), [look]).start("Count.", limits={"turns": 20})
        assert peer.refused == []
    finally:
        peer.close()


@DESIGNS
@pytest.mark.parametrize("change", ["restore", "fork", "steer", "cancel"])
async def test_a_run_continues_after_a_change_at_every_event(
    design: Any, change: str, served: Served, some_of: Callable[[range], range], pytestconfig: pytest.Config
) -> None:
    peer, llm = served
    loop = design(llm, [look])
    first = loop.start("Count.")
    expected = await first
    positions = some_of(range(len(first.events) - 1))
    for at in positions if pytestconfig.option.all_cases else positions[::5]:
        if change == "restore":
            run = restore(Snapshot.from_json(Snapshot.of(first.events[: at + 1]).to_json()), loop)
        elif change == "fork":
            run = first.fork(at)
        else:
            run = await run_to_end(loop.start("Count."), change, at)
            if change == "cancel":
                run = restore(Snapshot.from_json(run.snapshot().to_json()), loop)
        result = await run
        assert (peer.refused, run.stop_reason) == ([], "completed"), at
        assert change == "steer" or result == expected, at


async def test_the_servers_refuse_what_they_are_meant_to_refuse(served: Served) -> None:
    peer, llm = served
    run = SessionLoop(llm, [look]).start("Count.")
    await run
    history = json.loads(json.dumps([dict(one) for one in run.state.messages]))

    def answers(messages: list[Any]) -> list[Any]:
        return [one for one in messages if one["role"] == "assistant"]

    def lose(messages: list[Any]) -> None:
        del answers(messages)[0]["reasoning"]
        answers(messages)[0].pop("order", None)

    def alter(messages: list[Any]) -> None:
        text = json.dumps(answers(messages)[0]["reasoning"])
        for mark in ("SIG-", "ENC-"):
            text = text.replace(mark, f"{mark}9")
        answers(messages)[0]["reasoning"] = json.loads(text)

    def reorder(messages: list[Any]) -> None:
        one, other = answers(messages)[:2]
        one["reasoning"], other["reasoning"] = other["reasoning"], one["reasoning"]

    def forget_a_result(messages: list[Any]) -> None:
        messages.remove(next(one for one in messages if one["role"] == "tool"))

    def rewrite(messages: list[Any]) -> None:
        messages[0]["content"] = "Other."

    for change in (lose, alter, reorder, forget_a_result, rewrite):
        changed = json.loads(json.dumps(history))
        change(changed)
        _, error = await until_failure(llm.stream([*changed, {"role": "user", "content": "On."}]))
        assert type(error) is ModelRequestError, change
        assert error.status == 400
        assert peer.refused.pop() in str(error)
    # The same history, unchanged and without its end, is accepted.
    chunks = await collect(llm.stream(history[:-1]))
    assert text(chunks) == "Done."
