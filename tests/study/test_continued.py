"""A study continues after a crash or a restart: what has ended is not run again, and the rest goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import agentnb
from agentnb import SessionLoop, Store
from agentnb.core.events import CallEnd
from agentnb.testing import ScriptedLLM
from tests.study.loops import CALLS, asking, talking, written_study
from tests.worlds import until


async def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    models: list[ScriptedLLM] = []

    def make_loop() -> SessionLoop:
        models.append(ScriptedLLM(["done"]))
        return SessionLoop(models[-1], [])

    first = await agentnb.study(make_loop, ["go"], 5, store=store, progress=False)
    asked = sum(len(model.requests) for model in models)
    second = await agentnb.study(make_loop, ["go"], 5, store=store, progress=False)
    assert sum(len(model.requests) for model in models) == asked == 5
    assert [run.id for run in second] == [run.id for run in first]
    assert [run.output for run in second] == ["done"] * 5


async def test_an_ended_run_of_a_store_is_read_from_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    done = await agentnb.study(talking, ["go"], store=store, progress=False)
    (run,) = done
    assert run.run is None
    assert run.recording is not None
    assert run.recording.events[-1].terminal


async def test_a_run_that_a_limit_has_paused_stays_paused_in_a_study_that_continues(tmp_path: Path) -> None:
    def written() -> agentnb.Study:
        limits = {"turns": 1}
        return agentnb.study(
            asking,
            ["go"],
            2,
            approve=True,
            limits=limits,
            on_limit="ask",
            store=Store(tmp_path / "runs.db"),
            progress=False,
        )

    first = written().start()
    await until(lambda: first.counts["paused"] == 2)
    for one in first:
        assert one.run is not None
        one.run.abandon("the kernel is restarted")
    await first
    again = written().start()
    await until(lambda: again.counts["paused"] == 2 and all(one.run is not None for one in again))
    for one in again:
        assert one.run is not None
        assert one.run.state.limits == {"turns": 1}
        one.run.resume()
    assert (await again).counts["done"] == 2


async def test_a_run_that_a_person_has_paused_stays_paused_in_a_study_that_continues(tmp_path: Path) -> None:
    """A breakpoint pauses in the name of a person as well."""

    def written() -> agentnb.Study:
        return agentnb.study(asking, ["go"], store=Store(tmp_path / "runs.db"), progress=False)

    first = written().start()
    await until(lambda: bool(first.pending))
    (one,) = first
    assert one.run is not None
    one.run.pause("lunch")
    await until(lambda: one.is_paused)
    one.run.abandon("the kernel is restarted")
    await first
    again = written().start()
    await until(lambda: again.runs[0].is_paused)
    again.approve(again.pending)
    assert again.runs[0].is_paused
    assert again.resume() == 1
    assert (await again).counts["done"] == 1


async def test_a_run_that_ended_with_an_error_keeps_its_error(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")

    class Broken(agentnb.Loop):
        def advance(self, state: object) -> agentnb.core.events.Event:
            raise ZeroDivisionError("in the loop")

    await agentnb.study(Broken, ["go"], 2, store=store, progress=False)
    again = agentnb.study(Broken, ["go"], 2, store=store, progress=False)
    assert again.counts["failed"] == 2
    assert {run.error for run in again} == {"ZeroDivisionError: in the loop"}


async def test_a_fork_of_a_run_is_not_a_run_of_the_study(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    made = agentnb.study(asking, ["go"], store=store, progress=False).start()
    await until(lambda: len(made.pending) == 1)
    run = made.runs[0].run
    assert run is not None
    fork = run.fork(store=store)
    fork.reject(fork.pending[0])
    await fork
    made.approve(made.pending)
    await made
    again = agentnb.study(asking, ["go"], store=store, progress=False)
    assert [one.id for one in again] == [run.id]


@pytest.mark.slow
async def test_a_study_continues_after_its_process_was_killed(tmp_path: Path) -> None:
    database, file = tmp_path / "runs.db", tmp_path / "lines"

    for lines in (15, 45):
        _kill_after(lines, database, file)

    # A call whose outcome is unknown is asked about; the file says whether it happened.
    study = written_study(database, file)
    finished = {run.id for run in study if run.status == "done"}
    recorded = _ended_calls(study.store, finished)
    study.start()
    while not _is_over(study):
        for item in study.pending:
            assert item.unknown
            if item.arguments["line"] in _lines(file):
                study.answer(item, item.arguments["line"])
            else:
                study.approve(item)
        await asyncio.sleep(0)
    await study

    assert study.counts == {**dict.fromkeys(study.counts, 0), "done": 20}
    assert Counter(_lines(file)) == Counter(f"{run.arm['model']} {run.seed} {n}" for run in study for n in range(CALLS))
    assert {run.id for run in study} >= finished
    assert _ended_calls(study.store, finished) == recorded
    assert study.store is not None
    recorded_runs = study.store.find(tag="study:written")  # one that was killed before its first event has none
    assert len([info for info in recorded_runs if info.events]) == 20


def _kill_after(lines: int, database: Path, file: Path) -> None:
    """Let a process drive the study until the file has so many lines, and kill it. It does not get much further."""
    command = [sys.executable, "-m", "tests.study.loops", str(database), str(file), str(lines)]
    with subprocess.Popen(command) as process:
        patience = time.monotonic() + 60
        while len(_lines(file)) < lines and time.monotonic() < patience:
            time.sleep(0.0002)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed"


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _is_over(study: agentnb.Study) -> bool:
    return study.counts["done"] + study.counts["failed"] == len(study)


def _ended_calls(store: Store | None, ids: set[str | None]) -> dict[str, list[float]]:
    assert store is not None
    return {id: [event.time for event in store.events(id) if isinstance(event, CallEnd)] for id in ids if id}
