"""A message to a run whose nested loops start and end is delivered once, also after a restore or a fork."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from agentnb import LoopAgent, Run, SessionLoop, Snapshot, restore
from agentnb.loops.base import Loop


class Repeats:
    """A model that answers with the messages that it was sent."""

    async def stream(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> AsyncIterator[Mapping[str, Any]]:
        told = " ".join(str(message["content"]) for message in messages if message["role"] == "user")
        yield {"type": "text_delta", "content": told}


def two_sessions(max_turns: int | None) -> Loop:
    """Return two loops in sequence: the first gets all messages or, with one turn only, leaves some to the second."""
    first = SessionLoop(Repeats(), name="first", max_turns=max_turns)
    return LoopAgent("outer", [first, SessionLoop(Repeats(), name="second")], 1)


async def spoken_to(max_turns: int | None) -> Run:
    run = two_sessions(max_turns).start("go")
    for text in ("S1", "S2"):
        run.steer(text)
        run.follow_up(f"{text} later")
    await run
    return run


def conversation(run: Run) -> list[Any]:
    return [message.content for message in run.messages]


def said_until(run: Run) -> int:
    """Return the number of the event of the last user message."""
    return next(event.seq for event in run.events if event.type not in ("run_start", "queued")) - 1


@pytest.mark.parametrize("max_turns", [None, 1])
async def test_a_run_restored_at_any_event_gets_each_message_once(max_turns: int | None) -> None:
    run = await spoken_to(max_turns)
    for seq in range(said_until(run), len(run.events) - 1):
        snapshot = Snapshot.from_json(run.at(seq).snapshot().to_json())
        again = restore(snapshot, two_sessions(max_turns))
        await again
        assert conversation(again) == conversation(run), f"restored behind {run.events[seq]!r}"


@pytest.mark.parametrize("max_turns", [None, 1])
async def test_a_fork_at_any_event_gets_each_message_once(max_turns: int | None) -> None:
    run = await spoken_to(max_turns)
    for seq in range(said_until(run), len(run.events) - 1):
        fork = run.fork(at=seq, loop=two_sessions(max_turns))
        await fork
        assert conversation(fork) == conversation(run), f"forked behind {run.events[seq]!r}"


async def test_a_message_sent_before_a_restored_run_continues_is_delivered_last() -> None:
    run = await spoken_to(None)
    begun = next(event.seq for event in run.events if event.type == "run_start" and event.path == "first")
    for seq in range(begun, begun + 5):
        again = restore(run.at(seq).snapshot(), two_sessions(None))
        again.steer("S3")
        await again
        steered = [event.message.content for event in again.events if getattr(event, "origin", "") == "steering"]
        assert steered == ["S1", "S2", "S3"], f"restored behind {run.events[seq]!r}"


def passes() -> Loop:
    """The same session again and again, with one turn each time."""
    return LoopAgent("outer", [SessionLoop(Repeats(), name="first", max_turns=1)], 3)


async def test_equal_messages_are_delivered_as_often_as_they_were_sent() -> None:
    run = passes().start("go")
    for _ in range(4):
        run.steer("again")
        run.follow_up("again later")
    await run
    for seq in range(said_until(run), len(run.events) - 1):
        again = restore(run.at(seq).snapshot(), passes())
        await again
        assert conversation(again) == conversation(run), f"restored behind {run.events[seq]!r}"
