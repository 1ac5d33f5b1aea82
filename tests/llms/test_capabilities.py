"""The table of dialects and capabilities: each cell is a test against a server of the dialect.

A cell whose dialect lacks the capability tests what is said instead: a placeholder, or an error with the option.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from agentnb import RunFailed, SessionLoop, UsageError, tool
from agentnb.content import Audio, Image, Pdf, message
from agentnb.core.events import ModelEnd, ModelStart
from agentnb.llms import Anthropic, Cached, OpenAI
from tests.llms.peer import END, Peer, body, completion, delta, event, head, part, said
from tests.llms.responses_peer import called, reasoning, refusal, sent_events, stream
from tests.llms.responses_peer import message as said_by_responses


@tool(strict=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail() -> str:
    """Fail."""
    raise ValueError("no luck")


class Sum(BaseModel):
    total: int


class Dialect:
    """A dialect: its client, and the answers of its server."""

    def llm(self, url: str, **options: Any) -> Any:
        raise NotImplementedError

    def text(self, *pieces: str, reason: str = "stop") -> Any:
        raise NotImplementedError

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        raise NotImplementedError

    def thinks(self, thought: str, text: str) -> Any:
        raise NotImplementedError

    def used(self) -> Any:
        """An answer for which 90 tokens were read, 40 of them from the cache, and 20 were written."""
        raise NotImplementedError

    def refuses(self) -> Any:
        raise NotImplementedError

    def history(self, request: dict[str, Any]) -> str:
        return json.dumps(request.get("messages") or request["input"])


class Chat(Dialect):
    def llm(self, url: str, **options: Any) -> Any:
        return OpenAI("m", url, **options)

    def text(self, *pieces: str, reason: str = "stop") -> Any:
        return completion(*(delta(content=piece) for piece in pieces), delta(reason))

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        made = [
            {"index": n, "id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for n, (name, given) in enumerate(calls)
        ]
        return completion(*(delta(tool_calls=[one]) for one in made), delta("tool_calls"))

    def thinks(self, thought: str, text: str) -> Any:
        details = [{"type": "reasoning.text", "text": thought, "signature": "SIG", "index": 0}]
        return completion(delta(reasoning=thought, reasoning_details=details), delta(content=text), delta("stop"))

    def used(self) -> Any:
        usage = {"prompt_tokens": 90, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
        return completion(delta(content="x"), delta("stop"), event({"choices": [], "usage": usage}))

    def refuses(self) -> Any:
        return completion(delta(refusal="I will not."), delta("stop"))


class InSchema(Chat):
    """Chat completions of a model without tool calls: a call is the text of the answer."""

    def llm(self, url: str, **options: Any) -> Any:
        return OpenAI("m", url, tool_calls="schema", **options)

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        ((name, given),) = calls
        return self.text(json.dumps({"tool": name, "arguments": given}))


class Gemini(Chat):
    """Gemini through chat completions: whole calls without an index or an id, signatures, a usage in each event."""

    def answer(self, *deltas: dict[str, Any], reason: str = "stop", **usage: Any) -> Any:
        used = usage or {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
        last = len(deltas) - 1
        events = [
            {"choices": [{"index": 0, "delta": one, **({"finish_reason": reason} if n == last else {})}]}
            for n, one in enumerate(deltas)
        ]
        return completion(*(event({"model": "gemini-x", "usage": used, **one}) for one in events))

    def text(self, *pieces: str, reason: str = "stop") -> Any:
        return self.answer(*({"content": piece} for piece in pieces), reason=reason)

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        made = [{"type": "function", "function": {"name": name, "arguments": json.dumps(of)}} for name, of in calls]
        signed = {"id": "", "extra_content": {"google": {"thought_signature": "SIG"}}}  # only the first one is signed
        return self.answer(*({"tool_calls": [one | (signed if n == 0 else {})]} for n, one in enumerate(made)))

    def thinks(self, thought: str, text: str) -> Any:
        is_thought = {"extra_content": {"google": {"thought": True}}}
        signed = {"content": None, "extra_content": {"google": {"thought_signature": "SIG"}}}
        return self.answer({"content": f"<thought>{thought}", **is_thought}, {"content": f"</thought>{text}"}, signed)

    def used(self) -> Any:
        """The 13 tokens of the hidden reasoning are in the total only."""
        details = {"prompt_tokens_details": {"cached_tokens": 40}}
        return self.answer({"content": "x"}, prompt_tokens=90, completion_tokens=7, total_tokens=110, **details)


class BedrockChat(Chat):
    """A gpt-oss of Bedrock: its reasoning is in the text."""

    def thinks(self, thought: str, text: str) -> Any:
        pieces = f"<reasoning>{thought}</reasoning>", text
        return completion(*(event({"model": "openai.gpt-oss-20b-1:0", "choices": self.said(one)}) for one in pieces))

    def said(self, text: str) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": {"content": text, "role": None}, "finish_reason": "stop"}]


class Responses(Dialect):
    def llm(self, url: str, **options: Any) -> Any:
        return OpenAI("m", url, api="responses", **options)

    def reply(self, *items: dict[str, Any], status: str = "completed", **fields: Any) -> Any:
        made: list[dict[str, Any]] = []
        for n, item in enumerate(items):
            more = {"call_id": f"c{n}"} if item["type"] == "function_call" else {}
            more |= {"encrypted_content": "ENC"} if item["type"] == "reasoning" else {}
            made.append({"id": f"i{n}", **item, **more})
        used = {"input_tokens": 90, "input_tokens_details": {"cached_tokens": 40}, "output_tokens": 20}
        response = {"id": "r", "object": "response", "model": "m", "status": status, "usage": used, **fields}
        sent = stream(sent_events(made, response))
        return [head(), part(sent), END]

    def text(self, *pieces: str, reason: str = "stop") -> Any:
        said = said_by_responses("".join(pieces))
        if reason == "stop":
            return self.reply(said)
        return self.reply(said, status="incomplete", incomplete_details={"reason": "max_output_tokens"})

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        return self.reply(*(called(name, **given) for name, given in calls))

    def thinks(self, thought: str, text: str) -> Any:
        return self.reply(reasoning(thought), said_by_responses(text))

    def used(self) -> Any:
        return self.text("x")

    def refuses(self) -> Any:
        return self.reply(refusal("I will not."))


class BedrockResponses(Responses):
    """Bedrock's Responses API: the reasoning of an open model is not hidden."""

    def thinks(self, thought: str, text: str) -> Any:
        plain = {"content": [{"type": "reasoning_text", "text": thought}], "status": "completed"}
        return self.reply(reasoning() | plain, said_by_responses(text))


