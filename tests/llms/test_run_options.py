"""Options of a run (`start(options=...)`) and of a step (`fork(options=...)`): sent, recorded, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentnb import Agent, LoopAgent, SessionLoop, UsageError, replay, restore
from agentnb.analysis import messages, runs
from agentnb.core.events import ModelStart, RunResumed, RunStart
from agentnb.errors import RunFailed
from agentnb.llms import Anthropic, OpenAI
from agentnb.testing import ScriptedLLM
from tests.llms.peer import HELLO, Peer, body

HELLO_TOO = body(200, {"type": "message", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"})
CLIENTS = pytest.mark.parametrize(("kind", "hello"), [(OpenAI, HELLO), (Anthropic, HELLO_TOO)])


def requests(run: Any) -> list[dict[str, Any]]:
    return [event.options for event in run.events if isinstance(event, ModelStart)]


@CLIENTS
async def test_the_options_of_a_run_are_sent_and_recorded(peer: Peer, kind: Any, hello: Any, tmp_path: Any) -> None:
    peer.replies(hello, hello)
    loop = SessionLoop(kind("m", peer.url, temperature=1, top_p=0.5))
    run = loop.start("Hi.", options={"temperature": 0, "top_p": None})
    await run
    await loop.start("Hi.")
    first, second = (request.body for request in peer.requests)
    assert (first["temperature"], "top_p" in first) == (0, False)
    assert (second["temperature"], second["top_p"]) == (1, 0.5)
    assert requests(run)[0]["temperature"] == 0

    kept = replay(run.snapshot().save(tmp_path / "run.json")).to(0)
    assert kept.state.model_options == {"temperature": 0, "top_p": None}
    (row,) = runs(run).to_dict("records")
    assert row["options"] == {"temperature": 0, "top_p": None}
    assert messages(run).options.dropna().iloc[-1]["temperature"] == 0


@CLIENTS
async def test_the_options_of_a_fork_apply_from_there_on(peer: Peer, kind: Any, hello: Any) -> None:
    peer.replies(hello, hello)
    run = SessionLoop(kind("m", peer.url)).start("Hi.", options={"temperature": 0, "top_p": 0.5})
    await run
    seq = next(event.seq for event in run.events if isinstance(event, ModelStart))
    other = run.fork(seq - 1, options={"temperature": 1})
    await other
    sent = peer.requests[-1].body
    assert (sent["temperature"], sent["top_p"]) == (1, 0.5)
    first = other.events[0]
    assert isinstance(first, RunStart)
    assert first.model_options == {"temperature": 1, "top_p": 0.5}
    assert run.state.model_options == {"temperature": 0, "top_p": 0.5}


async def test_a_restored_run_keeps_its_options_and_takes_more(peer: Peer) -> None:
    peer.replies(HELLO, HELLO)
    loop = Agent(OpenAI("m", peer.url))
    run = loop.start("Hi.", options={"seed": 7})
    await run.step("event")
    again = restore(run.snapshot(), loop)
    await again
    more = restore(run.snapshot(), loop, options={"temperature": 0})
    await more
    assert [request.body.get("temperature") for request in peer.requests] == [None, 0]
    assert [request.body["seed"] for request in peer.requests] == [7, 7]
    resumed = next(event for event in more.events if isinstance(event, RunResumed))
    assert resumed.model_options == {"seed": 7, "temperature": 0}
    assert runs(more).options[0] == {"seed": 7, "temperature": 0}


def test_the_preview_of_a_request_has_the_options_of_the_run() -> None:
    run = SessionLoop(ScriptedLLM(["hello"])).start("Hi.", options={"seed": 7})
    assert run.preview().options == {"seed": 7}


async def test_nested_loops_have_the_options_too(peer: Peer) -> None:
    peer.replies(HELLO)
    run = LoopAgent("outer", [SessionLoop(OpenAI("m", peer.url), name="inner")], 1).start("Hi.", options={"seed": 7})
    await run
    assert peer.requests[0].body["seed"] == 7


@CLIENTS
def test_an_unknown_option_is_refused_at_the_start(peer: Peer, kind: Any, hello: Any) -> None:
    loop = SessionLoop(kind("m", peer.url))
    with pytest.raises(
        UsageError, match=r"temperatur_ is not an option of .* for 127\.0\.0\.1.*Did you mean temperature"
    ):
        loop.start("Hi.", options={"temperatur_": 0})
    assert not peer.requests


async def test_an_option_that_one_dialect_does_not_have_is_refused_by_it(peer: Peer) -> None:
    run = LoopAgent("outer", [SessionLoop(Anthropic("m", peer.url), name="inner")], 1).start("Hi.", options={"seed": 7})
    with pytest.raises(RunFailed, match=r"seed is not an option of Anthropic.*127\.0\.0\.1"):
        await run
    assert not peer.requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": []}, "pass tools to the loop"),
        ({"schema": {}}, "output="),
        ({"extra_headers": {"a": "b"}}, "they may have secrets"),
        ({"extra_body": {"api_key": "x"}}, "has a secret in 'api_key'"),
        ({"user": "sk-abcdefghijkl"}, "has a secret in 'user'"),
        ({"temperature": object()}, "takes JSON values"),
        ("temperature", "takes a mapping"),
        ({1: 2}, "takes a mapping"),
    ],
)
def test_options_that_cannot_be_recorded_are_refused(options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SessionLoop(ScriptedLLM(["hello"])).start("Hi.", options=options)


async def test_a_model_of_your_own_is_passed_the_options_or_refuses_them() -> None:
    asked: list[dict[str, Any]] = []

    class Own:
        async def stream(
            self, messages: Any, *, tools: Any = None, schema: Any = None, warmth: float = 1
        ) -> AsyncIterator[Any]:
            asked.append({"warmth": warmth})
            yield {"type": "text_delta", "content": "hello"}

    class Whole:
        def complete(self, messages: Any) -> str:
            return "hello"

    run = SessionLoop(Own()).start("Hi.", options={"warmth": 3})
    await run
    assert asked == [{"warmth": 3}]
    assert requests(run) == [{"warmth": 3}]
    with pytest.raises(UsageError, match=r"heat is not an option of Own: its stream\(\) does not take it"):
        SessionLoop(Own()).start("Hi.", options={"heat": 3})
    with pytest.raises(UsageError, match=r"warmth is not an option of Whole: its complete\(\) does not take it"):
        SessionLoop(Whole()).start("Hi.", options={"warmth": 3})
