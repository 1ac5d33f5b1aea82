"""The file of a recording says which model was requested, with which options, and which model answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentnb import SessionLoop, Snapshot, restore, tool
from agentnb.analysis import diff, events, messages
from agentnb.llms import Anthropic, OpenAI
from agentnb.llms.description import Describer
from agentnb.testing import Recorded, ScriptedLLM
from agentnb.widgets import static_html
from tests.llms.peer import END, Peer, Reply, body, event, head
from tests.llms.test_anthropic import block, named, said
from tests.llms.test_anthropic import end as anthropic_end
from tests.llms.test_anthropic import message as anthropic_message

SECRET = "sk-a-secret-that-stays-here"


def chat(*deltas: dict[str, Any], reason: str = "stop", **fields: Any) -> Reply:
    """A chat completion whose events have these fields too."""
    ends = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    pieces = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [head(), *(event(fields | piece) for piece in [*pieces, ends]), event("[DONE]"), END]


ANSWERED = {
    "id": "chatcmpl-7",
    "model": "gpt-x-2026-10-01",
    "system_fingerprint": "fp_1",
    "service_tier": "default",
    "provider": "Cloud B",
}
READ = {"index": 0, "id": "c1", "function": {"name": "read", "arguments": '{"table": "nile"}'}}


@tool(approve=True)
def read(table: str) -> str:
    """Read a table."""
    return f"{table}: 3 rows"


@pytest.mark.other_body("extra_body", fields=["top_k"])
async def test_a_saved_run_contains_the_model_the_options_and_who_decided(peer: Peer, tmp_path: Path) -> None:
    peer.replies(
        chat({"tool_calls": [READ]}, reason="tool_calls", **ANSWERED),
        chat({"content": "Three."}, **ANSWERED | {"id": "chatcmpl-8"}),
    )
    llm = OpenAI("gpt-x", peer.url, temperature=0.25, seed=7, max_tokens=100, extra_body={"top_k": 5}, api_key_env=None)
    run = SessionLoop(llm, [read], system_prompt="Be brief.").start("How many rows?", limits={"turns": 5})
    await run.step("turn")
    run.approve("c1")
    assert await run == "Three."
    file = run.snapshot("rows").save(tmp_path / "rows.agentnb.json")

    told = Snapshot.load(file).events
    asked = [one for one in told if one.type == "model_start"]
    assert [(one.provider, one.model) for one in asked] == [("openai", "gpt-x")] * 2
    assert asked[0].options["temperature"] == 0.25
    assert asked[0].options["seed"] == 7
    assert asked[0].options["max_tokens"] == 100
    assert asked[0].options["extra_body"] == {"top_k": 5}
    assert asked[0].options["tools"] == ["read"]
    answers = [one for one in told if one.type == "model_end"]
    assert [one.response_id for one in answers] == ["chatcmpl-7", "chatcmpl-8"]
    assert [one.finish_reason for one in answers] == ["tool_calls", "stop"]
    last = answers[-1]
    assert (last.model, last.fingerprint, last.service_tier, last.upstream) == (
        *("gpt-x-2026-10-01", "fp_1", "default", "Cloud B"),
    )
    (decided,) = [one for one in told if one.type == "approval_decision"]
    assert (decided.decision, decided.by) == ("approve", "code")


async def test_answers_of_anthropic_have_the_same_details(peer: Peer) -> None:
    started = {"id": "msg_1", "model": "claude-x-5", "usage": {"input_tokens": 1, "service_tier": "standard"}}
    hello = block(0, said("hello"), type="text", text="")
    peer.replies(anthropic_message(named("message_start", message=started), hello, anthropic_end("stop_sequence")))
    run = SessionLoop(Anthropic("claude-x", peer.url, thinking={"type": "disabled"})).start("hi")
    await run
    asked, answered = [one for one in run.events if one.type in ("model_start", "model_end")]
    assert (asked.provider, asked.model) == ("anthropic", "claude-x")
    assert asked.options["thinking"] == {"type": "disabled"}
    assert asked.options["max_tokens"] == 8192
    assert (answered.model, answered.response_id, answered.service_tier) == ("claude-x-5", "msg_1", "standard")
    assert (answered.stop_reason, answered.finish_reason) == ("stop", "stop_sequence")


async def test_the_model_of_one_request_is_recorded_as_requested() -> None:
    assert OpenAI("a", "http://127.0.0.1:1").describe(model="b")["model"] == "b"
    assert OpenAI("a", "http://127.0.0.1:1", extra_body={"model": "c"}).describe()["model"] == "c"


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"x-gateway": SECRET}},
        {"extra_headers": {"authorization": f"Bearer {SECRET}"}},
        {"extra_body": {"api_key": SECRET}},
        {"extra_body": {"provider": {"credentials": {"token": SECRET}}}},
        {"metadata": {"whatever": SECRET}},
        {"password": SECRET},
    ],
)
@pytest.mark.other_body("secrets in fields of their own", fields=["api_key", "provider", "password"])
async def test_no_secret_is_recorded(peer: Peer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setenv("SOME_KEY", SECRET)
    peer.replies(chat({"content": "x"}))
    url = peer.url.replace("127", f"user:{SECRET}@127", 1) + f"/v1?key={SECRET}"
    run = SessionLoop(OpenAI("m", url, api_key_env="SOME_KEY", **options)).start("hi")
    await run
    assert SECRET not in run.snapshot().to_json()


async def test_schemas_and_messages_are_not_recorded_as_options(peer: Peer) -> None:
    peer.replies(chat({"content": "x"}))
    schema = {"type": "object", "title": "Answer", "properties": {"secret_field": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    run = SessionLoop(OpenAI("m", peer.url, response_format=form), [read]).start("a long question")
    await run
    (asked,) = [one for one in run.events if one.type == "model_start"]
    assert asked.options["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": "Answer"},
    }
    assert "secret_field" not in json.dumps(asked.options)
    assert "long question" not in json.dumps(asked.options)


class Custom:
    """Your own model."""

    def __init__(self, **told: Any) -> None:
        self.__dict__.update(told)

    async def stream(self, messages: Any, *, tools: Any = None, schema: Any = None, **options: Any) -> Any:
        yield {"type": "text_delta", "content": "hi"}
        yield {"type": "response", "model": "mine-2", "response_id": "r1"}
        yield {"type": "stop", "reason": "length", "unknown": 1}


class Describing(Custom):
    def describe(self, **options: Any) -> dict[str, Any]:
        return {"provider": "lab", "model": "mine", "options": {"depth": 3, **options}}


@pytest.mark.parametrize(
    ("llm", "told"),
    [
        (Custom(), ("Custom", "", {"tools": ["read"]})),
        (Custom(provider="lab", model="mine", options={"depth": 3}), ("lab", "mine", {"depth": 3, "tools": ["read"]})),
        (Custom(model_name="mine", describe="no method"), ("Custom", "mine", {"tools": ["read"]})),
        (Describing(), ("lab", "mine", {"depth": 3, "tools": ["read"]})),
        (ScriptedLLM(["hi"]), ("scripted", "script", {"tools": ["read"]})),
    ],
)
async def test_your_own_model_can_report_the_same_details(llm: Any, told: tuple[Any, ...]) -> None:
    run = SessionLoop(llm, [read]).start("go")
    await run
    (asked,) = [one for one in run.events if one.type == "model_start"]
    assert (asked.provider, asked.model, asked.options) == told
    (answered,) = [one for one in run.events if one.type == "model_end"]
    if not isinstance(llm, ScriptedLLM):
        assert (answered.model, answered.response_id, answered.finish_reason) == ("mine-2", "r1", "length")


def test_a_request_is_described_again_only_if_something_in_it_has_changed() -> None:
    llm = Custom(provider="lab", model="mine", options={"depth": 3, "stop": None})
    tools = [{"name": "read"}]
    describer = Describer()
    first = describer.describe(llm, {"tools": tools, "seed": 1})
    assert first == ("lab", "mine", {"depth": 3, "tools": ["read"], "seed": 1})
    assert describer.describe(llm, {"tools": tools, "seed": 1}) is first
    # an option of the request
    assert describer.describe(llm, {"tools": tools, "seed": True}).options["seed"] is True
    assert "seed" not in describer.describe(llm, {"tools": tools}).options
    # the tools
    assert describer.describe(llm, {"tools": [{"name": "write"}]}).options["tools"] == ["write"]
    tools.append({"name": "write"})
    assert describer.describe(llm, {"tools": tools}).options["tools"] == ["read", "write"]
    tools[0] = {"name": "look"}
    assert describer.describe(llm, {"tools": tools}).options["tools"] == ["look", "write"]
    # the model: its name, its options, and another model
    llm.model = "other"
    assert describer.describe(llm, {}).model == "other"
    llm.options["depth"] = 4
    assert describer.describe(llm, {}).options == {"depth": 4}
    assert describer.describe(Custom(), {}) == ("Custom", "", {})


def test_an_option_that_changes_in_place_is_described_again() -> None:
    llm = Custom(options={"stop": ["a"], "extra": {"depth": 3}})
    describer = Describer()
    describer.describe(llm, {})
    llm.options["stop"].append("b")
    llm.options["extra"]["depth"] = 4
    assert describer.describe(llm, {}).options == {"stop": ["a", "b"], "extra": {"depth": 4}}


def test_a_model_that_describes_itself_is_asked_for_each_request() -> None:
    depths = iter((1, 2))

    class Deepening(Custom):
        def describe(self, **options: Any) -> dict[str, Any]:
            return {"model": "mine", "options": {"depth": next(depths)}}

    llm, describer = Deepening(), Describer()
    assert [describer.describe(llm, {}).options for _ in range(2)] == [{"depth": 1}, {"depth": 2}]


async def test_a_recorded_model_serves_the_same_details(peer: Peer) -> None:
    peer.replies(chat({"content": "Three."}, **ANSWERED))
    run = SessionLoop(OpenAI("gpt-x", peer.url, temperature=0.25)).start("go")
    await run
    again = SessionLoop(Recorded(run)).start("go")
    await again
    assert {pair.how for pair in diff(run, again).events} == {"same"}
    ends = [one for of in (run, again) for one in of.events if one.type == "model_end"]
    assert ends[0].response_id == ends[1].response_id == "chatcmpl-7"


async def test_a_replacement_model_does_not_get_the_options_of_the_first(peer: Peer) -> None:
    other = Peer()
    peer.replies(body(400, {"error": {"message": "No."}}))
    other.replies(chat({"content": "done"}), chat({"content": "done"}))
    run = SessionLoop(OpenAI("first", peer.url, temperature=0.25)).start("go")
    while not any(one.type == "model_error" for one in run.events):
        await run.step("event")
    second = SessionLoop(OpenAI("second", other.url, seed=1))
    restored = restore(run.snapshot(), second)
    restored.resume()
    assert await restored == "done"
    asked = [one for one in restored.events if one.type == "model_start"]
    assert [(one.model, one.options.get("temperature")) for one in asked] == [("first", 0.25), ("second", None)]
    assert "temperature" not in other.requests[0].body
    other.close()


async def test_the_options_of_a_loop_are_sent_again_and_recorded_separately() -> None:
    from agentnb.core.events import MessageAdded, ModelStart, RunEnd
    from agentnb.loops.base import Loop

    class Hot(Loop):
        phases: ClassVar = {"thinking": ["done"], "done": []}
        opened_by: ClassVar = {"run_start": "thinking", "run_end": "done"}

        def advance(self, state: Any) -> Any:
            if state.queues["input"]:
                return MessageAdded(message=state.queues["input"][0], origin="input")
            if state.turn == 0:
                return ModelStart(turn=1, options={"temperature": 2})
            return RunEnd(reason="completed", output="over")

    llm = ScriptedLLM([[RuntimeError("down")], "hi"])
    run = Hot(llm=llm).start("go")
    with pytest.raises(Exception, match="down"):
        await run
    run.resume()
    assert await run == "over"
    assert [request.options for request in llm.requests] == [{"temperature": 2}] * 2
    asked = [one for one in run.events if one.type == "model_start"]
    assert [one.loop_options for one in asked] == [{"temperature": 2}] * 2


async def test_tables_have_a_column_for_each_detail(peer: Peer) -> None:
    peer.replies(chat({"content": "Three."}, **ANSWERED))
    run = SessionLoop(OpenAI("gpt-x", peer.url)).start("go")
    await run
    answer = messages(run).iloc[-1]
    assert (answer.provider, answer.model_asked, answer.model) == ("openai", "gpt-x", "gpt-x-2026-10-01")
    assert (answer.response_id, answer.fingerprint, answer.service_tier) == ("chatcmpl-7", "fp_1", "default")
    assert (answer.upstream, answer.finish_reason) == ("Cloud B", "stop")
    rows = events(run).set_index("type")
    assert (rows.loc["model_start"].provider, rows.loc["model_start"].model) == ("openai", "gpt-x")
    assert (rows.loc["model_end"].model, rows.loc["model_end"].finish_reason) == ("gpt-x-2026-10-01", "stop")


async def test_the_panel_shows_the_requested_and_the_answering_model(peer: Peer) -> None:
    peer.replies(chat({"content": "Three."}, **ANSWERED))
    run = SessionLoop(OpenAI("gpt-x", peer.url)).start("go")
    await run
    html = static_html(run)
    assert "openai gpt-x" in html
    assert "gpt-x-2026-10-01" in html


async def test_a_complete_answer_can_name_its_model() -> None:
    class AtOnce:
        def complete(self, messages: Any) -> dict[str, Any]:
            usage = {"prompt_tokens": 3, "completion_tokens": 1}
            return {"content": "hi", "model": "mine-2", "id": "r1", "usage": usage}

    run = SessionLoop(AtOnce()).start("go")
    await run
    (answered,) = [one for one in run.events if one.type == "model_end"]
    assert (answered.model, answered.response_id) == ("mine-2", "r1")
    assert answered.usage == {"input_tokens": 3, "output_tokens": 1}