class Messages(Dialect):
    def llm(self, url: str, **options: Any) -> Any:
        return Anthropic("m", url, **options)

    def reply(self, *content: dict[str, Any], reason: str = "end_turn", **fields: Any) -> Any:
        return body(200, {"type": "message", "content": list(content), "stop_reason": reason, **fields})

    def text(self, *pieces: str, reason: str = "stop") -> Any:
        reasons = {"stop": "end_turn", "length": "max_tokens"}
        return self.reply({"type": "text", "text": "".join(pieces)}, reason=reasons[reason])

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> Any:
        uses = [
            {"type": "tool_use", "id": f"c{n}", "name": name, "input": given} for n, (name, given) in enumerate(calls)
        ]
        return self.reply(*uses, reason="tool_use")

    def thinks(self, thought: str, text: str) -> Any:
        return self.reply({"type": "thinking", "thinking": thought, "signature": "SIG"}, {"type": "text", "text": text})

    def used(self) -> Any:
        usage = {"input_tokens": 50, "cache_read_input_tokens": 40, "output_tokens": 20}
        return self.reply({"type": "text", "text": "x"}, usage=usage)

    def refuses(self) -> Any:
        return self.reply({"type": "text", "text": "I will not."}, reason="refusal")


DIALECTS: dict[str, Dialect] = {
    "chat": Chat(),
    "schema": InSchema(),
    "responses": Responses(),
    "gemini": Gemini(),
    "bedrock": BedrockChat(),
    "bedrock_responses": BedrockResponses(),
    "anthropic": Messages(),
}


class Cell:
    """A dialect and its server."""

    def __init__(self, name: str, peer: Peer) -> None:
        self.name, self.peer, self.dialect = name, peer, DIALECTS[name]

    async def run(self, *replies: Any, given: Any = "Go.", client: Any = None, **loop: Any) -> Any:
        """Run a session to its end, and return the run."""
        self.peer.replies(*replies)
        options = loop.pop("options", None)
        run = SessionLoop(self.dialect.llm(self.peer.url, **(client or {})), **loop).start(given, options=options)
        await run
        return run

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [request.body for request in self.peer.requests]


