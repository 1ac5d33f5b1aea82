"""Fifty recordings of all kinds, each replayed twice: a replay has the recorded events, and performs nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from agentnb import AgentnbError, Snapshot, replay
from agentnb.core.events import Event, encode_event
from agentnb.tools import FunctionTool
from tests.analysis.recordings import decided_run
from tests.designs import WORLDS
from tests.worlds import until

Way = Callable[[Any], Awaitable[Any]]


async def to_the_end(run: Any) -> None:
    run.play()
    while not run.state.over:
        await until(lambda: run.pending or run.state.over)
        for waiting in list(run.pending):
            run.approve(waiting)


async def with_every_call_rejected(run: Any) -> None:
    run.play()
    while not run.state.over:
        await until(lambda: run.pending or run.state.over)
        for waiting in list(run.pending):
            run.reject(waiting, reason="not now")


async def with_calls_decided_in_every_way(run: Any) -> None:
    ways = cycle(
        [
            lambda waiting: run.edit(waiting, {**waiting.arguments, "n": 7}),
            lambda waiting: run.replace(waiting, "double", {"n": 9}),
            lambda waiting: run.answer(waiting, {"given": ["ü", None, 1.5]}),
            lambda waiting: run.approve(waiting),
        ]
    )
    run.play()
    while not run.state.over:
        await until(lambda: run.pending or run.state.over)
        for waiting in list(run.pending):
            next(ways)(waiting)


async def step_by_step_with_a_word_said(run: Any) -> None:
    for _ in range(6):
        await run.step()
    run.steer("and be brief")
    await to_the_end(run)


async def cancelled_halfway(run: Any) -> None:
    for _ in range(9):
        await run.step()
    run.cancel("enough")
    with pytest.raises(AgentnbError):
        await run


WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        to_the_end,
        with_every_call_rejected,
        with_calls_decided_in_every_way,
        step_by_step_with_a_word_said,
        cancelled_halfway,
    )
}


async def record_all() -> dict[str, Any]:
    runs: dict[str, Any] = {"decided": await decided_run()}
    for world, make in WORLDS.items():
        for way, go in WAYS.items():
            run = make().start("go", name=f"{world}, {way}")
            await go(run)
            runs[f"{world}, {way}"] = run
    return runs


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return asyncio.run(record_all())


def digest(events: Iterable[Event]) -> str:
    return hashlib.sha256(b"\n".join(encode_event(event) for event in events)).hexdigest()


@pytest.fixture
def nothing_may_happen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse sockets, and return a list of the tools that are bound to a call."""
    done: list[str] = []

    def no_socket(*_: Any, **__: Any) -> None:
        raise AssertionError("A replay has opened a socket.")

    monkeypatch.setattr(socket.socket, "connect", no_socket)
    invoke = FunctionTool._invoke
    monkeypatch.setattr(FunctionTool, "_invoke", lambda self, *given: (done.append(self.name), invoke(self, *given))[1])
    return done


def test_the_recordings_are_more_than_fifty_and_cover_all_decisions(runs: dict[str, Any]) -> None:
    assert len(runs) > 50
    assert {run.stop_reason for run in runs.values()} >= {"completed", "cancelled"}
    kinds = {event.type for run in runs.values() for event in run.events}
    assert kinds >= {"approval_decision", "queued", "state_update", "phase_change", "cancel", "call_end", "model_end"}
    decided = {event.decision for run in runs.values() for event in run.events if event.type == "approval_decision"}
    assert decided == {"approve", "reject", "edit", "replace", "answer"}
    assert sum(any(event.path for event in run.events) for run in runs.values()) > 10


@pytest.mark.parametrize("checked", [False, True], ids=["as it is", "against its loop"])
def test_a_replay_has_identical_events_and_performs_nothing(
    runs: dict[str, Any], nothing_may_happen: list[str], checked: bool
) -> None:
    for name, run in runs.items():
        replayed = replay(run, run.loop) if checked else replay(run)
        while replayed.step():
            pass
        assert digest(replayed.events) == digest(run.events), name
        assert replayed.state == run.state, name
    assert nothing_may_happen == []


def test_a_replay_in_another_process_has_identical_events(runs: dict[str, Any], tmp_path: Path) -> None:
    for number, run in enumerate(runs.values()):
        run.snapshot().save(tmp_path / f"{number}.agentnb.json")
    script = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from tests.test_recordings import replayed\n"
        f"print(json.dumps(replayed(Path({str(tmp_path)!r}))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == {
        f"{number}.agentnb.json": digest(run.events) for number, run in enumerate(runs.values())
    }


def replayed(folder: Path) -> dict[str, str]:
    """Replay the recordings of a folder event by event, in a process that has made none of them."""
    found = {}
    for path in folder.iterdir():
        walked = replay(Snapshot.load(path))
        while walked.step():
            pass
        found[path.name] = digest(walked.events)
    return found
