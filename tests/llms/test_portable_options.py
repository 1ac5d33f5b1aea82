"""Options that are written in one way for all dialects: choice of a tool, strict tools, thinking, prompt caching."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import SessionLoop, UsageError, tool
from agentnb.llms import Anthropic, OpenAI
from tests.llms.collecting import ask, collect
from tests.llms.peer import HELLO, Peer, body, completion, delta, event, head


@tool
def plain(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


@tool(strict=True, cache=True)
def strict(a: int, b: int = 2) -> int:
    """Add exactly."""
    return a + b


def anthropic(*content: dict[str, Any], reason: str = "end_turn") -> Any:
    return body(200, {"type": "message", "content": list(content), "stop_reason": reason})


ITEM = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "hello"}]}
RESPONSE = [
    head(),
    event({"type": "response.output_item.done", "output_index": 0, "item": ITEM}),
    event({"type": "response.completed", "response": {"status": "completed", "output": [ITEM]}}),
    b"0\r\n\r\n",
]
HELLO_TOO = anthropic({"type": "text", "text": "hello"})
DIALECTS: dict[str, Any] = {
    "chat": (lambda url, **options: OpenAI("m", url, **options), HELLO),
    "responses": (lambda url, **options: OpenAI("m", url, api="responses", **options), RESPONSE),
    "anthropic": (lambda url, **options: Anthropic("m", url, **options), HELLO_TOO),
}
EACH = pytest.mark.parametrize("dialect", DIALECTS)


async def sent(peer: Peer, dialect: str, *, tools: Any = (plain, strict), **options: Any) -> Any:
    make, reply = DIALECTS[dialect]
    peer.replies(reply)
    await ask(make(peer.url, **options), tools=list(tools))
    return peer.requests[-1].body


NAMED = {
    "chat": {"type": "function", "function": {"name": "plain"}},
    "responses": {"type": "function", "name": "plain"},
    "anthropic": {"type": "tool", "name": "plain"},
}
REQUIRED = {"chat": "required", "responses": "required", "anthropic": {"type": "any"}}


@EACH
@pytest.mark.parametrize("choice", ["plain", *NAMED.values()])
@pytest.mark.other_body("a mark that gateways read", fields=["cache_control"])
async def test_a_tool_is_chosen_by_its_name_or_in_the_form_of_any_dialect(
    peer: Peer, dialect: str, choice: Any
) -> None:
    assert (await sent(peer, dialect, tool_choice=choice))["tool_choice"] == NAMED[dialect]


@EACH
@pytest.mark.other_body("a mark that gateways read", fields=["cache_control"])
async def test_a_call_is_required_in_every_dialect(peer: Peer, dialect: str) -> None:
    assert (await sent(peer, dialect, tool_choice="required"))["tool_choice"] == REQUIRED[dialect]
    if dialect != "anthropic":
        assert (await sent(peer, dialect, tool_choice={"type": "any"}))["tool_choice"] == "required"


async def test_a_chosen_tool_is_demanded_until_it_was_called(peer: Peer) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "plain", "arguments": '{"a": 1}'}}
    peer.replies(completion(delta(tool_calls=[call]), delta("tool_calls")), HELLO)
    await SessionLoop(OpenAI("m", peer.url), [plain]).start("Go.", options={"tool_choice": "plain"})
    assert [request.body["tool_choice"] for request in peer.requests] == [NAMED["chat"], "auto"]


@EACH
@pytest.mark.other_body("a mark that gateways read", fields=["cache_control"])
async def test_a_strict_tool_has_a_schema_that_the_server_can_enforce(peer: Peer, dialect: str) -> None:
    first, second = (await sent(peer, dialect))["tools"]
    if dialect == "chat":
        first, second = first["function"], second["function"]
    schemas = [one.get("parameters") or one["input_schema"] for one in (first, second)]
    assert not first.get("strict")
    assert schemas[0]["properties"]["b"]["default"] == 2
    assert second["strict"] is True
    assert schemas[1]["additionalProperties"] is False
    if dialect != "anthropic":
        assert schemas[1]["required"] == ["a", "b"]
        assert "default" not in schemas[1]["properties"]["b"]


@pytest.mark.other_body("a mark that gateways read", fields=["cache_control"])
async def test_a_tool_is_marked_for_the_cache_where_the_server_has_marks(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await sent(peer, "anthropic"))["tools"][1]["cache_control"] == {"type": "ephemeral"}
    assert "cache_control" in (await sent(peer, "chat"))["tools"][1]
    monkeypatch.setattr("agentnb.llms.openai.OPENAI_URL", peer.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    assert "cache_control" not in (await sent(peer, "chat"))["tools"][1]


@pytest.mark.parametrize("name", ["strict", "cache"])
def test_an_invalid_mark_of_a_tool_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"@tool\({name}=\) must be True or False"):
        tool(**{name: "yes"})(lambda a: a)  # type: ignore[call-overload]


async def test_a_budget_of_thinking(peer: Peer) -> None:
    body = await sent(peer, "anthropic", thinking=4000)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    assert body["max_tokens"] == 8192
    assert (await sent(peer, "anthropic", thinking=9000))["max_tokens"] == 8192 + 9000
    assert (await sent(peer, "anthropic", thinking=False))["thinking"] == {"type": "disabled"}
    body = await sent(peer, "anthropic", reasoning_effort="low")
    assert (body["output_config"], "reasoning_effort" in body) == ({"effort": "low"}, False)
    assert (await sent(peer, "responses", reasoning_effort="low"))["reasoning"] == {"effort": "low"}
    for dialect in ("chat", "responses"):
        with pytest.raises(UsageError, match=r"thinking=4000 is not an option of .*127\.0\.0\.1.*reasoning_effort"):
            await sent(peer, dialect, thinking=4000)


# Prompt caching of a conversation.


def marks(body: Any) -> list[tuple[int, int]]:
    return [
        (number, at)
        for number, turn in enumerate(body["messages"])
        for at, block in enumerate(turn["content"])
        if "cache_control" in block
    ]


USE = {"type": "tool_use", "id": "t", "name": "plain", "input": {"a": 1}}


@pytest.fixture
def own(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Anthropic:
    """A client for which the peer is Anthropic's own server."""
    monkeypatch.setattr("agentnb.llms.anthropic.ANTHROPIC_URL", peer.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-a-real-key")
    return Anthropic("m", peer.url)


async def test_a_conversation_is_marked_from_its_second_request_on(peer: Peer, own: Anthropic) -> None:
    peer.replies(*[anthropic(USE, reason="tool_use")] * 2, HELLO_TOO)
    await SessionLoop(own, [plain]).start("Go.")
    assert [marks(request.body) for request in peer.requests] == [[], [(0, 0), (2, 0)], [(2, 0), (4, 0)]]


async def test_what_the_cache_has_saved_is_in_the_usage(peer: Peer, own: Anthropic) -> None:
    usage = {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90}
    peer.replies(
        body(200, {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "x", "usage": usage})
    )
    run = SessionLoop(own).start("Go.")
    await run
    assert run.state.usage["cache_read_tokens"] == 900
    assert run.state.usage["cache_write_tokens"] == 90


@pytest.mark.parametrize("case", ["other server", "off", "changed history", "own mark"])
async def test_a_conversation_is_not_marked(peer: Peer, own: Anthropic, case: str) -> None:
    peer.replies(*[anthropic(USE, reason="tool_use")] * 2, HELLO_TOO)
    hooks: dict[str, Any] = {}
    given: Any = "Go."
    llm: Any = own
    if case == "other server":
        llm = Anthropic("m", peer.url.replace("127.0.0.1", "localhost"))
    elif case == "off":
        llm = own.with_options(caching=False)
    elif case == "changed history":
        hooks["convert_to_llm"] = lambda messages: [{**message, "seen": len(messages)} for message in messages]
    else:
        given = {"role": "user", "content": [{"type": "text", "text": "Go.", "cache_control": {"type": "ephemeral"}}]}
    await SessionLoop(llm, [plain], **hooks).start(given)
    expected = [(0, 0)] if case == "own mark" else []
    assert [marks(request.body) for request in peer.requests] == [expected] * 3


async def test_any_server_can_be_sent_marks(peer: Peer) -> None:
    llm = Anthropic("m", peer.url, caching=True)
    peer.replies(HELLO_TOO, HELLO_TOO)
    history: list[Any] = [{"role": "user", "content": "a"}]
    await collect(llm.stream(history))
    history += [{"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    await collect(llm.stream(history))
    assert [marks(request.body) for request in peer.requests] == [[], [(0, 0), (2, 0)]]
