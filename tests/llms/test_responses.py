"""OpenAI's Responses API: requests and answers, against a server that enforces the rules of the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentnb import Agent, SessionLoop, tool
from agentnb.core.errors import (
    ContentFiltered,
    ModelOverloaded,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailable,
    UsageError,
)
from agentnb.llms import OpenAI
from agentnb.testing import Recorded
from tests.llms.collecting import ask, calls, collect, only, stop, text, until_failure
from tests.llms.peer import END, HELLO, Peer, Reply, body, head, part
from tests.llms.responses_peer import (
    SEARCH,
    Item,
    ResponsesPeer,
    called,
    custom_called,
    message,
    reasoning,
    refusal,
    sent_events,
    stream,
)

KEY = "sk-not-a-real-key"


@tool(idempotent=True)
def look(n: int) -> str:
    """Look at a number."""
    return f"seen {n}"


def turns(last: int) -> Callable[[int], list[Item]]:
    """Return the answers of a long conversation: each turn has another order of reasoning, text, searches and calls."""

    def of(turn: int) -> list[Item]:
        if turn >= last:
            return [reasoning("At the end."), message("Done.", phase="final_answer")]
        return [
            [reasoning("First|then"), called("look", n=turn)],
            [reasoning(), message("Two at once.", phase="commentary"), called("look", n=turn), called("look", n=-turn)],
            [
                reasoning(),
                dict(SEARCH),
                reasoning("Found it."),
                message("Moss is "),
                message("green."),
                called("look", n=1),
            ],
            [reasoning(), called("look", n=turn), reasoning(), called("look", n=2)],
            [message("No thought."), called("look", n=turn)],
        ][turn % 5]

    return of


@pytest.fixture
def serve() -> Iterator[Callable[..., ResponsesPeer]]:
    made: list[ResponsesPeer] = []

    def start(turns: Any, **options: Any) -> ResponsesPeer:
        made.append(ResponsesPeer(turns, **options))
        return made[-1]

    yield start
    for peer in made:
        peer.close()


def client(peer: Peer, **options: Any) -> OpenAI:
    return OpenAI("gpt-x", f"{peer.url}/v1", api="responses", **options)


def answer(*items: Item, status: str = "completed", **fields: Any) -> Reply:
    """An answer of these items, from a server without rules."""
    numbered = [{"id": f"i{position}", **item} for position, item in enumerate(items)]
    response = {"id": "r1", "object": "response", "model": "gpt-x-2026", "status": status, **fields}
    return [head(), part(stream(sent_events(numbered, response))), END]


def events(*given: Item) -> Reply:
    return [head(), part(stream(iter(given))), END]


# Whole runs.


@pytest.mark.parametrize("design", [SessionLoop, Agent])
async def test_ten_turns_with_reasoning_and_tools(design: Any, serve: Any) -> None:
    peer = serve(turns(9))
    run = design(client(peer), [look], system_prompt="Be brief.").start("Count.", limits={"turns": 20})
    result = await run
    assert peer.refused == []
    assert len(peer.requests) == 10
    assert "Done." in str(result)
    assert peer.requests[0].path == "/v1/responses"
    ends = [event for event in run.events if event.type == "model_end"]
    assert [event.stop_reason for event in ends] == ["tool_calls"] * 9 + ["stop"]
    assert ends[0].usage == {"input_tokens": 90, "output_tokens": 20, "cache_read_tokens": 40, "reasoning_tokens": 12}
    assert (ends[0].model, ends[0].response_id, ends[0].service_tier) == ("gpt-x-2026", "resp_0", "default")
    assert ends[0].message.reasoning[0]["text"] == "First\n\nthen"


async def test_an_answer_that_comes_byte_by_byte(serve: Any) -> None:
    items = [reasoning("Grüezi 世界"), message("Über 👋"), called("look", n=1)]
    whole, chopped = serve([items, [message("é")]]), serve([items, [message("é")]], chopped=True)
    runs = [SessionLoop(client(peer), [look]).start("Go.") for peer in (whole, chopped)]
    for run in runs:
        assert await run == "é"
    assert [dict(one) for one in runs[0].state.messages] == [
        json.loads(json.dumps(dict(one)).replace(chopped.url[7:], whole.url[7:])) for one in runs[1].state.messages
    ]
    assert chopped.refused == []


async def test_the_server_of_these_tests_refuses_changed_reasoning(serve: Any) -> None:
    peer = serve(turns(2))
    run = SessionLoop(client(peer), [look]).start("Count.")
    await run
    history = json.loads(json.dumps([dict(one) for one in run.state.messages]))

    async def refused(change: Callable[[list[Any]], object]) -> str:
        changed = json.loads(json.dumps(history))
        change(changed)
        _, error = await until_failure(client(peer).stream([*changed, {"role": "user", "content": "On."}]))
        assert type(error) is ModelRequestError
        return str(error)

    assert "lost, altered" in await refused(lambda all: all[1]["reasoning"][0]["provider"]["item"].update(summary=[]))
    assert "without the items before" in await refused(lambda all: (all[1]["reasoning"].pop(), all[1]["order"].pop(0)))
    assert "No tool output" in await refused(lambda all: all.__delitem__(slice(2, None)))
    assert "is not what was answered" in await refused(lambda all: all[0].update(content="Other."))
    chunks = await collect(client(peer).stream([*history, {"role": "user", "content": "On."}]))
    assert text(chunks) == "Done."


async def test_a_recording_answers_with_the_same_messages(serve: Any) -> None:
    run = SessionLoop(client(serve(turns(5))), [look]).start("Count.")
    await run
    recorded = Recorded(run, strict=True)
    again = SessionLoop(recorded, recorded.tools).start("Count.")
    await again
    assert again.state.messages == run.state.messages


async def test_items_are_sent_to_their_own_server_only(serve: Any, peer: Peer) -> None:
    run = SessionLoop(client(serve(turns(3))), [look]).start("Count.")
    await run
    history = [dict(one) for one in run.state.messages]
    peer.replies(answer(message("x")), HELLO)
    await collect(client(peer).stream(history))
    await collect(OpenAI("m", peer.url).stream(history))
    there, chat = (request.body for request in peer.requests)
    assert {item.get("type") for item in there["input"]} == {None, "function_call", "function_call_output"}
    for sent in (there, chat):
        assert not any(secret in json.dumps(sent) for secret in ("ENC", "web_search", "phase", '"id": "me'))


# Answers.


async def test_text_reasoning_and_calls_arrive_in_pieces(peer: Peer) -> None:
    peer.replies(answer(reasoning("Let me|see."), message("Two calls:"), called("look", n=1), called("now")))
    chunks = await ask(client(peer), tools=[look])
    assert text(chunks, "reasoning_delta") == "Let me\n\nsee."
    assert text(chunks) == "Two calls:"
    found = calls(chunks)
    assert [(call["name"], json.loads(call["arguments"])) for call in found] == [("look", {"n": 1}), ("now", {})]
    assert stop(chunks) == "tool_calls"
    assert len([chunk for chunk in chunks if chunk["type"] == "text_delta"]) > 1


async def test_a_refusal_is_the_text_and_the_reason(serve: Any) -> None:
    peer = serve([[reasoning("Hm."), refusal("I cannot.")], [message("Fine.")]])
    run = SessionLoop(client(peer)).start("Do it.")
    await run
    assert (run.stop_reason, run.state.messages[-1].content) == ("refusal", "I cannot.")
    await SessionLoop(client(peer)).start([*run.state.messages, {"role": "user", "content": "Something else, then."}])
    assert peer.refused == []


@pytest.mark.other_body("the server sends this field, which the types lack", fields=["status"])
async def test_the_text_of_a_custom_tool_is_an_argument(serve: Any) -> None:
    peer = serve([[reasoning(), custom_called("query", 'SELECT "é"\nFROM t')], [message("One row.")]])
    seen: list[str] = []

    @tool
    def query(sql: str) -> str:
        """Run a query."""
        seen.append(sql)
        return "1"

    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    custom = {"type": "custom", "name": "query", "format": grammar}
    assert await SessionLoop(client(peer, tools=[custom]), [query, look]).start("Rows?") == "One row."
    assert seen == ['SELECT "é"\nFROM t']
    assert peer.refused == []
    assert [one["type"] for one in peer.requests[0].body["tools"]] == ["custom", "function"]
    kinds = [one.get("type") for one in peer.requests[1].body["input"]]
    assert kinds == [None, "reasoning", "custom_tool_call", "custom_tool_call_output"]


@pytest.mark.parametrize(
    ("reason", "ours"), [("max_output_tokens", "length"), ("content_filter", "content_filter"), ("odd", "odd")]
)
async def test_an_incomplete_answer_has_its_reason(peer: Peer, reason: str, ours: str) -> None:
    peer.replies(answer(message("It was a"), status="incomplete", incomplete_details={"reason": reason}))
    chunks = await ask(client(peer))
    assert (text(chunks), stop(chunks)) == ("It was a", ours)


async def test_the_status_of_an_answer_counts_more_than_the_name_of_its_last_event(peer: Peer) -> None:
    end = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": []}
    said = {"type": "response.output_text.delta", "output_index": 0, "delta": "It was a"}
    peer.replies(events(said, {"type": "response.completed", "response": end}))
    chunks = await ask(client(peer))
    assert (text(chunks), stop(chunks)) == ("It was a", "length")


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down."}, ModelOverloaded),
        ({"type": "error", "error": {"code": "insufficient_quota", "message": "Pay."}}, ModelRequestError),
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh."}}},
            ModelUnavailable,
        ),
        ({"type": "response.failed", "response": {"status": "failed", "error": None}}, ModelUnavailable),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_prompt", "message": "usage policy"}}},
            ContentFiltered,
        ),
        ({"type": "response.in_progress", "response": {}}, ModelProtocolError),
    ],
)
async def test_an_error_in_the_stream_is_raised(peer: Peer, last: Item, expected: type[Exception]) -> None:
    peer.replies(events({"type": "response.created", "response": {"id": "r"}}, last))
    _, error = await until_failure(client(peer, max_retries=0).stream([{"role": "user", "content": "x"}]))
    assert type(error) is expected


async def test_a_whole_answer_is_read_as_its_items(peer: Peer) -> None:
    items = [reasoning("Hm."), message("Hi."), called("look", n=1) | {"call_id": "c"}]
    peer.replies(body(200, {"object": "response", "status": "completed", "error": None, "output": items}))
    chunks = await ask(client(peer))
    assert (text(chunks, "reasoning_delta"), text(chunks)) == ("Hm.", "Hi.")
    assert calls(chunks) == [{"id": "c", "name": "look", "arguments": '{"n": 1}'}]


@pytest.mark.parametrize("streamed", [False, True])
async def test_reasoning_items_with_the_same_id_are_all_kept(peer: Peer, streamed: bool) -> None:
    items = [reasoning(), dict(SEARCH) | {"id": "ws"}, reasoning(), message("Hi.") | {"id": "m"}]
    for number in (0, 2):
        items[number] |= {"id": "rs", "encrypted_content": f"ENC{number}"}
    whole = body(200, {"object": "response", "status": "completed", "error": None, "output": items})
    peer.replies(answer(*items) if streamed else whole, answer(message("x")))
    loop = SessionLoop(client(peer))
    for given in ("Search.", "On."):
        async for _ in loop.run(given):
            pass
    sent = [item.get("encrypted_content") for item in peer.requests[1].body["input"]]
    assert sent == [None, "ENC0", None, "ENC2", None, None]


async def test_a_server_that_sends_only_the_ends_of_items(peer: Peer) -> None:
    whole = stream(sent_events([{"id": "m", **message("Hi.")}], {"status": "completed"})).split(b"\n\n")
    kept = [one for one in whole if b"delta" not in one and b"part" not in one]
    peer.replies([head(), part(b"\n\n".join(kept)), END])
    chunks = await ask(client(peer))
    assert (text(chunks), stop(chunks)) == ("Hi.", "stop")


async def test_a_text_whose_part_has_another_number_at_its_end_comes_once(peer: Peer) -> None:
    opened = {"type": "message", "id": "m", "role": "assistant", "content": []}
    at = {"output_index": 0, "item_id": "m"}
    peer.replies(
        events(
            {"type": "response.output_item.added", "output_index": 0, "item": opened},
            {"type": "response.output_text.delta", **at, "content_index": 1, "delta": "One."},
            {"type": "response.output_item.done", "output_index": 0, "item": {"id": "m", **message("One.")}},
            {"type": "response.completed", "response": {"status": "completed", "output": []}},
        )
    )
    assert text(await ask(client(peer))) == "One."


async def test_citations_come_back_with_their_text(serve: Any) -> None:
    cited = message("Green.")
    cited["content"][0]["annotations"] = [
        {"type": "url_citation", "url": "https://e.org", "title": "E"} | {"start_index": 0, "end_index": 5}
    ]
    peer = serve([[dict(SEARCH), cited, called("look", n=1)], [message("Yes.")]])
    await SessionLoop(client(peer), [look]).start("Moss?")
    assert peer.refused == []


async def test_an_empty_list_of_logprobs_comes_back_where_the_server_sends_one(serve: Any) -> None:
    two = message("") | {"content": [*message("One. ")["content"], *message("Two.")["content"]]}
    peer = serve([[two], [message("ok")]])
    run = SessionLoop(client(peer)).start("Go.")
    assert await run == "One. Two."
    await SessionLoop(client(peer)).start([*run.state.messages, {"role": "user", "content": "On."}])
    assert peer.refused == []
    assert peer.requests[1].body["input"][1]["content"] == two["content"]


async def test_blocks_that_end_in_another_order_keep_their_position(peer: Peer) -> None:
    first, second = ({"id": f"s{n}", **SEARCH} for n in (0, 1))
    whole = first | {"action": SEARCH["action"] | {"sources": [{"type": "url", "url": "https://e.org"}]}}
    peer.replies(
        events(
            {"type": "response.output_item.added", "output_index": 0, "item": first},
            {"type": "response.output_item.added", "output_index": 1, "item": second},
            {"type": "response.output_item.done", "output_index": 1, "item": second},
            {"type": "response.output_item.done", "output_index": 0, "item": whole},
            {"type": "response.output_text.delta", "output_index": 2, "delta": "Found."},
            {"type": "response.completed", "response": {"output": []}},
        ),
        answer(message("x")),
    )
    run = SessionLoop(client(peer)).start("Search.")
    await run
    await SessionLoop(client(peer)).start([*run.state.messages, {"role": "user", "content": "On."}])
    assert peer.requests[1].body["input"][1:3] == [whole, second]


@pytest.mark.parametrize("kind", ["computer_call", "local_shell_call", "mcp_approval_request"])
async def test_an_item_that_only_the_client_could_answer_is_an_error(peer: Peer, kind: str) -> None:
    peer.replies(answer({"type": kind}))
    with pytest.raises(UsageError, match=rf"{kind}.*agentnb does not.*tools="):
        await ask(client(peer))


# Requests.


async def test_a_request_stores_nothing_and_asks_for_encrypted_reasoning(peer: Peer) -> None:
    peer.replies(answer(message("x")), answer(message("x")), answer(message("x")))
    await ask(client(peer))
    await ask(client(peer, include=["web_search_call.action.sources"]))
    await ask(client(peer, store=True, include=None))
    sent = [request.body for request in peer.requests]
    assert [one["store"] for one in sent] == [False, False, True]
    assert sent[0]["include"] == ["reasoning.encrypted_content"]
    assert sent[1]["include"] == ["web_search_call.action.sources", "reasoning.encrypted_content"]
    assert "include" not in sent[2]
    assert "stream_options" not in sent[0]


async def test_options_of_chat_completions_are_sent_under_the_names_of_this_api(peer: Peer) -> None:
    peer.replies(answer(message("x")))
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    options = {"max_tokens": 50, "reasoning_effort": "low", "verbosity": "low", "response_format": form}
    choice = {"type": "function", "function": {"name": "look"}}
    await ask(client(peer, **options), tools=[look], tool_choice=choice, temperature=0)
    sent = peer.requests[0].body
    assert not options.keys() & sent.keys()
    assert (sent["max_output_tokens"], sent["reasoning"], sent["temperature"]) == (50, {"effort": "low"}, 0)
    assert sent["text"]["verbosity"] == "low"
    assert sent["text"]["format"] == {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    assert sent["tool_choice"] == {"type": "function", "name": "look"}
    assert sent["tools"][0]["strict"] is False


async def test_pictures_of_a_user_and_of_a_result(peer: Peer) -> None:
    peer.replies(answer(message("x")))
    shown = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    history = [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, shown]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "look", "arguments": {"n": 1}}]},
        {"role": "tool", "tool_call_id": "c", "content": [shown], "is_error": True},
    ]
    await collect(client(peer).stream(history))
    sent = peer.requests[0].body
    asked, _, result = sent["input"]
    assert [one["type"] for one in asked["content"]] == ["input_text", "input_image"]
    assert [one["type"] for one in result["output"]] == ["input_text", "input_image"]


async def test_a_schema_of_the_answer(peer: Peer) -> None:
    peer.replies(answer(message("{}")))
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    await ask(client(peer), schema=schema)
    form = peer.requests[0].body["text"]["format"]
    assert form == {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}


async def test_requested_logprobs_are_recorded(peer: Peer) -> None:
    said = message("Hi.")
    said["content"][0]["logprobs"] = [{"token": "Hi.", "logprob": -0.5, "top_logprobs": [], "bytes": []}]
    peer.replies(answer(said))
    details = only(await ask(client(peer), logprobs=True), "details")["details"]
    assert [one["token"] for one in details["logprobs"]["content"]] == ["Hi."]
    assert "message.output_text.logprobs" in peer.requests[0].body["include"]


# The choice of the API.


@pytest.mark.parametrize(
    ("model", "options", "api", "reason"),
    [
        ("gpt-5-mini", {}, "responses", "reasons"),
        ("o3", {}, "responses", "reasons"),
        ("gpt-5.6-terra", {}, "responses", "reasons"),
        ("gpt-5-chat-latest", {}, "chat", "not known to reason"),
        ("gpt-4o", {}, "chat", "not known to reason"),
        ("gpt-4o", {"text": {"verbosity": "low"}}, "responses", "no option text"),
        ("gpt-5-mini", {"seed": 1}, "chat", "no option seed"),
        ("gpt-5-mini", {"tool_calls": "schema"}, "chat", "schema"),
        ("gpt-5-search-api", {}, "chat", "only"),
        ("gpt-5-mini", {"base_url": "http://127.0.0.1:1/v1"}, "chat", "127.0.0.1:1 is not OpenAI's own server"),
        ("gpt-5-mini", {"base_url": "http://127.0.0.1:1/v1/responses"}, "responses", "ends with /responses"),
        ("gpt-5-mini", {"base_url": "https://api.openai.com/v1/chat/completions"}, "chat", "ends with"),
    ],
)
def test_auto_chooses_and_says_why(model: str, options: dict[str, Any], api: str, reason: str) -> None:
    llm = OpenAI(model, **options)
    recorded = llm.describe()["options"]
    assert (llm.api, recorded["api"]) == (api, api)
    assert reason in recorded["api_reason"]


async def test_the_recording_of_a_run_has_the_choice(peer: Peer) -> None:
    peer.replies(HELLO, answer(message("x")))
    for llm, expected in ((OpenAI("m", peer.url), "chat"), (client(peer), "responses")):
        run = SessionLoop(llm).start("Hi.")
        await run
        (asked,) = [event for event in run.events if event.type == "model_start"]
        assert asked.options["api"] == expected
        assert ("api_reason" in asked.options) == (expected == "chat")


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(UsageError, match="api must be"):
        OpenAI("m", api="completions")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match='needs api="chat"'):
        OpenAI("m", api="responses", tool_calls="schema")
    with pytest.raises(UsageError, match=r"seed is not an option .*api\.openai\.com.*api=\"chat\""):
        OpenAI("m", api="responses", seed=1)
    with pytest.raises(UsageError, match=r"previous_response_id is not an option .* whole conversation"):
        OpenAI("m", api="responses", previous_response_id="r")


async def test_an_option_of_one_request_that_the_api_does_not_have_is_refused(peer: Peer) -> None:
    with pytest.raises(UsageError, match=r"stop is not an option of stream\(\.\.\.\)"):
        await ask(client(peer), stop=["."])


@pytest.mark.parametrize(
    ("llm", "words", "advice"),
    [
        ("chat", "To use function tools, use /v1/responses.", 'api="responses"'),
        ("responses", "Encrypted content is not supported with this model.", "include=None"),
    ],
)
async def test_an_error_names_what_to_change(peer: Peer, llm: Any, words: str, advice: str) -> None:
    peer.replies(body(400, {"error": {"message": words}}))
    with pytest.raises(ModelRequestError, match=advice):
        await ask(OpenAI("m", peer.url, api=llm))
