"""`Cached`: an equal request is answered from the file, and every other one is sent to the model."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis.strategies import permutations

import agentnb
from agentnb import Loop, RunFailed, SessionLoop, Snapshot, Store, UsageError, tool
from agentnb.content import Image, message
from agentnb.core.errors import ModelError, RecordingCorrupt
from agentnb.llms import Anthropic, Cached, OpenAI
from agentnb.llms.identity import told
from agentnb.loops import want
from agentnb.testing import ScriptedLLM, call
from tests.llms.collecting import ask, collect
from tests.llms.peer import CUT, HELLO, Peer, body, completion, delta, head, said


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


def cached(peer: Peer, path: Path, **options: Any) -> Cached:
    return Cached(OpenAI("m", peer.url, **options), path)


async def test_an_equal_request_is_streamed_again_from_the_file(peer: Peer, path: Path) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    peer.replies(
        completion(
            delta(content="he"), delta(content="llo"), delta(tool_calls=[call]), delta("tool_calls", usage=usage)
        )
    )
    first = await ask(cached(peer, path))
    llm = cached(peer, path)
    again = await ask(llm)
    kept, new = ([chunk for chunk in chunks if chunk["type"] != "usage"] for chunks in (first, again))
    assert kept == new
    assert (peer.connections, len(peer.requests), llm.hits, llm.misses) == (1, 1, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 1},
        {"schema": {"type": "object"}},
        {"tools": [{"name": "now", "description": "", "parameters": {}}]},
        {"text": "goodbye"},
        {"model": "n"},
        {"extra_headers": {"x-tier": "fast"}},
    ],
)
async def test_another_request_is_sent(peer: Peer, path: Path, other: dict[str, Any]) -> None:
    peer.replies(HELLO, HELLO)
    llm = cached(peer, path)
    await ask(llm)
    await ask(llm, **other)
    again = cached(peer, path)
    await ask(again, timeout=5)
    assert (len(peer.requests), again.hits) == (2, 1)


async def test_another_model_server_option_or_client_is_asked(peer: Peer, path: Path) -> None:
    peer.replies(*[HELLO] * 4, body(200, {"type": "message", "content": [], "stop_reason": "end_turn"}))
    other_server = peer.url.replace("127.0.0.1", "localhost")
    for llm in (
        OpenAI("m", peer.url),
        OpenAI("n", peer.url),
        OpenAI("m", other_server),
        OpenAI("m", peer.url, seed=1),
        Anthropic("m", peer.url),
    ):
        await ask(Cached(llm, path))
    assert len(peer.requests) == 5
    await ask(Cached(OpenAI("m", peer.url), path).with_options(seed=1))
    await ask(Cached(OpenAI("m", peer.url, seed=1), path).with_options(seed=None))
    assert len(peer.requests) == 5


@pytest.mark.parametrize(
    ("client", "other"),
    [(OpenAI, {"images": False}), (OpenAI, {"tool_calls": "schema"}), (Anthropic, {"structured": "tool"})],
)
async def test_a_client_that_writes_the_request_in_another_way_is_asked(
    peer: Peer, path: Path, client: Any, other: dict[str, Any]
) -> None:
    said_by_claude = body(
        200, {"type": "message", "content": [{"type": "text", "text": "{}"}], "stop_reason": "end_turn"}
    )
    peer.replies(*[HELLO if client is OpenAI else said_by_claude] * 2)
    picture = Image.from_url("https://e.org/a.png")
    for options in ({}, other):
        llm = Cached(client("m", peer.url, **options), path)
        await collect(llm.stream([message("hello", picture)], schema={"type": "object"}, tools=[{"name": "now"}]))
    assert len(peer.requests) == 2
    assert peer.requests[0].body != peer.requests[1].body


async def test_runs_with_options_of_their_own_are_counted(peer: Peer, path: Path) -> None:
    peer.replies(HELLO)
    llm = cached(peer, path)
    for _ in range(2):
        await SessionLoop(llm).start("hello", options={"temperature": 0})
    assert (llm.hits, llm.misses) == (1, 1)


async def test_a_deleted_file_is_made_again_and_the_model_is_asked_again(peer: Peer, path: Path) -> None:
    peer.replies(HELLO, HELLO)
    llm = cached(peer, path)
    await ask(cached(peer, path))
    await asyncio.to_thread(path.unlink)
    await ask(llm)
    await ask(cached(peer, path))
    assert (len(peer.requests), llm.misses) == (2, 1)


async def test_a_damaged_answer_is_asked_for_again(peer: Peer, path: Path) -> None:
    peer.replies(HELLO, HELLO)
    llm = cached(peer, path)
    await ask(llm)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE answers SET chunks = '{'")
    assert [chunk["content"] for chunk in await ask(cached(peer, path)) if chunk["type"] == "text_delta"] == ["hello"]
    again = cached(peer, path)
    await ask(again)
    assert again.hits == 1


async def test_failures_and_interrupted_answers_are_not_kept(peer: Peer, path: Path) -> None:
    llm = cached(peer, path, max_retries=0)
    peer.replies(body(503, said("Down.")), [head(), delta(content="he"), CUT], HELLO, HELLO)
    for _ in range(2):
        with pytest.raises(ModelError):
            await ask(llm)
    async with aclosing(llm.stream([{"role": "user", "content": "hello"}])) as stream:
        async for _ in stream:
            break
    assert len(peer.requests) == 3
    await ask(llm)
    again = cached(peer, path)
    await ask(again)
    assert (len(peer.requests), again.hits) == (4, 1)


@tool
def now() -> str:
    """Return the time."""
    return "noon"


async def test_a_run_again_makes_no_request(peer: Peer, path: Path) -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    peer.replies(completion(delta(tool_calls=[call]), delta("tool_calls")), HELLO)
    first = SessionLoop(cached(peer, path), [now]).start("When?")
    await first
    connections = peer.connections
    second = SessionLoop(cached(peer, path), [now]).start("When?")
    assert await second == "hello"
    assert (len(peer.requests), peer.connections) == (2, connections)
    assert second.state.usage == {"input_tokens": 0, "output_tokens": 0, "cost": 0.0, "cached_answers": 2}
    assert [message.to_dict() for message in first.state.messages] == [
        message.to_dict() for message in second.state.messages
    ]
    (asked, *_) = [event for event in second.events if event.type == "model_start"]
    assert (asked.provider, asked.model) == ("openai", "m")


async def test_a_study_again_costs_nothing_and_its_repeats_differ(peer: Peer, tmp_path: Path) -> None:
    peer.replies(*(completion(delta(content=text), delta("stop")) for text in ("one", "two", "three")))

    def make() -> SessionLoop:
        return SessionLoop(Cached(OpenAI("m", peer.url), tmp_path / "answers.sqlite"))

    outputs = []
    for _ in range(2):
        study = agentnb.study(make, ["Say a number."], repeats=3, at_once=1, progress=False)
        await study
        outputs.append([run.run.output for run in study.runs])
    assert outputs[0] == outputs[1] == ["one", "two", "three"]
    assert len(peer.requests) == 3


async def test_no_key_is_needed_for_an_answer_from_the_file(
    peer: Peer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "sk-not-a-real-key")
    peer.replies(HELLO)
    await ask(Cached(OpenAI("m", peer.url, api_key_env="LAB_KEY"), path))
    assert b"not-a-real-key" not in path.read_bytes()  # noqa: ASYNC240 - a small file
    monkeypatch.delenv("LAB_KEY")
    await ask(Cached(OpenAI("m", peer.url, api_key_env="LAB_KEY"), path))
    assert len(peer.requests) == 1


class Own:
    model = "own"

    def __init__(self) -> None:
        self._asked = 0

    async def stream(
        self, messages: Any, *, tools: Any = None, schema: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        self._asked += 1
        yield {"type": "text_delta", "content": f"answer {self._asked}"}


async def test_a_model_of_your_own_is_told_apart_by_its_name(path: Path) -> None:
    llm, messages = Own(), [{"role": "user", "content": "hello"}]
    for _ in range(2):
        chunks = await collect(Cached(llm, path).stream(messages))
        assert chunks[0]["content"] == "answer 1"
    await collect(Cached(llm, path, name="second").stream(messages))
    assert llm._asked == 2

    class Nameless:
        def complete(self, messages: Any) -> str:
            return "hello"

    with pytest.raises(UsageError, match=r"neither describe\(\) nor an attribute model"):
        Cached(Nameless(), path)
    assert await SessionLoop(Cached(Nameless(), path, name="nameless")).start("Hi.") == "hello"


async def test_the_model_of_a_branch_is_another_one(peer: Peer, path: Path) -> None:
    import copy

    llm = cached(peer, path)
    other = copy.copy(llm)
    other.model = "n"
    assert (llm.model, other.model) == ("m", "n")
    peer.replies(HELLO)
    await ask(other)
    assert peer.requests[0].body["model"] == "n"


async def test_a_store_and_files_that_are_not_valid(tmp_path: Path, peer: Peer) -> None:
    peer.replies(HELLO)
    store = Store(tmp_path / "runs.db")
    await SessionLoop(Cached(OpenAI("m", peer.url), store)).start("Hi.", store=store)
    assert (tmp_path / "runs.answers.sqlite").exists()
    (tmp_path / "text").write_text("this is no database, but a text of some length " * 9)
    with pytest.raises(RecordingCorrupt, match="is not a file of answers"):
        Cached(OpenAI("m", peer.url), tmp_path / "text")
    for wrong in ("postgresql://host/db", "", 5):
        with pytest.raises(UsageError, match="takes the path of a file"):
            Cached(OpenAI("m", peer.url), wrong)
    with pytest.raises(UsageError, match="does not exist"):
        Cached(OpenAI("m", peer.url), tmp_path / "missing" / "answers.sqlite")


async def test_an_unknown_option_is_refused_by_the_model(peer: Peer, path: Path) -> None:
    with pytest.raises(UsageError, match="tempo is not an option of OpenAI"):
        SessionLoop(cached(peer, path)).start("Hi.", options={"tempo": 1})
    peer.replies(body(400, said("No.")))
    with pytest.raises(RunFailed, match="No"):
        await SessionLoop(cached(peer, path)).start("Hi.")


async def test_samples_of_a_resampling_have_answers_of_their_own_and_the_same_again(path: Path) -> None:
    llm = Own()
    loop = SessionLoop(Cached(llm, path))
    run = loop.start("hello")
    await run
    drawn = [await agentnb.resample(run, every="turn", n=6, loop=loop, progress=False) for _ in range(2)]
    values = [list(one.table()["value"]) for one in drawn]
    assert len(set(values[0])) == 6
    assert values[0] == values[1]


async def test_models_with_other_attributes_do_not_share_an_answer(path: Path) -> None:
    class Persona(Own):
        def __init__(self, persona: str) -> None:
            super().__init__()
            self.persona = persona

    first, second = Persona("pirate"), Persona("judge")
    for llm in (first, second):
        await collect(Cached(llm, path).stream([{"role": "user", "content": "hello"}]))
    assert (first._asked, second._asked) == (1, 1)


def test_a_new_file_of_answers_is_readable_by_its_owner_alone(path: Path) -> None:
    Cached(Own(), path)
    assert path.stat().st_mode & 0o777 == 0o600


# --- which answer a request gets --------------------------------------------------------------------------------------


class Coin:
    """A model that counts its answers, and so gives another one to each request. `delay` is the time that it takes."""

    model = "coin"

    def __init__(self, delay: float = 0) -> None:
        self._asked = 0
        self._delay = delay

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
        self._asked += 1
        text = f"toss {self._asked}"
        await asyncio.sleep(self._delay)
        yield {"type": "text_delta", "content": text}


TOSS = [{"role": "user", "content": "Toss."}]


async def toss(llm: Cached) -> str:
    return str((await collect(llm.stream(TOSS)))[0]["content"])


async def twice(make: Callable[[Cached], Awaitable[Any]], path: Path) -> tuple[Any, Any]:
    """Return what is made with an empty file, and what is made again from it; assert that no model is asked then."""
    first = await make(Cached(Coin(), path))
    again = Coin()
    second = await make(Cached(again, path))
    assert again._asked == 0
    return first, second


async def test_outside_of_runs_each_equal_request_of_a_client_has_its_own_answer(path: Path) -> None:
    async def tosses(llm: Cached) -> list[str]:
        return [await toss(llm) for _ in range(5)]

    first, again = await twice(tosses, path)
    assert len(set(first)) == 5
    assert again == first


async def test_equal_requests_at_once_have_answers_of_their_own(path: Path) -> None:
    async def tosses(llm: Cached) -> list[str]:
        return await asyncio.gather(*(toss(llm) for _ in range(5)))

    first, again = await twice(tosses, path)
    assert len(set(first)) == 5
    assert again == first


async def test_two_equal_forks_of_one_event_have_answers_of_their_own(path: Path) -> None:
    async def outputs(llm: Cached) -> list[Any]:
        run = SessionLoop(llm).start("Toss.")
        await run
        at = next(event.seq for event in run.events if event.type == "model_start") - 1
        forks = [run.fork(at) for _ in range(3)]
        deeper = [fork.fork(at) for fork in forks if await fork]
        return [run.output, *[fork.output for fork in forks], *[await fork for fork in deeper]]

    first, again = await twice(outputs, path)
    assert len(set(first)) == 7
    assert again == first


def asking(inside: Callable[[Cached], Awaitable[Any]]) -> Any:
    """Return a function that runs three calls of a tool that does something, and returns the results of the calls."""

    async def results(llm: Cached) -> list[Any]:
        @tool
        async def ask_inside() -> Any:
            return await inside(llm)

        run = SessionLoop(
            ScriptedLLM([[call("ask_inside", id=id) for id in "ab"], call("ask_inside", id="c"), "end"]), [ask_inside]
        ).start("go")
        await run
        ends = {event.call_id: event.result for event in run.events if event.type == "call_end"}
        return [ends[id] for id in sorted(ends)]

    return results


async def _three_tosses(llm: Cached) -> list[str]:
    return await asyncio.gather(toss(llm), toss(llm), toss(llm))


async def _two_runs(llm: Cached) -> list[Any]:
    runs = [SessionLoop(llm).start("Toss.") for _ in range(2)]
    return await asyncio.gather(*runs)


@pytest.mark.parametrize("inside", [_three_tosses, _two_runs])
async def test_what_a_tool_asks_has_answers_of_its_own(inside: Any, path: Path) -> None:
    first, again = await twice(asking(inside), path)
    answers = [answer for result in first for answer in result]
    assert len(set(answers)) == len(answers)
    assert again == first


async def test_a_policy_that_asks_has_an_answer_for_each_call(path: Path) -> None:
    async def reasons(llm: Cached) -> list[Any]:
        async def judge(proposed: Any) -> dict[str, Any]:
            return {"decision": "reject", "reason": await toss(llm)}

        model = ScriptedLLM([[call("now")] * 2, call("now"), "end"])
        run = SessionLoop(model, [now]).start("go", approve=judge)
        await run
        return sorted(event.reason for event in run.events if event.type == "approval_decision")

    first, again = await twice(reasons, path)
    assert len(set(first)) == 3
    assert again == first


async def test_a_restored_run_gets_the_answer_to_its_next_request(path: Path) -> None:
    """The loop asks three times, and is restored after its first answer."""

    def three(given: Any) -> Any:
        for _ in range(3):
            yield want.ask()

    def loop(llm: Cached) -> Any:
        return Loop.from_generator(three, llm)

    run = loop(Cached(Coin(), path)).start("Toss.")
    await run
    events = [event for event in run.events if event.type == "model_end"]
    cut = Snapshot.of(run.recording[: events[0].seq + 1])
    again = Coin()
    restored = agentnb.restore(cut, loop(Cached(again, path)))
    await restored
    texts = [
        [str(event.message.content) for event in one.events if event.type == "model_end"] for one in (run, restored)
    ]
    assert texts[0] == texts[1]
    assert again._asked == 0


class Order:
    """Lets the calls 0 to n ask one after the other, in the order of a permutation."""

    def __init__(self, permutation: Sequence[int]) -> None:
        self._turns = {number: asyncio.Event() for number in permutation}
        self._next = dict(pairwise(permutation))
        self._turns[permutation[0]].set()

    async def turn_of(self, number: int) -> None:
        await self._turns[number].wait()

    def passes(self, number: int) -> None:
        if number in self._next:
            self._turns[self._next[number]].set()


def of_tools(llm: Cached, order: Order) -> SessionLoop:
    """Return a loop with four calls at once that ask the same."""

    @tool
    async def vote(number: int) -> str:
        await order.turn_of(number)
        answer = await toss(llm)
        order.passes(number)
        return answer

    return SessionLoop(ScriptedLLM([[call("vote", {"number": n}) for n in range(4)], "end"]), [vote])


def of_runs(llm: Cached, order: Order) -> SessionLoop:
    """Return a loop with one call that makes four equal runs."""

    async def take_turn(number: int, messages: Any) -> Any:
        await order.turn_of(number)
        return messages

    async def one(number: int) -> str:
        output = await SessionLoop(llm, transform_context=partial(take_turn, number)).start("Toss.")
        order.passes(number)
        return str(output)

    @tool
    async def vote() -> list[str]:
        return await asyncio.gather(*map(one, range(4)))

    return SessionLoop(ScriptedLLM([[call("vote")], "end"]), [vote])


def of_agents(llm: Cached, order: Order) -> SessionLoop:
    """Return a loop with four nested loops at once that ask the same."""

    async def take_turn(number: int, messages: Any) -> Any:
        await order.turn_of(number)
        order.passes(number)
        return messages

    voters = [SessionLoop(llm, transform_context=partial(take_turn, n), name=f"voter{n}") for n in range(4)]
    return SessionLoop(ScriptedLLM([[call(voter.name, {"input": "Toss."}) for voter in voters], "end"]), voters)


@pytest.mark.parametrize("votes", [of_tools, of_runs, of_agents])
@given(first=permutations(range(4)), second=permutations(range(4)))
@settings(max_examples=10, deadline=None)
def test_the_order_of_arrival_does_not_change_which_answer_a_request_gets(
    votes: Any, first: list[int], second: list[int]
) -> None:
    with TemporaryDirectory() as folder:

        async def results(order: list[int]) -> tuple[list[Any], int]:
            coin = Coin()
            run = votes(Cached(coin, Path(folder) / "answers.sqlite"), Order(order)).start("go")
            await run
            ends = {event.call_id: event.result for event in run.events if event.type == "call_end" and not event.path}
            return [ends[one.id] for one in run.state.messages[1].tool_calls], coin._asked

        before, asked = asyncio.run(results(first))
        again, asked_again = asyncio.run(results(second))
        assert (again, asked, asked_again) == (before, 4, 0)


# --- the file ---------------------------------------------------------------------------------------------------------

TOSSES = """
import asyncio, sys
from agentnb.llms import Cached

