"""`output=` of SessionLoop and Agent: asked for as the server can, checked, mended once, returned as an object."""

from __future__ import annotations

import json
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field

from agentnb import Agent, RunFailed, SessionLoop, UsageError, replay, restore, tool
from agentnb.core.events import ModelStart, RunEnd
from agentnb.llms import Anthropic, OpenAI
from agentnb.testing import ScriptedLLM, call
from tests.llms.peer import Peer, body, completion, delta, event, head

LOOPS = pytest.mark.parametrize("kind", [SessionLoop, Agent])


class Capital(BaseModel):
    city: str
    people: int


class Grown(BaseModel):
    city: str = "Paris"
    people: int = Field(gt=1000)


PARIS = Capital(city="Paris", people=2_100_000)
RIGHT = PARIS.model_dump_json()


async def result(loop: Any, **options: Any) -> Any:
    return await loop.start("The capital of France?", **options)


@pytest.fixture
def peer() -> Any:
    peer = Peer()
    yield peer
    peer.close()


@LOOPS
async def test_awaiting_a_run_returns_an_object_of_the_type(kind: Any, tmp_path: Any) -> None:
    loop = kind(ScriptedLLM([RIGHT]), output=Capital)
    run = loop.start("The capital of France?")
    assert await run == PARIS
    assert run.output == PARIS.model_dump()
    path = run.snapshot().save(tmp_path / "run.json")
    assert await restore(path, loop) == PARIS
    assert await replay(path) == PARIS.model_dump()


class Aliased(BaseModel):
    long_name: str = Field("unnamed", alias="longName")


class ReadAlias(BaseModel):
    long_name: str = Field("unnamed", validation_alias="longName")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    pair: tuple[int, int]


class Masked(BaseModel):
    word: SecretStr


@pytest.mark.parametrize(
    ("output", "answer", "recorded"),
    [
        (Aliased, '{"longName": "a"}', {"longName": "a"}),
        (ReadAlias, '{"longName": "a"}', {"longName": "a"}),
        (Computed, '{"side": 3}', {"side": 3}),
        (Strict, '{"day": "2024-02-29", "pair": [1, 2]}', {"day": "2024-02-29", "pair": [1, 2]}),
        (Masked, '{"word": "sesame"}', {"word": "**********"}),
    ],
)
async def test_a_type_whose_json_is_not_its_fields_is_read_again(output: Any, answer: str, recorded: Any) -> None:
    run = SessionLoop(ScriptedLLM([answer]), output=output).start("?")
    found = await run
    assert found == (output.model_validate(recorded) if output is Masked else output.model_validate_json(answer))
    assert run.output == recorded
    assert await restore(run.snapshot(), SessionLoop(ScriptedLLM([]), output=output)) == found


async def test_a_number_that_json_does_not_have_is_mended() -> None:
    llm = ScriptedLLM(['{"value": 1e999}', '{"value": 1e9}'])
    assert await result(SessionLoop(llm, output=float)) == 1e9


@LOOPS
async def test_the_model_is_told_what_does_not_fit_and_mends_it(kind: Any) -> None:
    llm = ScriptedLLM(['{"city": "Paris"}', f"```json\n{RIGHT}\n```"])
    assert await result(kind(llm, output=Capital)) == PARIS
    told = llm.requests[1].messages[-1]
    assert told["role"] == "user"
    assert "output.people: Field required" in told["content"]
    assert '"city"' in told["content"]


@LOOPS
@pytest.mark.parametrize("second", ['{"city": "Paris"}', "I do not know."])
async def test_a_second_answer_that_does_not_fit_ends_the_run(kind: Any, second: str) -> None:
    llm = ScriptedLLM(['{"city": "Paris", "people": "many"}', second])
    run = kind(llm, output=Capital).start("The capital of France?")
    with pytest.raises(RunFailed, match=r"InvalidOutput: Invalid output: (output\.people: Field required|.*not JSON)"):
        await run
    end = run.events[-1]
    assert isinstance(end, RunEnd)
    assert (end.reason, end.output) == ("error", None)
    assert len(llm.requests) == 2


@LOOPS
async def test_each_message_of_the_user_may_be_mended_once(kind: Any) -> None:
    wrong = '{"city": "Paris"}'
    run = kind(ScriptedLLM([wrong, RIGHT, wrong, RIGHT]), output=Capital).start("Go.")
    await run.step("turn")
    await run.step("turn")
    run.follow_up("Again.")
    assert await run == PARIS
    assert [message.role for message in run.state.messages].count("user") == 4