Test = Callable[[Cell], Awaitable[None]]
CAPABILITIES: dict[str, Test] = {}


def capability(test: Test) -> Test:
    CAPABILITIES[getattr(test, "__name__", "").replace("_", " ")] = test
    return test


# The capabilities.


@capability
async def text_is_streamed(cell: Cell) -> None:
    run = await cell.run(cell.dialect.text("he", "llo"))
    assert run.output == "hello"


@capability
async def a_call_is_made_and_its_result_is_sent(cell: Cell) -> None:
    run = await cell.run(cell.dialect.calls(("add", {"a": 2, "b": 3})), cell.dialect.text("5"), tools=[add])
    assert run.output == "5"
    assert "add" in json.dumps(cell.sent[0])
    assert "5" in cell.dialect.history(cell.sent[1])


@capability
async def calls_are_made_at_once(cell: Cell) -> None:
    if cell.name == "schema":  # one call in an answer
        return
    two = ("add", {"a": 1, "b": 1}), ("add", {"a": 20, "b": 20})
    run = await cell.run(cell.dialect.calls(*two), cell.dialect.text("done"), tools=[add])
    assert [message.content for message in run.state.messages if message.role == "tool"] == ["2", "40"]


@capability
async def a_failed_call_is_reported(cell: Cell) -> None:
    await cell.run(cell.dialect.calls(("fail", {})), cell.dialect.text("sorry"), tools=[fail])
    history = cell.dialect.history(cell.sent[1])
    assert "no luck" in history
    assert ("is_error" if cell.name == "anthropic" else "Error") in history


@capability
async def a_call_is_demanded_once(cell: Cell) -> None:
    replies = cell.dialect.calls(("add", {"a": 2, "b": 3})), cell.dialect.text("5")
    await cell.run(*replies, tools=[add], options={"tool_choice": "add"})
    if cell.name == "schema":  # the schema has no answer at first
        schemas = [request["response_format"]["json_schema"]["schema"] for request in cell.sent]
        assert ["answer" in json.dumps(schema) for schema in schemas] == [False, True]
    else:
        assert "add" in json.dumps(cell.sent[0]["tool_choice"])
        assert cell.sent[1]["tool_choice"] in ("auto", {"type": "auto"})


@capability
async def a_tool_is_strict(cell: Cell) -> None:
    await cell.run(cell.dialect.text("x"), tools=[add])
    strict = '"strict": true' in json.dumps(cell.sent[0].get("tools"))
    assert strict or cell.name == "schema"  # where every call follows its schema


@capability
async def the_output_is_an_object(cell: Cell) -> None:
    answer = json.dumps({"answer": {"total": 5}}) if cell.name == "schema" else '{"total": 5}'
    replies = cell.dialect.calls(("add", {"a": 2, "b": 3})), cell.dialect.text(answer)
    run = await cell.run(*replies, tools=[add], output=Sum)
    assert await run == Sum(total=5)
    (asked, _) = [event for event in run.events if isinstance(event, ModelStart)]
    field = asked.options["schema_as"].partition(".")[0]
    assert field in cell.sent[0]


@capability
async def reasoning_is_kept_and_sent_back(cell: Cell) -> None:
    loop = SessionLoop(cell.dialect.llm(cell.peer.url), [add])  # without tools, chat completions need no reasoning
    cell.peer.replies(cell.dialect.thinks("Hm.", "first"), cell.dialect.text("second"))
    async for _ in loop.run("Go."):
        pass
    async for _ in loop.run("And?"):
        pass
    assert loop.messages[1].reasoning[0]["text"] == "Hm."
    sent = cell.dialect.history(cell.sent[1])
    kept = {
        **dict.fromkeys(("chat", "gemini", "anthropic"), "SIG"),
        **dict.fromkeys(("responses", "bedrock_responses"), "ENC"),
        "bedrock": "<reasoning>Hm.</reasoning>first",
    }.get(cell.name)
    assert kept is None or kept in sent  # a history without tool calls has no place for it


@capability
async def usage_has_the_cached_tokens(cell: Cell) -> None:
    run = await cell.run(cell.dialect.used())
    assert {"input_tokens": 90, "output_tokens": 20, "cache_read_tokens": 40}.items() <= run.state.usage.items()