class Coin:
    model = "coin"

    async def stream(self, messages, **options):
        self._asked = self.__dict__.get("_asked", 0) + 1
        yield {"type": "text_delta", "content": f"toss {self._asked}"}

async def main():
    llm = Cached(Coin(), sys.argv[1], name="coin")
    for _ in range(20):
        async for chunk in llm.stream([{"role": "user", "content": "Toss."}]):
            if chunk["type"] == "text_delta":
                print(chunk["content"])

asyncio.run(main())
"""


async def test_two_processes_fill_one_file(path: Path) -> None:
    make = partial(asyncio.create_subprocess_exec, sys.executable, "-c", TOSSES, str(path), stdout=PIPE)
    processes = [await make(), await make()]
    said = {(await process.communicate())[0] for process in processes}
    tosses = [f"toss {n}" for n in range(1, 21)]
    assert said == {"".join(f"{one}\n" for one in tosses).encode()}
    llm = Cached(Coin(), path, name="coin")
    assert [await toss(llm) for _ in range(20)] == tosses
    assert llm.hits == 20


@pytest.mark.parametrize(
    ("limit", "why"), [("query_only = 1", "attempt to write a readonly database"), ("max_page_count = 1", "full")]
)
async def test_a_file_that_takes_no_answer_serves_those_that_it_has(
    limit: str, why: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Long(Coin):
        async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
            async for chunk in super().stream(messages, **options):
                yield {**chunk, "content": chunk["content"] + "." * 10_000}  # more than the last page has room for

    first = await toss(Cached(Long(), path))
    connect = sqlite3.connect

    def limited(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.execute(f"PRAGMA {limit}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    llm = Cached(Long(), path)
    assert [await toss(llm), await toss(llm)] == [first, first]
    assert (llm.hits, llm.misses) == (1, 1)
    (record,) = caplog.records
    assert "was not kept in" in record.getMessage()
    assert why in record.getMessage()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything is writable for root")
def test_a_file_in_a_folder_that_is_read_only_serves_its_answers(path: Path) -> None:
    async def first_toss(llm: Cached) -> str:
        answer = await toss(llm)
        await llm.aclose()
        return answer

    first = asyncio.run(first_toss(Cached(Coin(), path)))
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        llm = Cached(Coin(), path)
        assert (asyncio.run(first_toss(llm)), llm.hits) == (first, 1)
        with pytest.raises(UsageError, match="Cached cannot open"):
            Cached(Coin(), path.with_name("new.sqlite"))
    finally:
        path.parent.chmod(0o700)


# --- which models share answers ---------------------------------------------------------------------------------------


class Settings(Coin):
    """A model with attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


