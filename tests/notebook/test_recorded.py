"""Recordings of runs that another process drives: one thread follows all of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentnb import Run, SessionLoop, Store, UsageError, tool
from agentnb.notebook import stored_run
from agentnb.notebook.attaching import headline
from agentnb.notebook.stored_run import RecordedRun
from agentnb.testing import ScriptedLLM, call

Make = Callable[[str], "tuple[Run, RecordedRun]"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Give a run of this name, of which one event has happened, and its recording as another process sees it."""
    monkeypatch.setattr(stored_run, "PERIOD", 0.01)
    store = Store(tmp_path / "runs.db")

    def make(name: str) -> tuple[Run, RecordedRun]:
        run = SessionLoop(ScriptedLLM(["Hello."])).start("hi", name=name, store=store)
        asyncio.run(run.step())
        return run, RecordedRun(store, next(info for info in store.runs() if info.name == name))

    yield make
    store.close()


ONLY_OF_RUNS = [
    name
    for name in dir(Run)
    if not name.startswith("_") and callable(getattr(Run, name)) and not hasattr(RecordedRun, name)
]


def test_a_method_that_only_a_run_has_raises_and_says_how_to_resume(made: Make) -> None:
    _, seen = made("seen")
    for name in ONLY_OF_RUNS:
        with pytest.raises(UsageError, match=rf"no {name}\(\). agentnb.attach\('seen', loop\) resumes it here"):
            getattr(seen, name)
        assert not hasattr(seen, name)


def test_a_run_of_a_restarted_kernel_is_not_shown_as_running(made: Make) -> None:
    _, seen = made("seen")
    assert "running a moment ago" in headline(seen)


def test_a_recorded_run_has_the_same_decided_calls_as_the_run(tmp_path: Path) -> None:
    @tool(approve=True)
    def pay(amount: int) -> int:
        """Pay."""
        return amount

    store = Store(tmp_path / "runs.db")
    loop = SessionLoop(ScriptedLLM([[call("pay", {"amount": 1}, id="p")], "done"]), [pay])
    run = loop.start("hi", store=store)
    asyncio.run(run.step("turn"))
    run.approve("p")
    seen = RecordedRun(store, store.runs()[0])
    assert seen.decided == run.decided != []
    store.close()


def test_a_breakpoint_on_a_recorded_run_is_refused_with_an_alternative(made: Make) -> None:
    run, seen = made("seen")
    asyncio.run(run.step("turn"))
    seen.refresh()
    with pytest.raises(UsageError, match=r"Its at\(-1\) returns a replay"):
        seen.breakpoints.add("model_end")
    assert len(seen.breakpoints) == 0
    walked = seen.at(-1)
    walked.breakpoints.add("model_end")
    assert walked.continue_() is walked.breakpoints[0]


def heard_of(run: RecordedRun) -> threading.Event:
    """Is set at the next event."""
    heard = threading.Event()
    run.watch(lambda event: heard.set())
    return heard


@pytest.mark.parametrize("error", [ValueError, type("Panic", (BaseException,), {}), KeyboardInterrupt])
def test_after_a_watcher_has_failed_recordings_are_still_followed(made: Make, error: type[BaseException]) -> None:
    (run, bad), (other, good) = made("bad"), made("good")
    failed = threading.Event()

    def fail(event: Any) -> None:
        failed.set()
        raise error("watcher down")

    bad.watch(fail)
    asyncio.run(run.step())
    assert failed.wait(60)
    heard = heard_of(good)
    asyncio.run(other.step())
    assert heard.wait(60)


def test_a_failing_watcher_does_not_affect_other_watchers(made: Make) -> None:
    run, bad = made("bad")
    bad.watch(lambda event: 1 / 0)
    for _ in range(2):
        heard = heard_of(bad)
        asyncio.run(run.step())
        assert heard.wait(60)


def test_a_watcher_added_while_the_last_one_leaves_is_notified(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = made("seen")
    heard, is_late = threading.Event(), threading.Event()
    stop = seen.watch(lambda event: None)
    refresh, looked = RecordedRun.refresh, threading.Event()

    def note(self: RecordedRun) -> bool:
        new = refresh(self)
        if not self.watched:
            looked.set()
        return new

    class Lock:
        """The lock of the follower, which a new watcher takes first."""

        def __init__(self) -> None:
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if looked.is_set() and not is_late.is_set():
                is_late.set()
                seen.watch(lambda event: heard.set())
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    monkeypatch.setattr(stored_run, "_lock", Lock())
    monkeypatch.setattr(RecordedRun, "refresh", note)
    stop()
    assert is_late.wait(60)
    asyncio.run(run.step())
    assert heard.wait(60)


FORKING = """
import asyncio, multiprocessing, threading

from agentnb import SessionLoop, Store
from agentnb.notebook import stored_run
from agentnb.notebook.attaching import headline
from agentnb.testing import ScriptedLLM

stored_run.PERIOD = 0.01


def follow(path):
    store, heard = Store(path), threading.Event()
    run = SessionLoop(ScriptedLLM(["Hello."])).start("hi", store=store)
    asyncio.run(run.step())
    seen = stored_run.RecordedRun(store, store.runs()[0])
    seen.watch(lambda event: heard.set())
    asyncio.run(run.step())
    return heard.wait(20), seen, run


def heard_in(path):
    return follow(path)[0]


first = follow("first.db")
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(first[0], pool.apply(heard_in, ["second.db"]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this system")
def test_a_forked_process_follows_its_own_recordings(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert ran.stdout.strip() == "True True", ran.stderr