@capability
async def an_answer_that_was_cut_off_says_so(cell: Cell) -> None:
    run = await cell.run(cell.dialect.text("hel", reason="length"))
    assert run.stop_reason == "length"


@capability
async def a_refusal_is_no_answer(cell: Cell) -> None:
    run = await cell.run(cell.dialect.refuses())
    (end,) = [event for event in run.events if isinstance(event, ModelEnd)]
    assert end.stop_reason == "refusal"
    assert "I will not." in end.message.to_json()


@capability
async def the_error_of_the_server_is_shown_in_its_words(cell: Cell) -> None:
    with pytest.raises(RunFailed, match="This model takes no pictures"):
        await cell.run(body(400, said("This model takes no pictures.")))


@capability
async def options_of_a_run_are_sent_and_recorded(cell: Cell) -> None:
    run = await cell.run(cell.dialect.text("x"), options={"temperature": 0, "max_tokens": 77})
    limit = "max_output_tokens" if cell.name.endswith("responses") else "max_tokens"
    assert (cell.sent[0]["temperature"], cell.sent[0][limit]) == (0, 77)
    assert run.state.model_options == {"temperature": 0, "max_tokens": 77}


@capability
async def an_unknown_option_is_refused_by_name(cell: Cell) -> None:
    for name, value in {"tempo": 1, **({"thinking": 9000} if cell.name != "anthropic" else {"seed": 7})}.items():
        with pytest.raises(UsageError, match=rf"{name}.* is not an option of .*127\.0\.0\.1"):
            await cell.run(options={name: value})
    assert not cell.sent


@capability
async def effort_is_an_option(cell: Cell) -> None:
    await cell.run(cell.dialect.text("x"), options={"reasoning_effort": "low"})
    dialect = {"bedrock_responses": "responses"}.get(cell.name, cell.name)
    forms = {"responses": {"reasoning": {"effort": "low"}}, "anthropic": {"output_config": {"effort": "low"}}}
    assert forms.get(dialect, {"reasoning_effort": "low"}).items() <= cell.sent[0].items()


@capability
async def pictures_documents_and_sound_are_sent_or_named(cell: Cell) -> None:
    parts = (
        Image.from_bytes(b"\x89PNG\r\n\x1a\n!"),
        Pdf.from_bytes(b"%PDF-1.7"),
        Audio.from_bytes(b"RIFF\0\0\0\0WAVE"),
    )
    await cell.run(cell.dialect.text("x"), given=message("What?", *parts))
    sent = cell.dialect.history(cell.sent[0])
    are_sent = [str(part.model_dump()["source"]["data"]) in sent for part in parts]
    in_chat = dict.fromkeys(("chat", "gemini", "bedrock"), [True] * 3)
    assert are_sent == {**in_chat, "schema": [False] * 3}.get(cell.name, [True, True, False])
    for kind, is_sent in zip(("image", "document", "audio"), are_sent, strict=True):
        assert is_sent or f"[{kind}: " in sent


@capability
async def a_conversation_is_cached_by_the_server(cell: Cell) -> None:
    client = {"caching": True} if cell.name == "anthropic" else {}  # the others cache without being asked
    replies = cell.dialect.calls(("add", {"a": 2, "b": 3})), cell.dialect.text("5")
    await cell.run(*replies, tools=[add], client=client)
    marks = [json.dumps(request).count("cache_control") for request in cell.sent]
    assert marks == ([0, 2] if cell.name == "anthropic" else [0, 0])


@capability
async def an_equal_request_is_answered_from_a_file(cell: Cell) -> None:
    llm = Cached(cell.dialect.llm(cell.peer.url), ":memory:")
    cell.peer.replies(cell.dialect.text("he", "llo"))
    for _ in range(2):
        assert await SessionLoop(llm).start("Go.") == "hello"
    assert len(cell.sent) == 1


@pytest.fixture(scope="module")
def server() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", CAPABILITIES)
@pytest.mark.other_body("reasoning of OpenRouter and Gemini", fields=["reasoning_details", "extra_content"])
async def test_cell(server: Peer, dialect: str, name: str) -> None:
    server.requests.clear()
    server._replies.clear()
    await CAPABILITIES[name](Cell(dialect, server))
