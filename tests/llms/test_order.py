"""An answer is sent back in its original order: thinking, text, calls, and data that only its server can read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentnb import SessionLoop, Snapshot, restore, tool
from agentnb.llms import Anthropic, Message, OpenAI
from agentnb.testing import Recorded, ScriptedLLM
from tests.llms.collecting import collect
from tests.llms.peer import HELLO as OPENAI_HELLO
from tests.llms.peer import Peer, Reply, completion, delta, event
from tests.llms.test_anthropic import HELLO, block, end, fragment, message, said, start

CITATION = {
    "type": "char_location",
    "cited_text": "green",
    "document_index": 0,
    "document_title": "D",
    "start_char_index": 0,
    "end_char_index": 5,
}
SEARCH = {"type": "server_tool_use", "id": "srv1", "name": "web_search", "input": {"query": "moss"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srv1",
    "content": [{"type": "web_search_result", "url": "https://e.org", "title": "E", "encrypted_content": "ENC"}],
}


def thinking(text: str, signature: str) -> list[dict[str, str]]:
    signed = [{"type": "signature_delta", "signature": signature}] if signature else []
    return [{"type": "thinking_delta", "thinking": text}, *signed]


def interleaved(reason: str = "tool_use", *, signed: bool = True) -> Reply:
    """Thinking, a search at the provider, a cited text between two plain ones, thinking, a call."""
    sign = ("SIG1", "SIG2") if signed else ("", "")
    return message(
        start(),
        block(0, *thinking("one", sign[0]), type="thinking", thinking="", signature=""),
        block(1, fragment('{"query": '), fragment('"moss"}'), **{**SEARCH, "input": {}}),
        block(2, **FOUND),
        block(3, said("Moss is "), type="text", text=""),
        block(4, said("green"), {"type": "citations_delta", "citation": CITATION}, type="text", text="", citations=[]),
        block(5, said(". Now:"), type="text", text=""),
        block(6, *thinking("two", sign[1]), type="thinking", thinking="", signature=""),
        block(7, fragment('{"n": 1}'), type="tool_use", id="t1", name="count", input={}),
        end(reason),
    )


IN_ORDER = [
    {"type": "thinking", "thinking": "one", "signature": "SIG1"},
    SEARCH,
    FOUND,
    {"type": "text", "text": "Moss is "},
    {"type": "text", "text": "green", "citations": [CITATION]},
    {"type": "text", "text": ". Now:"},
    {"type": "thinking", "thinking": "two", "signature": "SIG2"},
    {"type": "tool_use", "id": "t1", "name": "count", "input": {"n": 1}},
]


@tool
def count(n: int) -> int:
    """Count."""
    return n


async def recorded_run(peer: Peer) -> Any:
    peer.replies(interleaved(), HELLO)
    run = SessionLoop(Anthropic("m", peer.url), [count]).start("go")
    assert await run == "hello"
    return run


async def test_an_answer_is_sent_back_in_its_original_order(peer: Peer) -> None:
    await recorded_run(peer)
    assert peer.requests[1].body["messages"][1] == {"role": "assistant", "content": IN_ORDER}


async def test_unsigned_thinking_is_sent_back_at_its_position(peer: Peer) -> None:
    peer.replies(interleaved(signed=False), HELLO)
    await SessionLoop(Anthropic("m", peer.url), [count]).start("go")
    kinds = [part["type"] for part in peer.requests[1].body["messages"][1]["content"]]
    assert kinds == [part["type"] for part in IN_ORDER]


async def test_the_order_is_kept_when_a_run_is_saved_and_restored(peer: Peer, tmp_path: Any) -> None:
    peer.replies(interleaved(), HELLO)
    run = SessionLoop(Anthropic("m", peer.url), [count]).start("go")
    await run.step("turn")
    saved = run.snapshot().save(tmp_path / "run.agentnb.json")
    await restore(saved, SessionLoop(Anthropic("m", peer.url), [count]))
    assert peer.requests[-1].body["messages"][1]["content"] == IN_ORDER


async def test_opaque_data_is_sent_to_its_own_server_only(peer: Peer) -> None:
    run = await recorded_run(peer)
    other = Peer()
    other.replies(HELLO, OPENAI_HELLO)
    history = [dict(one) for one in run.state.messages]
    await collect(Anthropic("m", other.url).stream(history))
    await collect(OpenAI("m", other.url).stream(history))
    other.close()
    assert [part["type"] for part in other.requests[0].body["messages"][1]["content"]] == ["text"] * 3 + ["tool_use"]
    for request in other.requests:
        assert "ENC" not in json.dumps(request.body)
        assert "SIG" not in json.dumps(request.body)
        assert "cited_text" not in json.dumps(request.body)
    assert other.requests[1].body["messages"][1]["content"] == "Moss is green. Now:"


async def test_a_recording_answers_with_the_same_message(peer: Peer) -> None:
    run = await recorded_run(peer)
    recorded = Recorded(run, strict=True)
    again = SessionLoop(recorded, recorded.tools).start("go")
    assert await again == "hello"
    assert again.state.messages == run.state.messages


async def test_a_message_with_a_changed_text_is_sent_in_the_usual_order(peer: Peer) -> None:
    run = await recorded_run(peer)
    history = [dict(one) for one in run.state.messages]
    history[1]["content"] = "Changed."
    peer.replies(HELLO)
    await collect(Anthropic("m", peer.url).stream(history))
    kinds = [part["type"] for part in peer.requests[-1].body["messages"][1]["content"]]
    assert kinds == ["thinking", "thinking", "text", "tool_use"]


async def test_an_answer_in_the_usual_order_has_no_recorded_order() -> None:
    chunks = [
        {"type": "reasoning_delta", "content": "Hm."},
        {"type": "text_delta", "content": "Hi"},
        {"type": "tool_call", "id": "c", "name": "count", "arguments": {"n": 1}},
    ]
    run = SessionLoop(ScriptedLLM([chunks, "done"]), [count]).start("go")
    await run
    assert "order" not in run.state.messages[1]


@pytest.mark.parametrize(
    ("chunks", "order"),
    [
        (["tool_call", "text_delta"], ["call", "text"]),
        (["text_delta", "reasoning_delta", "text_delta"], ["text", "reasoning", "text"]),
        (["reasoning_delta", "tool_call", "reasoning_delta", "tool_call"], ["reasoning", "call", "reasoning", "call"]),
    ],
)
async def test_chunks_of_any_model_keep_their_order(chunks: list[str], order: list[str]) -> None:
    made = [
        {
            "type": kind,
            "content": "x",
            **({"id": f"c{n}", "name": "count", "arguments": {"n": 1}} if "call" in kind else {}),
        }
        for n, kind in enumerate(chunks)
    ]
    run = SessionLoop(ScriptedLLM([made, "done"]), [count]).start("go")
    await run
    assert [part["type"] for part in run.state.messages[1]["order"]] == order


async def test_an_old_recording_without_an_order_is_sent_as_before(peer: Peer) -> None:
    old: list[Message] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Hi", "reasoning": [{"text": "Hm.", "signature": "S"}]},
        {"role": "user", "content": "on"},
    ]
    peer.replies(HELLO)
    await collect(Anthropic("m", peer.url).stream(old))
    assert [part["type"] for part in peer.requests[0].body["messages"][1]["content"]] == ["thinking", "text"]


async def test_requested_logprobs_are_recorded_and_not_sent_back(peer: Peer) -> None:
    def piece(token: str) -> bytes:
        logprobs = {"content": [{"token": token, "logprob": -0.5, "top_logprobs": []}]}
        return event({"choices": [{"index": 0, "delta": {"content": token}, "logprobs": logprobs}]})

    for options in ({"logprobs": True}, {}):
        peer.replies(completion(piece("He"), piece("llo"), delta("stop")), OPENAI_HELLO)
        run = SessionLoop(OpenAI("m", peer.url, **options)).start("go")
        await run
        kept = (run.state.messages[-1].details or {}).get("logprobs", {}).get("content", [])
        assert [one["token"] for one in kept] == (["He", "llo"] if options else [])
        reloaded = Snapshot.from_json(run.snapshot().to_json())
        assert reloaded.events[-2].message.details == run.state.messages[-1].details


async def test_a_recorded_model_serves_a_changed_answer_completely(peer: Peer) -> None:
    run = await recorded_run(peer)
    events = []
    for one in run.events:
        if one.type == "model_end" and one.message.get("order"):
            one = one.model_copy(update={"message": one.message.model_copy(update={"content": "Quite another text."})})
        events.append(one)
    recorded = Recorded(Snapshot.of(events))
    again = SessionLoop(recorded, recorded.tools).start("go")
    await again
    assert again.state.messages[1].content == "Quite another text."
