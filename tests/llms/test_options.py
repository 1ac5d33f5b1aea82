"""Every option is applied, sent as a field of the body, or refused; none is ignored silently."""

from __future__ import annotations

from typing import Any

import pytest

from agentnb import SessionLoop, tool
from agentnb.core.errors import ModelUnavailable, UsageError
from agentnb.llms import Anthropic, OpenAI
from agentnb.testing import ScriptedLLM
from tests.llms.collecting import ask
from tests.llms.peer import HANG, HELLO, Peer, body, completion, delta, said

CLIENTS = pytest.mark.parametrize("kind", [OpenAI, Anthropic])
WHOLE = {
    OpenAI: HELLO,
    Anthropic: body(
        200, {"type": "message", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}
    ),
}
ADD = {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


async def sent(peer: Peer, kind: Any, given: dict[str, Any] | None = None, **options: Any) -> Any:
    peer.replies(WHOLE[kind])
    await ask(kind("m", peer.url, **(given or {})), **options)
    return peer.requests[-1]


@CLIENTS
@pytest.mark.other_body("extra_body", fields=["top_k"])
async def test_extra_body_is_merged_into_the_body(peer: Peer, kind: Any) -> None:
    for given, options in (({"extra_body": {"top_k": 5}}, {}), ({}, {"extra_body": {"top_k": 5}})):
        request = await sent(peer, kind, given, **options)
        assert request.body["top_k"] == 5
        assert "extra_body" not in request.body


@CLIENTS
@pytest.mark.parametrize("name", ["extra_headers", "headers"])
async def test_headers_of_one_request_are_sent_with_that_request_only(peer: Peer, kind: Any, name: str) -> None:
    request = await sent(peer, kind, {"headers": {"x-lab": "a", "x-all": "1"}}, **{name: {"X-Lab": "b"}})
    assert (request.headers["x-lab"], request.headers["x-all"]) == ("b", "1")
    assert name not in request.body
    assert "x-lab" not in (await sent(peer, kind)).headers


@CLIENTS
async def test_the_model_of_one_request_is_used(peer: Peer, kind: Any) -> None:
    assert (await sent(peer, kind, model="other")).body["model"] == "other"
    assert (await sent(peer, kind)).body["model"] == "m"


@CLIENTS
async def test_the_timeout_of_one_request_is_used_and_not_sent(peer: Peer, kind: Any) -> None:
    assert "timeout" not in (await sent(peer, kind, timeout=5)).body
    peer.replies([HANG])
    with pytest.raises(ModelUnavailable, match=r"silent for 0\.05 s"):
        await ask(kind("m", peer.url, max_retries=0), timeout=0.05)


@CLIENTS
async def test_the_retries_of_one_request_are_used_and_not_sent(peer: Peer, kind: Any) -> None:
    assert "max_retries" not in (await sent(peer, kind, max_retries=1)).body
    peer.replies(body(503, said("Down.")))
    with pytest.raises(ModelUnavailable, match="Down"):
        await ask(kind("m", peer.url), max_retries=0)


@CLIENTS
@pytest.mark.parametrize(
    "options",
    [
        {"stream": False},
        {"stream": 0},
        {"extra_body": {"stream": False}},
        {"extra_body": {"messages": []}},
        {"extra_body": [("a", 1)]},
        {"extra_headers": {"a b": "x"}},
        {"extra_query": {"a": "b"}},
        {"base_url": "http://127.0.0.1:1"},
        {"api_key": "sk-secret"},
        {"http_client": object()},
    ],
)
async def test_an_invalid_option_is_refused_in_the_client_and_in_a_request(
    peer: Peer, kind: Any, options: dict[str, Any]
) -> None:
    if "base_url" not in options:
        with pytest.raises(UsageError) as refused:
            kind("m", peer.url, **options)
        assert "sk-secret" not in str(refused.value)
    with pytest.raises(UsageError):
        await ask(kind("m", peer.url), **options)
    for name, wrong in {"timeout": 0, "max_retries": -1, "model": 5}.items():
        with pytest.raises(UsageError, match=name):
            await ask(kind("m", peer.url), **{name: wrong})
    assert not peer.requests


@CLIENTS
async def test_the_option_stream_true_is_accepted(peer: Peer, kind: Any) -> None:
    assert (await sent(peer, kind, stream=True)).body["stream"] is True


@CLIENTS
@pytest.mark.other_body("a tool of Anthropic is sent to each API")
async def test_tools_of_the_provider_are_sent_in_addition_to_those_of_the_loop(peer: Peer, kind: Any) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}
    tools = (await sent(peer, kind, {"tools": [search]}, tools=[ADD])).body["tools"]
    assert tools[0] == search
    assert len(tools) == 2
    assert (await sent(peer, kind, tools=[search])).body["tools"] == [search]


