"""The static copy of a live panel in the notebook file, with several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from agentnb import replay
from agentnb.widgets import display
from agentnb.widgets.display import NOTHING, SavedCopy
from tests.widgets.support import session


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The contents of the copy, oldest first. Time does not advance, so that the copy is updated only by the test."""
    publisher = CapturingDisplayPublisher()
    monkeypatch.setattr(InteractiveShell.instance(), "display_pub", publisher)
    monkeypatch.setattr(display, "REST", 3600.0)
    yield lambda: [output["data"] for output in publisher.outputs]
    InteractiveShell.clear_instance()


@pytest.fixture
def while_drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """The actions during the drawing of the next copies, one for each."""
    happens: list[Callable[[], object]] = []
    draw = display.static_html

    def static_html(*given: Any, **options: Any) -> str:
        page = draw(*given, **options)
        if happens:
            happens.pop(0)()
        return page

    monkeypatch.setattr(display, "static_html", static_html)
    yield happens
    assert happens == [], "it was not drawn"


def test_a_copy_removed_while_it_is_drawn_stays_removed(
    displayed: Callable[[], list[dict[str, Any]]], while_drawn: list[Callable[[], object]]
) -> None:
    copy = SavedCopy(session(["Hello."]), "key")
    while_drawn.append(copy.remove)
    copy.update()
    assert displayed()[-1] == NOTHING


def test_a_copy_stopped_while_it_is_drawn_is_not_changed(
    displayed: Callable[[], list[dict[str, Any]]], while_drawn: list[Callable[[], object]]
) -> None:
    copy = SavedCopy(session(["Hello."]), "key")
    before = displayed()
    while_drawn.append(copy.stop)
    copy.update()
    assert displayed() == before


def test_of_two_concurrent_drawings_the_last_started_is_kept(
    displayed: Callable[[], list[dict[str, Any]]], while_drawn: list[Callable[[], object]]
) -> None:
    run = session(["Hello."])
    run.submit_step().result(30)
    copy = SavedCopy(run, "key")

    def go_on() -> None:
        run.submit_step("turn").result(30)
        copy.update()

    while_drawn.append(go_on)
    copy.update()
    assert "Turn 1" in displayed()[-1]["text/html"]
    copy.stop()


def test_an_event_while_an_update_is_scheduled_schedules_no_second_update(
    displayed: Callable[[], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session(["Hello."])
    run.result(30)
    recorded, timers = replay(run), []

    class Timer(threading.Timer):
        """While the first timer is created, the replay moves."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            timers.append(self)
            if len(timers) == 1:
                recorded.step()

    monkeypatch.setattr("agentnb.widgets.display.threading.Timer", Timer)
    copy = SavedCopy(recorded, "key")
    assert len(timers) == 1
    copy.stop()
