"""Runs in a real kernel: they use a separate thread, and a cell that waits for a run stays usable."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernels import RELEASES
from tests.notebook.live_kernel import LiveKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

SETUP = """
import asyncio, threading, time
import agentnb
from agentnb.testing import ScriptedLLM, call, delay, text

ran = []

@agentnb.tool(approve=True)
def write(path: str) -> str:
    "Write a file."
    ran.append(path)
    return f"wrote {path}"

@agentnb.tool
async def nap(seconds: float) -> str:
    ran.append("nap")
    await asyncio.sleep(seconds)
    return "rested"

def session(*turns):
    return agentnb.SessionLoop(ScriptedLLM(turns), [write, nap])
"""


@pytest.fixture
def cells(kernel: LiveKernel) -> Iterator[LiveKernel]:
    kernel.run(SETUP)
    yield kernel
    kernel.run("agentnb.run.latest_run() and agentnb.run.latest_run().cancel()")


def test_a_run_outlives_the_cell_that_started_it(cells: LiveKernel) -> None:
    cells.run("run = session([call('nap', {'seconds': 0.2})], 'done').start('go'); run.play()")
    assert cells.run("print(run.result(timeout=10))").strip() == "done"


def test_a_run_uses_the_thread_of_agentnb(cells: LiveKernel) -> None:
    cells.run("@agentnb.tool\nasync def where() -> str:\n    return threading.current_thread().name")
    cells.run("run = agentnb.SessionLoop(ScriptedLLM([[call('where')], 'done']), [where]).start('go'); await run")
    assert cells.run("print(run.messages[2].content)").strip() == "agentnb"


@pytest.mark.alone
@pytest.mark.parametrize("wait", ["await run", "run.result()", "async for event in run: pass"])
def test_stop_in_a_cell_that_waits_cancels_the_run_within_a_second(cells: LiveKernel, wait: str) -> None:
    cells.run("run = session([call('nap', {'seconds': 60})], 'done').start('go')")
    cell = cells.send(f"print('started')\n{wait}")
    cells.until_printed(cell, "started")
    stopped = time.time()
    cells.manager.interrupt_kernel()
    reply = cells.reply(cell)
    assert reply["ename"] in ("KeyboardInterrupt", "CancelledError")
    shown = re.sub(r"\x1b\[\d+m", "", "\n".join(reply["traceback"]))
    assert "The run was cancelled with the cell. Its events are kept: agentnb.restore(run.snapshot(), loop)" in shown
    assert f"2 {wait}" in shown
    assert len(shown.splitlines()) < 10
    cells.until(lambda: cells.is_idle(cell))
    reason, at = cells.run("print(run.stop_reason, run.events[-1].time)").split()
    assert reason == "cancelled"
    assert float(at) - stopped < 1


@pytest.mark.parametrize("step", ["await run.step('call')", "notebook.step('call')"])
def test_stop_in_a_cell_that_steps_does_not_end_the_step_and_says_so(cells: LiveKernel, step: str) -> None:
    cells.run("from agentnb import notebook\nrest = threading.Event()")
    cells.run("@agentnb.tool\ndef hold() -> str:\n    print('held')\n    rest.wait()\n    return 'rested'")
    cells.run("run = agentnb.SessionLoop(ScriptedLLM([[call('hold')], 'done']), [hold]).start('go')")
    cell = cells.send(f"print('started')\n{step}")
    cells.until_printed(cell, "held")
    cells.manager.interrupt_kernel()
    shown = re.sub(r"\x1b\[\d+m", "", "\n".join(cells.reply(cell)["traceback"]))
    assert "The step continues in the background; wait for its end before the next one." in shown
    assert f"2 {step}" in shown
    assert len(shown.splitlines()) < 10
    cells.run("rest.set()")
    assert cells.run("print(await run)").strip() == "done"


@pytest.mark.parametrize("body", ["    notebook.step()", "    break\nnotebook.step('turn')"])
def test_a_step_inside_the_cell_that_drives_the_run_is_refused(cells: LiveKernel, body: str) -> None:
    cells.run("from agentnb import notebook\nrun = session('done').start('go')")
    error, shown = cells.fails(f"async for event in run:\n{body}")
    assert error == "UsageError"
    assert "inside the iteration it cannot wait for the run" in shown


def test_events_can_be_read_in_a_cell_while_the_run_uses_its_thread(cells: LiveKernel) -> None:
    cells.run("run = session([call('nap', {'seconds': 0})], 'done').start('go')")
    printed = cells.run("async for event in run:\n    print(event.type, end=' ')")
    assert printed.split()[0] == "run_start"
    assert printed.split()[-1] == "run_end"


def test_a_run_is_stepped_cell_by_cell(cells: LiveKernel) -> None:
    cells.run("run = session([call('nap', {'seconds': 0})], 'done').start('go')")
    assert cells.run("print([e.type for e in await run.step('turn')][-1])").strip() == "call_end"
    assert cells.run("print([e.type for e in await run.step('turn')][-1])").strip() == "model_end"
    assert cells.run("print([e.type for e in await run.step()])").strip() == "['run_end']"
    assert cells.run("print(await run.step())").strip() == "[]"


def test_the_magics_step_save_and_restore(cells: LiveKernel, tmp_path: Path) -> None:
    cells.run(f"%cd -q {tmp_path}\n%load_ext agentnb\nloop = session([call('nap', {{'seconds': 0}})], 'done')")
    cells.run("run = loop.start('go')")
    assert "model_end" in cells.run("_ = get_ipython().run_line_magic('step', 'turn')")
    assert "half.agentnb.json" in cells.run("_ = get_ipython().run_line_magic('snapshot', 'half')")
    cells.run("run = None\nloop = session('done')\n_ = get_ipython().run_line_magic('restore', 'half')")
    assert cells.run("print(await run, ran.count('nap'))").strip() == "done 1"
    assert "cannot" not in cells.run("%reload_ext agentnb")


def test_an_error_of_a_magic_is_one_line_without_a_traceback(cells: LiveKernel) -> None:
    cells.run("%load_ext agentnb\nrun = session('x').start('go')")
    name, shown = cells.fails("%step backwards")
    assert shown == f"{name}: %step takes event, call, turn, phase, not 'backwards'."


RESTORING = """
run = agentnb.restore({path!r}, session("done"))
"""


@pytest.mark.kernel
@pytest.mark.parametrize("name", list(RELEASES))
def test_a_snapshot_with_a_pending_approval_is_finished_in_another_kernel(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "half.json")
    with LiveKernel(name) as first:
        first.run(SETUP)
        turn = "[call('nap', {'seconds': 0}, id='n'), call('write', {'path': 'a.txt'}, id='w')]"
        first.run(f"run = session({turn}).start('go')\nwhile await run.step(): pass")
        assert first.run("print([c.id for c in run.pending], ran)").strip() == "['w'] ['nap']"
        first.run(f"_ = run.snapshot().save({path!r})")
    with LiveKernel(name) as second:
        second.run(SETUP + RESTORING.format(path=path))
        second.run("run.approve('w')")
        assert second.run("print(await run, ran)").strip() == "done ['a.txt']"
        said = second.run("print([m.content for m in run.messages if m.role == 'tool'])")
        assert said.strip() == "['rested', 'wrote a.txt']"


@pytest.mark.kernel
@pytest.mark.parametrize("name", list(RELEASES))
def test_a_snapshot_with_a_running_call_asks_about_that_call_in_another_kernel(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "half.json")
    with LiveKernel(name) as first:
        first.run(SETUP)
        turn = "[call('nap', {'seconds': 0}, id='quick'), call('nap', {'seconds': 60}, id='slow')]"
        first.run(f"run = session({turn}).start('go'); run.play()")
        first.run("while sum(e.type == 'call_end' for e in run.events) < 1: await asyncio.sleep(0.01)")
        first.run(f"_ = run.snapshot().save({path!r})")
    with LiveKernel(name) as second:
        second.run(SETUP + RESTORING.format(path=path))
        second.run("await run.step('call')")
        assert second.run("print([(c.id, c.unknown) for c in run.pending], ran)").strip() == "[('slow', True)] []"
        second.run("run.answer('slow', 'it rested')")
        assert second.run("print(await run, ran)").strip() == "done []"


@pytest.mark.kernel
def test_asyncio_is_not_patched_until_nested_event_loops_are_requested() -> None:
    with LiveKernel("ipykernel7") as own:
        own.run(SETUP)
        own.run("run = session('done').start('go'); await run")
        assert own.run("import sys; print({'nest_asyncio', 'nest_asyncio2'} & {*sys.modules})").strip() == "set()"
        assert own.run("print(hasattr(asyncio, '_nest_patched'))").strip() == "False"
        own.run("from agentnb.notebook import allow_nested_asyncio")
        own.run("allow_nested_asyncio()")
        assert own.run("async def three(): return 3\nprint(asyncio.run(three()))").strip() == "3"
        own.run("run = session('done').start('go')")
        assert own.run("print(await run)").strip() == "done"


def test_a_restored_run_continues_in_its_store(cells: LiveKernel, tmp_path: Path) -> None:
    cells.run(f"%cd -q {tmp_path}\n%load_ext agentnb\nstore = agentnb.Store('runs.db')\nloop = session('one')")
    cells.run("run = loop.start('go', store=store, name='kept')\n_ = await run.step('event')\n%snapshot begun")
    cells.run("run = None\nloop = session('one')\n_ = get_ipython().run_line_magic('restore', 'begun')")
    cells.run("await run")
    assert (
        cells.run("print([(info.events, info.stop_reason) for info in store.runs()])").strip() == "[(5, 'completed')]"
    )
    assert re.search(r"kept +SessionLoop +completed", cells.run("print(agentnb.runs())"))


def test_processes_forked_in_a_cell_drive_their_own_runs(kernel: LiveKernel) -> None:
    kernel.run(
        "import multiprocessing\n"
        "from agentnb import SessionLoop\n"
        "from agentnb.testing import ScriptedLLM\n"
        "def drive(number): return SessionLoop(ScriptedLLM([str(number)])).start('go').result(20)"
    )
    assert kernel.run("print(drive(0))").strip() == "0"
    forked = kernel.run("with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(drive, [1, 2]))")
    assert forked.strip() == "['1', '2']"