@pytest.mark.other_body("fields of gateways", fields=["cache_control", "defer_loading"])
async def test_provider_specific_fields_of_a_tool_are_sent(peer: Peer) -> None:
    marked = ADD | {"strict": True, "cache_control": {"type": "ephemeral"}, "defer_loading": True}
    (openai,) = (await sent(peer, OpenAI, tools=[marked])).body["tools"]
    (anthropic,) = (await sent(peer, Anthropic, tools=[marked])).body["tools"]
    assert openai["function"]["strict"] is True
    assert (openai["cache_control"], openai["defer_loading"]) == ({"type": "ephemeral"}, True)
    assert (anthropic["strict"], anthropic["cache_control"], anthropic["defer_loading"]) == (
        *(True, {"type": "ephemeral"}, True),
    )


class Marked:
    name, description = "add", "Add."
    parameters: Any = ADD["parameters"]
    strict = True

    async def execute(self, a: int) -> int:
        return a


async def test_an_object_with_the_attributes_of_a_tool_is_accepted(peer: Peer) -> None:
    peer.replies(HELLO)
    await SessionLoop(OpenAI("m", peer.url), [Marked()]).start("go")
    assert peer.requests[0].body["tools"][0]["function"]["strict"] is True


@CLIENTS
async def test_unknown_roles_are_converted_or_omitted(peer: Peer, kind: Any) -> None:
    roles = ["developer", "system", "user", "note", "assistant", "custom", "user"]
    peer.replies(WHOLE[kind])
    messages = [{"role": role, "content": f"by {role}"} for role in roles]
    async for _ in kind("m", peer.url).stream(messages):
        pass
    request = peer.requests[-1].body
    known = {"user", "assistant"} | ({"system"} if kind is OpenAI else set())
    assert {message["role"] for message in request["messages"]} == known
    assert "by developer" in str(request)
    assert "by note" not in str(request)


@tool
def add(a: int) -> int:
    """Add."""
    return a


CALL = completion(
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}]),
    delta("tool_calls"),
)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
async def test_a_forced_call_is_forced_once_in_a_run(peer: Peer, choice: Any) -> None:
    llm = OpenAI("m", peer.url, tool_choice=choice)
    peer.replies(CALL, HELLO, CALL, HELLO)
    for _ in range(2):  # a second run forces the call again
        assert await SessionLoop(llm, [add]).start("go") == "hello"
    assert [request.body["tool_choice"] for request in peer.requests] == [choice, "auto", choice, "auto"]


@pytest.mark.parametrize("client", [OpenAI, lambda *given: OpenAI(*given, api="responses"), Anthropic])
async def test_a_tool_choice_that_names_no_tool_is_refused(peer: Peer, client: Any) -> None:
    with pytest.raises(UsageError, match=r"tool_choice='ad' is neither .* whose tools are: add\."):
        await ask(client("m", peer.url), tools=[ADD], tool_choice="ad")
    assert peer.requests == []


