"""What a watcher fails with is its own affair, whatever it watches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentnb import replay
from agentnb.run.watchers import Watchers
from tests.run.agents import Agent

OWN_FAILURES = [LookupError, SystemExit, type("Panic", (BaseException,), {})]
"""The last is what a library written in Rust fails with."""


def failing(error: type[BaseException]) -> Any:
    def fail(news: Any) -> None:
        raise error("watcher down")

    return fail


@pytest.mark.parametrize("error", OWN_FAILURES)
async def test_one_that_fails_is_logged_and_the_run_and_the_others_go_on(
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
async def test_one_that_fails_is_logged_and_the_replay_and_the_others_go_on(
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
def test_what_ends_code_from_outside_goes_through(error: type[BaseException]) -> None:
    watchers = Watchers("r1")
    watchers.watch(failing(error))
    with pytest.raises(error):
        watchers.tell_each(None)


def test_one_that_ends_watching_as_it_is_told_hears_no_more_and_the_others_are_told() -> None:
    watchers = Watchers("r1")
    heard: list[str] = []
    stop = watchers.watch(lambda news: (heard.append(f"first {news}"), stop()))
    watchers.watch(lambda news: heard.append(f"second {news}"))
    watchers.tell_each("a")
    watchers.tell_each("b")
    assert heard == ["first a", "second a", "second b"]


def test_after_one_is_broken_off_the_others_are_still_told_in_order() -> None:
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


def test_they_are_told_of_a_fact_also_where_a_breakpoint_that_was_asked_about_it_is_broken_off() -> None:
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
