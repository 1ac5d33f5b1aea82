"""The panel shows whether a run is driven: consistently at each moment, and correctly in the end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from agentnb import Run
from agentnb.testing import delay, text
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


def test_a_run_that_ends_while_the_status_is_read_is_shown_as_ended_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    run = session(["Hello."])
    run.submit_step("event").result(10)
    pending = run.pending

    def read_while_the_run_is_cancelled(run: Run) -> Any:
        cancelling = threading.Thread(target=run.cancel)
        cancelling.start()
        cancelling.join(0.5)
        return pending

    monkeypatch.setattr(Run, "pending", property(read_while_the_run_is_cancelled))
    told = status(run, Loops(run.loop))
    assert (told["standing"] == "cancelled") is told["over"] is not told["can"]["Cancel"]


def test_a_pause_requested_by_code_is_shown_while_a_call_is_in_flight() -> None:
    run = session([[*text("Hello."), delay(60)], "Done."])
    shown = Shown(run)
    run.play()
    until(lambda: shown.panel.status["standing"] == "running" and run.state.requests)
    time.sleep(0.2)  # all events so far are shown
    run.pause()
    until(lambda: shown.panel.status["standing"] == "pausing")
    run.resume()
    until(lambda: shown.panel.status["standing"] == "running")
    run.cancel()
    shown.panel.close()