@dataclass
class Style:
    tone: str


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"keywords": ["a"]}, {"keywords": ["b"]}),
        ({"sort_key": "time"}, {"sort_key": "name"}),
        ({"stop_token": "<end>"}, {"stop_token": "<eos>"}),
        ({"style": Style("dry")}, {"style": Style("kind")}),
        ({"inner": OpenAI("m", "http://one")}, {"inner": OpenAI("m", "http://two")}),
        ({"folder": Path("a")}, {"folder": Path("b")}),
        ({"describe": lambda: {"provider": "p", "model": "m"}, "persona": "a"}, {"persona": "b"}),
    ],
)
async def test_models_with_other_attributes_share_no_answer(one: Any, other: Any, path: Path) -> None:
    models = [Settings(**one), Settings(**{**one, **other})]
    for llm in models:
        await toss(Cached(llm, path))
    assert [llm._asked for llm in models] == [1, 1]


@pytest.mark.parametrize("secret", ["api_key", "token", "password", "access_token"])
async def test_models_with_other_secrets_share_answers(secret: str, path: Path) -> None:
    models = [Settings(**{secret: value}) for value in ("secret one", "secret two")]
    for llm in models:
        await toss(Cached(llm, path))
    assert [llm._asked for llm in models] == [1, 0]


