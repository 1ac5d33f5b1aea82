"""A second notebook makes the same study, and decides the questions of the runs that the first one drives."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import AlreadyDecided, Store, UsageError
from agentnb.core.events import ApprovalDecision
from agentnb.studies import Study
from tests.study.loops import asking
from tests.widgets.study_pages import RecordedStudyPanel
from tests.worlds import until


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """The store of two notebooks, opened in each."""
    with closing(Store(tmp_path / "runs.db")) as first, closing(Store(tmp_path / "runs.db")) as second:
        yield first, second


def asking_study(store: Store, repeats: int = 3) -> Study:
    return agentnb.study(asking, ["go"], repeats, store=store, name="asking", progress=False)


def decisions(study: Study) -> list[ApprovalDecision]:
    recordings = [run.recording for run in study]
    events = [event for recording in recordings if recording is not None for event in recording.events]
    return [event for event in events if isinstance(event, ApprovalDecision)]


def is_no_longer_followed() -> bool:
    gc.collect()
    return all(thread.name != "agentnb study elsewhere" for thread in threading.enumerate())


async def test_a_second_notebook_decides_the_questions_of_a_study(stores: tuple[Store, Store]) -> None:
    driven = asking_study(stores[0]).start()
    await until(lambda: driven.counts["waiting"] == 3)
    second = asking_study(stores[1])
    await until(lambda: len(second.pending) == 3)
    assert {item.run_id for item in second.pending} == {run.id for run in driven}
    first, *others = second.pending
    assert await asyncio.to_thread(second.approve, first, reviewer="Ada") == 1
    driven.approve(others[0], reviewer="Bob")
    with pytest.raises(AlreadyDecided, match="is already decided: Bob approved it at"):
        await asyncio.to_thread(second.reject, others[0], "no")
    with pytest.raises(UsageError, match="for a study that this process drives"):
        second.approve(others[1], remember="tool", everywhere=True)
    assert await asyncio.to_thread(second.reject, second.pending, "no", reviewer="Ada") == 1
    await driven
    assert sorted((one.decision, str(one.reviewer)) for one in decisions(driven)) == [
        ("approve", "Ada"),
        ("approve", "Bob"),
        ("reject", "Ada"),
    ]
    assert second.pending == []


async def test_a_run_that_starts_later_is_found_and_a_study_that_is_started_here_is_not_elsewhere(
    stores: tuple[Store, Store],
) -> None:
    driven = agentnb.study(asking, ["go"], 1, store=stores[0], name="asking", progress=False).start()
    await until(lambda: driven.counts["waiting"] == 1)
    second = asking_study(stores[1])
    await until(lambda: len(second.pending) == 1)
    driven.cancel()
    await driven
    more = asking_study(stores[0]).start()  # continues the cancelled one, and starts two more
    await until(lambda: len(second.pending) == 3)
    assert second.run_of(second.pending[-1]).status == "waiting"
    more.cancel()
    await more
    second.start()
    await until(lambda: second.counts["waiting"] == 3)
    assert second.approve(second.pending, remember="tool", everywhere=True) == 3
    await second
    assert [run.output for run in second] == ["a is done"] * 3


async def test_the_panel_of_the_second_notebook_shows_and_decides_what_waits(stores: tuple[Store, Store]) -> None:
    driven = asking_study(stores[0]).start()
    await until(lambda: driven.counts["waiting"] == 3)
    second = asking_study(stores[1])
    panels: list[Any] = [RecordedStudyPanel(second, parts=["inbox"])]
    try:
        await until(lambda: len(panels[0].pending) == 3)
        panel = panels[0]
        question = panel.pending[0]
        verdict = {name: question[name] for name in ("run", "path", "event", "id", "attempt", "digest")}
        verdict |= {"type": "decision", "token": "t", "decision": "approve", "seconds": 2.5}
        agentnb.reviewer("Ada")
        await asyncio.to_thread(panel._receive, panel, verdict, [])
        await until(lambda: len(panels[0].pending) == 2)  # the page gets the others without a reload
    finally:
        agentnb.reviewer(None)
        panels.pop().close()
    (decision,) = decisions(driven)
    assert (decision.by, decision.reviewer, decision.seconds) == ("human", "Ada", 2.5)
    driven.cancel()
    await driven
    del panel, second
    await until(is_no_longer_followed)
