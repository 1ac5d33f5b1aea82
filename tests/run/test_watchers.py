"""The failure of a watcher does not affect the run or other watchers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import replay
from agentnb.run.watchers import Watchers
from tests.run.agents import Agent

OWN_FAILURES = [LookupError, SystemExit, type("Panic", (BaseException,), {})]
"""The last one is the exception of a library written in Rust."""


def failing(error: type[BaseException]) -> Any:
    def fail(news: Any) -> None:
        raise error("watcher down")

    return fail


@pytest.mark.parametrize("error", OWN_FAILURES)
async def test_a_failing_watcher_is_logged_and_the_run_and_other_watchers_continue(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    run = Agent().two_turns().start("hi")
    told: list[Any] = []
    run.watch(failing(error))
    run.watch(told.append)
    assert await run == "done"
    assert [news for news in told if news.type != "delta"][-1] == run.events[-1]
    assert "watcher down" in caplog.text


@pytest.mark.parametrize("error", OWN_FAILURES)
async def test_a_failing_watcher_is_logged_and_the_replay_and_other_watchers_continue(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    run = Agent().two_turns().start("hi")
    await run
    recorded = replay(run)
    told: list[Any] = []
    recorded.watch(failing(error))
    recorded.watch(told.append)
    assert recorded.step() == told == [run.events[0]]
    recorded.to(-1)
    assert told == [run.events[0], None]
    assert caplog.text.count("watcher down") >= 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exit_or_an_interrupt_in_a_watcher_is_raised(error: type[BaseException]) -> None:
    watchers = Watchers("r1")
    watchers.watch(failing(error))
    with pytest.raises(error):
        watchers.tell_each(None)


def test_a_watcher_that_unsubscribes_when_notified_gets_no_more_and_others_do() -> None:
    watchers = Watchers("r1")
    heard: list[str] = []
    stop = watchers.watch(lambda news: (heard.append(f"first {news}"), stop()))
    watchers.watch(lambda news: heard.append(f"second {news}"))
    watchers.tell_each("a")
    watchers.tell_each("b")
    assert heard == ["first a", "second a", "second b"]


def test_after_an_interrupted_watcher_the_others_are_notified_in_order() -> None:
    run = Agent().two_turns().start("hi")
    run.steer("first")
    told: list[int] = []

    def say_more(news: Any) -> None:
        told.append(news.seq)
        if news.seq == 2:
            run.follow_up("at once")

    def stop(news: Any) -> None:
        if news.seq == 2:
            raise KeyboardInterrupt

    run.watch(say_more)
    run.watch(stop)
    with pytest.raises(KeyboardInterrupt):
        run.steer("second")
    run.steer("third")
    assert told == [2, 3, 4]


def test_watchers_are_notified_of_an_event_whose_breakpoint_check_is_interrupted() -> None:
    run = Agent().two_turns().start("hi")
    run.steer("first")
    told: list[Any] = []

    def stop(event: Any, state: Any) -> None:
        if event.seq == 2:
            raise KeyboardInterrupt

    run.breakpoints.add(stop)
    run.watch(told.append)
    with pytest.raises(KeyboardInterrupt):
        run.steer("second")
    run.steer("third")
    assert told == run.events[2:]