@pytest.mark.parametrize("choice", ["required", "inner", {"type": "function", "function": {"name": "inner"}}])
async def test_a_call_is_not_forced_in_a_nested_loop_that_cannot_make_it(peer: Peer, choice: Any) -> None:
    made = {"index": 0, "id": "c", "type": "function", "function": {"name": "inner", "arguments": '{"input": "go"}'}}
    llm = OpenAI("m", peer.url)
    for tools in ([], [add]):
        peer.replies(completion(delta(tool_calls=[made]), delta("tool_calls")), HELLO, HELLO)
        inner = SessionLoop(llm, tools, name="inner")
        assert await SessionLoop(llm, [inner]).start("go", options={"tool_choice": choice}) == "hello"
        forced, nested, last = (request.body.get("tool_choice") for request in peer.requests[-3:])
        assert forced is not None
        assert nested == ("required" if tools and choice == "required" else None)
        assert last == "auto"


async def test_anthropics_tool_choice_keeps_its_other_fields(peer: Peer) -> None:
    used = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
    peer.replies(body(200, {"type": "message", "content": [used], "stop_reason": "tool_use"}), WHOLE[Anthropic])
    choice = {"type": "any", "disable_parallel_tool_use": True}
    await SessionLoop(Anthropic("m", peer.url, tool_choice=choice), [add]).start("go")
    assert peer.requests[1].body["tool_choice"] == choice | {"type": "auto"}


@pytest.mark.parametrize("choice", ["auto", "none", {"type": "auto"}])
async def test_a_tool_choice_that_forces_no_call_is_kept(peer: Peer, choice: Any) -> None:
    peer.replies(CALL, HELLO)
    await SessionLoop(OpenAI("m", peer.url, tool_choice=choice), [add]).start("go")
    sent = "auto" if isinstance(choice, dict) else choice  # in Anthropic's form
    assert [request.body["tool_choice"] for request in peer.requests] == [sent, sent]


@pytest.mark.parametrize("way", ["anyOf", "oneOf", "allOf", "$ref"])
@CLIENTS
async def test_a_schema_with_alternatives_at_the_top_is_sent_as_one_object(peer: Peer, kind: Any, way: str) -> None:
    by_id = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "n": {"type": "integer"}},
        "required": ["id", "n"],
    }
    by_name = {"properties": {"name": {"type": "string"}, "n": {"type": "string"}}, "required": ["name", "n"]}
    schema: dict[str, Any] = {"$defs": {"ById": by_id}}
    schema |= {"$ref": "#/$defs/ById"} if way == "$ref" else {way: [{"$ref": "#/$defs/ById"}, by_name]}
    (told,) = (await sent(peer, kind, tools=[{"name": "find", "parameters": schema}])).body["tools"]
    flat = told["function"]["parameters"] if kind is OpenAI else told["input_schema"]
    assert flat["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & flat.keys()
    if way == "$ref":
        assert flat["required"] == ["id", "n"]
        return
    assert set(flat["properties"]) == {"id", "name", "n"}
    assert flat["properties"]["n"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert set(flat["required"]) == ({"id", "name", "n"} if way == "allOf" else {"n"})


def test_a_recursive_schema_is_flattened_in_finite_time() -> None:
    from agentnb.llms.conversion import provider_schema

    schema = {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "object", "properties": {"a": {}}}]}}}
    assert provider_schema({"name": "f", "parameters": schema | {"$ref": "#/$defs/A"}})["properties"] == {"a": {}}


async def test_an_invalid_proxy_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost,[::1]")
    with pytest.raises(UsageError, match="NO_PROXY"):
        await ask(OpenAI("m", "http://192.0.2.1/v1", timeout=0.1, max_retries=0))


async def test_a_call_without_arguments_may_be_followed_by_an_empty_delta() -> None:
    @tool
    def now() -> str:
        """The time."""
        return "noon"

    run = SessionLoop(
        ScriptedLLM([[{"type": "tool_call", "id": "c", "name": "now", "arguments": '{}""'}], "done"]), [now]
    )
    await (started := run.start("go"))
    assert [one.result for one in started.events if one.type == "call_end"] == ["noon"]


