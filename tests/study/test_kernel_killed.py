"""A kernel or a scheduler is killed or interrupted while workers drive a study; the study continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cloudpickle")

from agentnb import Store
from agentnb.core.errors import WorkersLost
from agentnb.core.events import CallEnd
from tests.kernels import RELEASES
from tests.notebook.live_kernel import PATIENCE, LiveKernel
from tests.study.killed import killed_study, working_study
from tests.worlds import until as until_async

pytestmark = [pytest.mark.slow, pytest.mark.kernel, pytest.mark.sampled(1000)]

CALLS, REPEATS = 4, 10
POOL = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
executor = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
"""
CLUSTER = """
from distributed import Client, LocalCluster
executor = Client(LocalCluster(n_workers=2, threads_per_worker=4, dashboard_address=None))
"""
DASK = """
from distributed import Client
executor = Client({address!r})
"""
CELL = """
import asyncio, os
from pathlib import Path
import agentnb
from agentnb import SessionLoop, Store, tool
from agentnb.testing import ScriptedLLM, call

file = Path({lines!r})

def make_loop(model, seed):
    @tool(idempotent=False)
    async def write(line: str) -> str:
        with file.open("a") as open_file:
            open_file.write(f"{{os.getpid()}} {{line}}\\n")
        await asyncio.sleep(0.05)
        return line

    @tool(approve=True)
    def publish(line: str) -> str:
        return f"published {{line}}"

    def answer(messages):
        done = sum(message["role"] == "tool" for message in messages)
        name = "write" if done else "publish"
        line = f"{{model}}-{{seed}}-{{done}}"
        return "done" if done == CALLS + 1 else call(name, {{"line": line}}, id=f"c{{done}}")

    return SessionLoop(ScriptedLLM([answer], repeat=True), [write, publish])

study = agentnb.study(
    make_loop, ["go"], REPEATS, arms={{"model": ["small", "large"]}}, store=Store({store!r}), name="killed",
    executor=executor,
)
study.start()
""".replace("CALLS", str(CALLS)).replace("REPEATS", str(REPEATS))
DECIDE = """
import time
asked, until = [], time.monotonic() + 60
while study.is_running and time.monotonic() < until:
    for item in study.pending:
        if not item.unknown:
            if study.counts["running"] < 6:  # so that some runs have ended and some have not begun to write
                study.approve(item)
            continue
        asked.append(item.arguments["line"])
        happened = item.arguments["line"] in [line.split()[1] for line in file.read_text().splitlines()]
        study.answer(item, item.arguments["line"]) if happened else study.approve(item)
    await asyncio.sleep(0.01)
print(study.counts["done"], *asked)
"""


@pytest.fixture
def dask_address(tmp_path: Path) -> Iterator[str]:
    """Start a scheduler and two workers as a user does in a terminal, and return the scheduler's address."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    at_file = ["--scheduler-file", str(file)]
    started: list[list[str]] = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0", "--no-show", *at_file],
        *([*dask, "worker", "--nthreads", "2", "--no-dashboard", "--no-nanny", *at_file] for _ in range(2)),
    ]
    with ExitStack() as stack:
        for command in started:
            process = stack.enter_context(subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            until(file.exists)
        yield json.loads(file.read_text())["address"]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("kind", ["pool", "dask"])
def test_a_study_goes_on_in_a_new_kernel(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = POOL if kind == "pool" else DASK.format(address=request.getfixturevalue("dask_address"))
    file, store = tmp_path / "lines", tmp_path / "runs.db"
    cell = executor + CELL.format(lines=str(file), store=str(store))
    release = next(iter(RELEASES))

    with LiveKernel(release) as kernel:
        kernel.run(cell)
        pid = int(kernel.run("print(os.getpid())"))
        kernel.send(DECIDE)
        until(lambda: len(lines_in(file)) >= CALLS * REPEATS)
        os.kill(pid, signal.SIGKILL)

    with LiveKernel(release) as kernel:
        kernel.run(cell.replace("study.start()", ""))
        ended, *_ = kernel.run("print(study.counts['done'])").split()
        before = ended_calls(store)
        kernel.run("study.start()")
        done, *asked = kernel.run(DECIDE).split()

    # Nothing is lost, and no call that has ended is repeated: not in the file, and not in the recordings.
    assert 0 < int(ended) < int(done) == 2 * REPEATS
    assert len(lines_in(file)) == len(set(lines_in(file))) == 2 * REPEATS * CALLS
    after = ended_calls(store)
    assert len(after) == 2 * REPEATS
    assert all(after[id][: len(times)] == times for id, times in before.items())
    assert sum(len(times) == CALLS + 1 for times in before.values()) >= int(ended)
    # The workers had runs in the middle of a call, whose outcome nobody knows; such a call is asked about once.
    assert len(asked) == len(set(asked)) > 0
    with capsys.disabled():
        print(f"\n{kind}: killed when {ended} of {done} runs had ended; asked about {len(asked)} calls")


@pytest.mark.parametrize("executor", [POOL, CLUSTER], ids=["pool", "dask"])
def test_stop_in_another_cell_leaves_the_workers_alone(executor: str, tmp_path: Path) -> None:
    if executor is CLUSTER:
        pytest.importorskip("distributed")
    file = tmp_path / "lines"
    cell = executor + CELL.format(lines=str(file), store=str(tmp_path / "runs.db"))
    with LiveKernel(next(iter(RELEASES))) as kernel:
        kernel.run(
            cell.replace("sleep(0.05)", "sleep(1)").replace("executor=executor", "executor=executor, approve=True")
        )
        until(lambda: len(lines_in(file)) >= 8)
        for _ in range(2):
            stopped = kernel.send("import time\nprint('sleeps', flush=True)\ntime.sleep(60)")
            kernel.until_printed(stopped, "sleeps")
            kernel.manager.interrupt_kernel()  # a signal to all processes of the kernel's group
            assert kernel.reply(stopped)["status"] == "error"
        assert kernel.run("print(study.counts['running'], len(study.pending))").split() == ["8", "0"]
        assert kernel.run(DECIDE).split() == [str(2 * REPEATS)]  # and nothing was asked
    assert len(lines_in(file)) == len(set(lines_in(file))) == 2 * REPEATS * CALLS


async def test_a_study_whose_scheduler_has_gone_ends_and_continues_elsewhere(dask_address: str, tmp_path: Path) -> None:
    distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask")
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}), distributed.Client(dask_address) as client:
        study = working_study(tmp_path, client).start()
        await until_async(lambda: len(lines_in(tmp_path / "lines")) >= 10)
        with suppress(Exception):  # it does not answer any more
            client.run_on_scheduler(os._exit, 1)
        with pytest.raises(WorkersLost, match=r"lost the scheduler.*What was recorded is kept.*same name and store"):
            await study
    await killed_study(tmp_path, None, kills=0)


def lines_in(file: Path) -> list[str]:
    return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


def ended_calls(store: Path) -> dict[str, list[float]]:
    """Return, for each run of the store, the times at which its calls have ended."""
    opened = Store(store)
    infos = [info for info in opened.find(tag="study:killed") if info.events]
    found = {info.id: [event.time for event in opened.events(info.id) if isinstance(event, CallEnd)] for info in infos}
    opened.close()
    return found
