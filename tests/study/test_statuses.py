"""One word for the status of a run, in each process; failed, paused and cancelled runs go on only on request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentnb
from agentnb import SessionLoop, UsageError
from agentnb.testing import ScriptedLLM
from tests.study.loops import asking, talking
from tests.worlds import until


def study(path: Path, make_loop: Any, repeats: int = 1, **options: Any) -> agentnb.Study:
    return agentnb.study(make_loop, ["go"], repeats, store=path / "runs.db", name="pilot", progress=False, **options)


class Line:
    """A model that is down until it is mended."""

    def __init__(self) -> None:
        self.is_down = True

    def loop(self) -> SessionLoop:
        def answer(messages: Any) -> str:
            if self.is_down:
                raise ConnectionError("down")
            return "up"

        return SessionLoop(ScriptedLLM([answer], repeat=True), [])


def statuses(of: agentnb.Study) -> dict[str, int]:
    return {status: number for status, number in of.counts.items() if number}


async def test_a_run_whose_model_has_failed_is_failed_in_the_next_process_too(tmp_path: Path) -> None:
    line = Line()
    first = await study(tmp_path, line.loop)
    again = study(tmp_path, line.loop)
    assert statuses(first) == statuses(again) == {"failed": 1}
    assert first.runs[0].error == again.runs[0].error
    await again
    assert statuses(again) == {"failed": 1}


async def test_failed_runs_of_a_store_are_run_again_with_retry_failed(tmp_path: Path) -> None:
    line = Line()
    await study(tmp_path, line.loop)
    line.is_down = False
    mended = await study(tmp_path, line.loop, retry_failed=True)
    assert [run.output for run in mended] == ["up"]


async def test_a_run_that_ended_with_an_error_begins_anew_with_retry_failed(tmp_path: Path) -> None:
    is_broken = True

    class Breaking(agentnb.Loop):
        def advance(self, state: Any) -> agentnb.core.events.Event:
            if is_broken:
                raise ZeroDivisionError("in the loop")
            return agentnb.core.events.RunEnd(reason="completed", output="fine")

    broken = await study(tmp_path, Breaking)
    assert statuses(broken) == {"failed": 1}
    before = broken.runs[0].id
    is_broken = False
    await broken.start(retry_failed=True)
    assert (broken.runs[0].output, broken.runs[0].id == before) == ("fine", False)


async def test_a_run_at_its_limit_is_paused_and_stays_paused_in_the_next_process(tmp_path: Path) -> None:
    def limited() -> agentnb.Study:
        return study(tmp_path, asking, approve=True, limits={"turns": 1}, on_limit="ask")

    first = limited().start()
    await until(lambda: first.counts["paused"] == 1)
    assert first.runs[0].run is not None
    first.runs[0].run.abandon("the kernel is restarted")
    await first
    again = limited()
    assert statuses(again) == {"paused": 1}
    again.start()
    await until(lambda: again.runs[0].is_paused)
    assert again.resume() == 1
    assert statuses(await again) == {"done": 1}


async def test_the_table_of_runs_has_the_words_of_the_study(tmp_path: Path) -> None:
    made = study(tmp_path, asking, 3).start()
    await until(lambda: made.counts["waiting"] == 3)
    made.cancel(made["0.1"])
    await until(lambda: made.counts["cancelled"] == 1)
    assert (
        list(agentnb.analysis.runs(made).outcome) == [run.status for run in made] == ["waiting", "cancelled", "waiting"]
    )
    made.cancel()
    await made


async def test_one_run_is_cancelled_and_the_others_go_on(tmp_path: Path) -> None:
    made = study(tmp_path, asking, 3).start()
    await until(lambda: made.counts["waiting"] == 3)
    made.cancel(made["0.1"])
    await until(lambda: made.counts["cancelled"] == 1)
    made.approve(made.pending)
    assert [run.status for run in await made] == ["done", "cancelled", "done"]


async def test_a_run_that_is_run_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    made = await study(tmp_path, talking, 2)
    first, other = (run.id for run in made)
    await made.again(made.runs[0])
    assert made.runs[0].id != first
    assert len(agentnb.analysis.runs(made)) == 2
    later = study(tmp_path, talking, 2)
    assert [run.id for run in later] == [made.runs[0].id, other]


async def test_an_active_run_is_not_run_again(tmp_path: Path) -> None:
    made = study(tmp_path, asking).start()
    await until(lambda: made.counts["waiting"] == 1)
    with pytest.raises(UsageError, match=r"is active. Call study.cancel\(run\) first"):
        made.again(made.runs[0])
    made.approve(made.pending)
    await made