@LOOPS
async def test_tools_are_used_before_the_answer(kind: Any) -> None:
    @tool
    def people(city: str) -> int:
        """Return the number of people in a city."""
        return 2_100_000

    llm = ScriptedLLM([[call("people", {"city": "Paris"})], RIGHT])
    assert await result(kind(llm, [people], output=Capital)) == PARIS


@LOOPS
@pytest.mark.parametrize(
    ("output", "answer", "value"),
    [
        (list[int], '{"value": [1, 2]}', [1, 2]),
        (list[int], "[1, 2]", [1, 2]),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
        (Capital | Grown, '{"value": {"city": "Nice", "people": 9}}', Capital(city="Nice", people=9)),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, '{"n": 4}', {"n": 4}),
        ({"type": "array", "items": {"type": "integer"}}, '{"value": [4]}', [4]),
    ],
)
async def test_types_that_are_no_object(kind: Any, output: Any, answer: str, value: Any) -> None:
    assert await result(kind(ScriptedLLM([answer]), output=output)) == value


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["a"]
    default: int


class AlsoClosed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["b"]


@pytest.mark.parametrize(
    ("output", "is_strict"),
    [
        (list[int], True),
        (Closed, True),
        (Closed | AlsoClosed, True),
        (set[int], False),
        (tuple[int, str], False),
        (Annotated[Closed | AlsoClosed, Field(discriminator="kind")], False),
    ],
)
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_schema_that_openai_rejects_is_not_sent_as_strict(
    peer: Peer, api: Any, output: Any, is_strict: bool
) -> None:
    peer.replies(body(400, {"error": {"message": "enough"}}))
    with pytest.raises(RunFailed, match="enough"):
        await result(SessionLoop(OpenAI("m", peer.url, api=api), output=output))
    sent = peer.requests[0].body
    form = sent["text"]["format"] if api == "responses" else sent["response_format"]["json_schema"]
    assert form.get("strict", False) is is_strict


@LOOPS
async def test_an_answer_that_was_cut_off_is_no_output(kind: Any) -> None:
    llm = ScriptedLLM([[{"type": "text_delta", "content": '{"city": "Pa'}, {"type": "stop", "reason": "length"}]])
    with pytest.raises(RunFailed, match=r"cut off \(length\)"):
        await result(kind(llm, output=Capital))


async def test_the_words_of_a_refusal_are_in_the_error(peer: Peer) -> None:
    peer.replies(completion(delta(refusal="I will not name it."), delta("stop")))
    with pytest.raises(RunFailed, match=r"cut off \(refusal\), so it has no output\. It was: I will not name it\."):
        await result(SessionLoop(OpenAI("m", peer.url), output=Capital))


async def test_a_limit_of_requests_leaves_no_output() -> None:
    run = SessionLoop(ScriptedLLM(['{"city": 1}']), output=Capital, max_turns=1).start("Go.")
    with pytest.raises(RunFailed, match=r"output\.city"):
        await run
    looping = SessionLoop(ScriptedLLM([[call("missing")]]), output=Capital, max_turns=1)
    assert await result(looping) is None


@LOOPS
def test_what_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(UsageError, match=r"output= takes a JSON schema, or a type"):
        kind(ScriptedLLM([]), output=object())
    with pytest.raises(UsageError, match=r"output= takes a JSON schema"):
        kind(ScriptedLLM([]), output={"type": "nonsense"})


async def test_the_streams_of_the_designs_have_the_text() -> None:
    agent = Agent(ScriptedLLM([RIGHT]), output=Capital)
    *_, last = [event async for event in agent.execute("Go.")]
    assert json.loads(last.content) == PARIS.model_dump()
    assert await Agent(ScriptedLLM([RIGHT]), output=Capital).run("Go.") == PARIS


async def test_a_model_that_takes_no_schema_is_asked_in_words() -> None:
    class Whole:
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def complete(self, messages: Any) -> str:
            self.asked.append(messages)
            return RIGHT

    llm = Whole()
    assert await result(SessionLoop(llm, output=Capital, system_prompt="Be brief.")) == PARIS
    system = llm.asked[0][0]
    assert system["role"] == "system"
    assert system["content"].startswith("Be brief.\n\nAnswer with one JSON object")


