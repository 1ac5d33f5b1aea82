"""The panel shows whether a run is driven: consistently at each moment, and correctly in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle

import pytest

from agentnb import Run
from agentnb.widgets.views.loops import Loops
from agentnb.widgets.views.status import status
from tests.widgets.support import session, until
from tests.widgets.test_panel import Shown


def test_the_status_and_the_buttons_belong_to_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(["Hello."])
    run.submit_step("event").result(10)
    answers: Iterator[bool] = cycle([True, False])
    monkeypatch.setattr(Run, "driven", property(lambda run: next(answers)))
    for _ in range(8):
        told = status(run, Loops(run.loop))
        assert (told["standing"] == "paused") is told["can"]["Step"] is not told["can"]["Pause"]


def test_after_a_step_by_code_the_panel_shows_that_the_run_is_paused() -> None:
    run = session(["Hello."])
    shown = Shown(run)
    asyncio.run(step(run))
    until(lambda: shown.panel.status["standing"] == "paused" and shown.panel.status["can"]["Step"])
    shown.panel.close()


async def step(run: Run) -> None:
    await run.step()


def test_a_listener_is_notified_when_driving_starts_and_stops() -> None:
    run = session(["Hello."])
    told: list[bool] = []
    stop = run.watch_driving(lambda: told.append(run.driven))
    run.submit_step("event").result(10)
    assert told == [True, False]
    stop()
    run.submit_step("event").result(10)
    assert told == [True, False]
    run.cancel()