# Options of a client like another one.


@CLIENTS
async def test_an_option_that_is_not_json_is_named(peer: Peer, kind: Any) -> None:
    with pytest.raises(UsageError, match=r"metadata=\{1, 2\} cannot be sent"):
        await ask(kind("m", peer.url, temperature=0).with_options(metadata={1, 2}))
    assert peer.requests == []


@CLIENTS
async def test_a_client_with_other_options(peer: Peer, kind: Any) -> None:
    peer.replies(WHOLE[kind], WHOLE[kind], WHOLE[kind])
    llm = kind("m", peer.url, temperature=1, top_p=0.5)
    exact = llm.with_options(temperature=0, top_p=None, timeout=7)
    run = SessionLoop(exact).start("Hi.")
    await run
    await ask(llm)
    first, second = (request.body for request in peer.requests)
    assert (first["temperature"], "top_p" in first, "timeout" in first) == (0, False, False)
    assert (second["temperature"], second["top_p"]) == (1, 0.5)
    (asked,) = [event for event in run.events if event.type == "model_start"]
    assert (asked.options["temperature"], asked.model) == (0, "m")
    assert peer.connections == 1


@CLIENTS
def test_an_unknown_option_of_a_client_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"model is not an option of .* make a client for that model"):
        kind("m").with_options(model="n")
    llm = kind("m", "http://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"max_token is not an option of .* 127\.0\.0\.1:9\. Did you mean max_tokens"):
        llm.with_options(max_token=9)
    with pytest.raises(UsageError, match="API keys are read from the environment"):
        llm.with_options(api_key="sk")
    with pytest.raises(UsageError, match=r"extra_body=\{'strange_field': \.\.\.\}"):
        llm.with_options(strange_field=1)
    assert llm.with_options(extra_body={"strange_field": 1}).options["extra_body"] == {"strange_field": 1}


@pytest.mark.other_body("unknown fields", fields=["max_token", "strange_field"])
@CLIENTS
async def test_a_misspelt_option_is_refused_wherever_it_is_given(peer: Peer, kind: Any) -> None:
    words = r"max_token is not an option of .* for 127\.0\.0\.1:\d+\. Did you mean max_tokens\? .* extra_body="
    with pytest.raises(UsageError, match=words):
        kind("m", peer.url, max_token=9)
    with pytest.raises(UsageError, match=words):
        await ask(kind("m", peer.url), max_token=9)
    assert peer.requests == []
    peer.replies(WHOLE[kind])
    await ask(kind("m", peer.url, extra_body={"max_token": 9}), strange_field=1)  # unlike all known options
    assert peer.requests[0].body["strange_field"] == 1


def test_the_api_is_chosen_again_for_other_options() -> None:
    llm = OpenAI("gpt-5-mini", "https://api.openai.com/v1")
    chat = llm.with_options(seed=7)
    assert (llm.api, chat.api, chat.with_options(seed=None).api) == ("responses", "chat", "responses")
    assert "seed" in chat.describe()["options"]["api_reason"]
    assert {"stream_options", "seed"} <= chat.options.keys()
    assert "store" not in chat.options
    with pytest.raises(UsageError, match=r"seed is not an option of OpenAI\.with_options.*api\.openai\.com"):
        OpenAI("gpt-5-mini", api="responses").with_options(seed=7)


async def test_a_client_of_the_other_api_uses_its_address(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.llms.openai.OPENAI_URL", peer.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    peer.replies(HELLO)
    llm = OpenAI("gpt-5-mini", peer.url)
    await ask(llm.with_options(seed=7))
    assert (llm.api, peer.requests[0].path, peer.requests[0].body["seed"]) == ("responses", "/chat/completions", 7)