async def test_attributes_are_read_when_a_request_is_made(path: Path) -> None:
    llm = Settings(persona="pirate")
    cached = Cached(llm, path)
    first = await toss(cached)
    llm.persona = "judge"  # type: ignore[attr-defined]
    assert await toss(cached) != first
    again = Settings(persona="judge")
    await toss(Cached(again, path))
    assert again._asked == 0


class Counting(Coin):
    """A model that counts its answers in a public attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.served = 0

    async def stream(self, messages: Any, **options: Any) -> AsyncIterator[Any]:
        self.served += 1
        async for chunk in super().stream(messages, **options):
            yield chunk


async def test_a_public_counter_is_warned_of_once_and_a_name_ends_that(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = Cached(Counting(), path)
    await toss(llm)
    await toss(llm)
    assert [record.getMessage()[:44] for record in caplog.records] == ["served of Counting changed while it answered"]
    caplog.clear()
    named = Cached(Counting(), path, name="counting")
    tosses = [await toss(named) for _ in range(3)]
    again = Counting()
    assert [await toss(Cached(again, path, name="counting")), again.served] == [tosses[0], 0]
    assert caplog.records == []


OTHERS: list[dict[str, Any]] = [
    {"base_url": "http://host/v1?deployment=b"},
    {"base_url": "https://host/v1?deployment=a"},
    {"headers": {"x-routing-key": "b"}},
    {"http_client": httpx.AsyncClient(headers={"x-tenant": "b"})},
    {"http_client": httpx.AsyncClient(params={"version": "b"})},
    {"extra_body": {"system": "b"}},
]


@pytest.mark.parametrize(
    ("client", "other"),
    [*((OpenAI, other) for other in OTHERS), *((Anthropic, other) for other in OTHERS), (OpenAI, {"api": "responses"})],
)
async def test_a_client_that_sends_something_else_is_another_one(
    client: Any, other: dict[str, Any], path: Path
) -> None:
    address = "http://host/v1?deployment=a"
    keys = set()
    for llm in (client("m", address), client("m", **{"base_url": address, **other})):
        keys.add(str(told([Cached(llm, path).identity(), Cached(llm, path).options])))
    assert len(keys) == 2


async def test_a_subclass_with_an_attribute_of_its_own_shares_no_answer(peer: Peer, path: Path) -> None:
    class Persona(OpenAI):
        persona = ""

    peer.replies(HELLO, HELLO)
    for persona in ("pirate", "judge"):
        llm = Persona("m", peer.url)
        llm.persona = persona
        await ask(Cached(llm, path))
    assert len(peer.requests) == 2
