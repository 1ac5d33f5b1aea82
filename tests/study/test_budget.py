"""The limits of a study over all its runs."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.core.errors import LimitReached, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@tool
def look(what: str) -> str:
    """Look at something."""
    return what


class Dear:
    """A model whose answers cost a dollar and a hundred tokens. It makes `calls` calls before it answers."""

    def __init__(self, calls: int = 0) -> None:
        self.calls = calls
        self.asked = 0
        self.lock = threading.Lock()

    async def stream(self, messages: list[dict[str, Any]], **_: Any) -> AsyncIterator[dict[str, Any]]:
        with self.lock:
            self.asked += 1
        await asyncio.sleep(0)
        made = sum(message["role"] == "tool" for message in messages)
        if made < self.calls:
            yield {"type": "tool_call", "id": f"c{made}", "name": "look", "arguments": {"what": "x"}}
        else:
            yield {"type": "text_delta", "content": "done"}
        yield {"type": "usage", "input_tokens": 90, "output_tokens": 10, "cost": 1.0}
        yield {"type": "stop", "reason": "tool_calls" if made < self.calls else "stop"}


def dear_study(model: Dear, runs: int, **options: Any) -> Any:
    return agentnb.study(lambda: SessionLoop(model, [look]), ["q"], runs, progress=False, **options)


def test_no_request_begins_at_the_limit_of_a_study() -> None:
    model = Dear()
    study = dear_study(model, 30, at_once=5, limits={"total_cost": 10})
    with pytest.raises(LimitReached, match="10 total_cost of the study"):
        study.result(30)
    assert model.asked == 10
    assert study.spent == {"total_cost": 10.0, "total_tokens": 1000.0}


def test_runs_that_are_at_work_finish_their_requests_and_wait() -> None:
    model = Dear(calls=9)
    study = dear_study(model, 4, at_once=4, limits={"total_tokens": 2000})
    with pytest.raises(LimitReached):
        study.result(30)
    assert 20 <= model.asked <= 23  # at the most, each of the other three has a request under way
    assert study.counts["running"] == 0
    assert all(run.is_paused for run in study)


def test_a_person_lifts_the_limit_by_saying_how_much() -> None:
    model = Dear(calls=3)
    study = dear_study(model, 4, at_once=4, limits={"total_cost": 6})
    with pytest.raises(LimitReached):
        study.result(30)
    with pytest.raises(UsageError, match=r"study\.resume\(total_cost=\.\.\.\)"):
        study.resume()
    study.resume(total_cost=100)
    assert study.result(30).counts["done"] == 4
    assert model.asked == 16


def test_the_limit_is_reached_again_after_the_amount_that_was_allowed() -> None:
    model = Dear()
    study = dear_study(model, 30, at_once=5, limits={"total_cost": 10})
    for allowed in (10, 15):
        with pytest.raises(LimitReached):
            study.result(30)
        assert model.asked == allowed
        study.resume(total_cost=5)


def test_a_run_that_is_resumed_by_itself_stays_below_the_limit_of_the_study() -> None:
    model = Dear(calls=9)
    study = dear_study(model, 1, limits={"total_cost": 3})
    with pytest.raises(LimitReached):
        study.result(30)
    study.runs[0].run.resume()
    with pytest.raises(LimitReached):
        study.result(30)
    assert model.asked == 3


def test_a_continued_study_counts_what_the_store_has(tmp_path: Path) -> None:
    first, again = Dear(calls=1), Dear(calls=1)
    store = Store(tmp_path / "runs.db")
    dear_study(first, 3, store=store).result(30)
    study = dear_study(again, 10, store=store, at_once=1, limits={"total_cost": 10})
    with pytest.raises(LimitReached):
        study.result(30)
    assert first.asked + again.asked == 10


def test_the_limit_of_each_run_stays_that_of_each_run() -> None:
    model = Dear(calls=9)
    study = dear_study(model, 2, limits={"cost": 3, "total_cost": 100})
    assert study.result(30).spent["total_cost"] == 6


def test_a_run_has_no_limit_of_a_study() -> None:
    with pytest.raises(UsageError, match="a whole study"):
        SessionLoop(Dear()).start("q", limits={"total_cost": 1})


def test_a_study_at_its_limit_can_be_cancelled() -> None:
    study = dear_study(Dear(calls=9), 3, limits={"total_cost": 3})
    with pytest.raises(LimitReached):
        study.result(30)
    study.cancel()
    assert study.result(30).counts["running"] == 0


def test_a_log_file_has_the_cost_in_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    agentnb.study(lambda: SessionLoop(Dear()), ["q"], 4).result(30)
    assert "4 of 4 done" in (said := capsys.readouterr().err)
    assert "$4 of about $4" in said
