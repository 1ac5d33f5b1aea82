"""The tokens of an answer that breaks off were paid, so they count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import agentnb
from agentnb import SessionLoop
from agentnb.core.errors import RunCancelled, RunFailed
from agentnb.llms import Anthropic, OpenAI
from tests.llms.peer import CUT, END, HANG, Peer, delta, event, head

if TYPE_CHECKING:
    from collections.abc import Iterator

START = event(
    {"type": "message_start", "message": {"usage": {"input_tokens": 70, "output_tokens": 1}, "content": []}},
    "message_start",
)
TEXT = event(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "So"}}, "content_block_delta"
)
FINAL = event(
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}, "message_delta"
)
STOP = event({"type": "message_stop"}, "message_stop")
WHOLE = [head(), START, TEXT, FINAL, STOP, END]
USED = event({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 4}})


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def anthropic(peer: Peer) -> SessionLoop:
    return SessionLoop(Anthropic("m", peer.url))


async def test_the_tokens_of_a_connection_that_ends_count(peer: Peer) -> None:
    peer.replies([head(), START, TEXT, CUT])
    run = anthropic(peer).start("q")
    with pytest.raises(RunFailed):
        await run
    assert run.usage["input_tokens"] == 70
    assert agentnb.analysis.runs(run).input_tokens[0] == 70


async def test_an_answer_that_is_asked_for_again_is_counted_with_the_one_that_failed(peer: Peer) -> None:
    peer.replies([head(), START, TEXT, CUT], WHOLE)
    run = anthropic(peer).start("q")
    with pytest.raises(RunFailed):
        await run
    run.resume()
    await run
    assert run.usage == {"input_tokens": 140, "output_tokens": 10}
    assert agentnb.analysis.runs(run).output_tokens[0] == 10


async def test_the_tokens_of_a_cancelled_answer_count_also_in_a_run_that_continues(peer: Peer) -> None:
    peer.replies([head(), START, TEXT, HANG], WHOLE)
    loop = anthropic(peer)
    run = loop.start("q")
    async for chunk in run:
        if getattr(chunk, "type", None) == "text_delta" or "text" in str(chunk):
            break
    run.cancel()
    with pytest.raises(RunCancelled):
        await run
    assert run.usage["input_tokens"] == 70
    again = agentnb.restore(run.snapshot(), loop)
    await again
    assert again.usage["input_tokens"] == 140
    assert agentnb.analysis.runs(again).input_tokens[0] == 140


async def test_what_openai_reports_at_the_end_counts_once(peer: Peer) -> None:
    peer.replies([head(), delta(content="a"), delta("stop"), USED, event("[DONE]"), END])
    run = SessionLoop(OpenAI("m", peer.url)).start("q")
    await run
    assert run.usage == {"input_tokens": 50, "output_tokens": 4}


async def test_a_limit_of_tokens_counts_answers_that_broke_off(peer: Peer) -> None:
    peer.replies([head(), START, TEXT, CUT], WHOLE)
    run = anthropic(peer).start("q", limits={"tokens": 60})
    with pytest.raises(RunFailed):
        await run
    run.resume()
    with pytest.raises(agentnb.errors.LimitReached):
        await run
    assert len(peer.requests) == 1
