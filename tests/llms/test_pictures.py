"""Pictures in results and messages, in the form of either provider, are sent to both providers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb import SessionLoop, tool
from agentnb.llms import Anthropic, OpenAI
from agentnb.testing import ScriptedLLM, call
from tests.llms.collecting import collect
from tests.llms.peer import HELLO, Peer, body

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
PART = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
LINK_PART = {"type": "image_url", "image_url": {"url": "https://e.org/a.png"}}
ANSWERED = body(200, {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"})


def asked(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "name": "shot", "arguments": {}} for id in ids],
    }


def result(id: str, *blocks: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "name": "shot", "content": list(blocks), **fields}


async def sent(peer: Peer, llm: Any, *messages: Any) -> list[dict[str, Any]]:
    peer.replies(ANSWERED if isinstance(llm, Anthropic) else HELLO)
    await collect(llm.stream([{"role": "user", "content": "go"}, *messages]))
    told: list[dict[str, Any]] = peer.requests[-1].body["messages"]
    return told


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (BLOCK, PART),
        (PART, PART),
        (LINK, LINK_PART),
        ({"type": "image", "data": PNG, "mimeType": "image/png"}, PART),
        ({"type": "input_image", "image_url": PART["image_url"]["url"]}, PART),
    ],
)
async def test_pictures_in_results_are_sent_in_a_user_message_after_the_last_result(
    peer: Peer, given: Any, part: Any
) -> None:
    history = [asked("c1", "c2"), result("c1", {"type": "text", "text": "a shot"}, given), result("c2", "plain")]
    told = await sent(peer, OpenAI("m", peer.url), *history, {"role": "user", "content": "on"})
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "tool", "user", "user"]
    assert "a shot" in told[2]["content"]
    assert "image 1 of 1" in told[2]["content"]
    assert told[4]["content"][-1] == part
    assert "shot" in told[4]["content"][0]["text"]


async def test_pictures_of_several_results_are_sent_in_one_message(peer: Peer) -> None:
    told = await sent(peer, OpenAI("m", peer.url), asked("c1", "c2"), result("c1", BLOCK), result("c2", LINK))
    assert [one["role"] for one in told] == ["user", "assistant", "tool", "tool", "user"]
    assert [part for part in told[-1]["content"] if part["type"] == "image_url"] == [PART, LINK_PART]


@pytest.mark.parametrize("kind", [OpenAI, Anthropic])
async def test_a_client_without_images_sends_a_placeholder_for_each_picture(peer: Peer, kind: Any) -> None:
    history = [{"role": "user", "content": [PART]}, asked("c1"), result("c1", BLOCK)]
    told = json.dumps(await sent(peer, kind("m", peer.url, images=False), *history))
    assert told.count("[image: image/png, ") == 2
    assert PNG not in told


@pytest.mark.parametrize(("given", "block"), [(BLOCK, BLOCK), (PART, BLOCK), (LINK, LINK), (LINK_PART, LINK)])
async def test_pictures_are_sent_to_anthropic_in_its_form(peer: Peer, given: Any, block: Any) -> None:
    history = [{"role": "user", "content": [given]}, asked("c1"), result("c1", given)]
    told = await sent(peer, Anthropic("m", peer.url), *history)
    assert block in told[0]["content"]
    assert told[-1]["content"][0]["content"] == [block]


async def test_a_user_picture_in_the_form_of_anthropic_is_sent_to_openai(peer: Peer) -> None:
    told = await sent(peer, OpenAI("m", peer.url), {"role": "user", "content": [{"type": "text", "text": "?"}, BLOCK]})
    assert told[-1]["content"] == [{"type": "text", "text": "?"}, PART]


async def test_a_picture_returned_by_a_tool_is_sent_to_the_model(peer: Peer) -> None:
    @tool
    def shot() -> list[dict[str, Any]]:
        """Take a picture."""
        return [{"type": "text", "text": "here"}, BLOCK]

    scripted = ScriptedLLM([[call("shot", id="c1")], "done"])
    run = SessionLoop(scripted, [shot]).start("go")
    await run
    told = await sent(peer, OpenAI("m", peer.url), *[dict(one) for one in run.state.messages[1:3]])
    assert told[-1]["content"][-1] == PART