# How each server is asked.


def chat(text: str) -> Any:
    return completion(delta(content=text), delta("stop"))


def message(*content: dict[str, Any], reason: str = "end_turn") -> Any:
    return body(200, {"type": "message", "content": list(content), "stop_reason": reason})


def response(text: str) -> Any:
    item = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]}
    done = {"type": "response.completed", "response": {"status": "completed", "output": [item]}}
    return [
        head(),
        event({"type": "response.output_item.done", "output_index": 0, "item": item}),
        event(done),
        b"0\r\n\r\n",
    ]


def recorded(run: Any) -> Any:
    return next(event.options["schema_as"] for event in run.events if isinstance(event, ModelStart))


async def test_chat_completions_are_asked_by_response_format(peer: Peer) -> None:
    peer.replies(chat(RIGHT))
    run = Agent(OpenAI("m", peer.url), output=Capital).start("Go.")
    assert await run == PARIS
    form = peer.requests[0].body["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"]["additionalProperties"] is False
    assert recorded(run) == "response_format"


async def test_a_schema_that_openai_does_not_enforce_is_not_strict(peer: Peer) -> None:
    peer.replies(chat('{"people": 2000}'))
    assert await result(Agent(OpenAI("m", peer.url), output=Grown)) == Grown(people=2000)
    assert "strict" not in peer.requests[0].body["response_format"]["json_schema"]


async def test_the_responses_api_is_asked_by_text_format(peer: Peer) -> None:
    peer.replies(response(RIGHT))
    run = SessionLoop(OpenAI("m", peer.url, api="responses"), output=Capital).start("Go.")
    assert await run == PARIS
    assert peer.requests[0].body["text"]["format"]["strict"] is True
    assert recorded(run) == "text.format"


async def test_anthropic_is_asked_by_its_format_or_by_a_tool(peer: Peer) -> None:
    peer.replies(message({"type": "text", "text": RIGHT}))
    run = SessionLoop(Anthropic("m", peer.url), output=Capital).start("Go.")
    assert await run == PARIS
    assert peer.requests[0].body["output_config"]["format"]["type"] == "json_schema"
    assert recorded(run) == "output_config.format"

    answer = {"type": "tool_use", "id": "t", "name": "final_answer", "input": PARIS.model_dump()}
    peer.replies(message(answer, reason="tool_use"))
    run = SessionLoop(Anthropic("m", peer.url, structured="tool"), output=Capital).start("Go.")
    assert await run == PARIS
    sent = peer.requests[1].body
    assert "output_config" not in sent
    assert sent["tool_choice"] == {"type": "tool", "name": "final_answer"}
    assert sent["tools"][0]["input_schema"]["required"] == ["city", "people"]
    assert recorded(run) == "the tool final_answer"


async def test_a_server_without_structured_output_is_asked_by_a_tool_as_the_error_says(peer: Peer) -> None:
    peer.replies(body(400, {"error": {"message": "output_config: Extra inputs are not permitted", "type": "x"}}))
    with pytest.raises(RunFailed, match=r"permitted \(Anthropic\(\.\.\., structured=\"tool\"\) asks") as failed:
        await result(SessionLoop(Anthropic("m", peer.url), output=Capital))
    assert "output_config=None" not in str(failed.value)


async def test_the_answer_by_a_tool_comes_after_the_calls_of_other_tools(peer: Peer) -> None:
    @tool
    def people(city: str) -> int:
        """Return the number of people in a city."""
        return 2_100_000

    used = {"type": "tool_use", "id": "t", "name": "people", "input": {"city": "Paris"}}
    wrong = {"type": "tool_use", "id": "u", "name": "final_answer", "input": {"city": "Paris"}}
    answer = {"type": "tool_use", "id": "v", "name": "final_answer", "input": PARIS.model_dump()}
    peer.replies(*(message(one, reason="tool_use") for one in (used, wrong, answer)))
    assert await result(SessionLoop(Anthropic("m", peer.url, structured="tool"), [people], output=Capital)) == PARIS
    assert [request.body["tool_choice"] for request in peer.requests] == [{"type": "any"}] * 3
    assert peer.requests[2].body["messages"][-1]["content"][0]["text"].startswith("Invalid output: output.people")
