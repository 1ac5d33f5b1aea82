"""Attaching to runs: in the same kernel, in the next one, and while another process drives them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentnb import SessionLoop, Store
from agentnb.notebook.stored_run import RecordedRun
from agentnb.testing import ScriptedLLM
from tests.notebook.live_kernel import LiveKernel
from tests.notebook.test_headless import SETUP
from tests.widgets.support import until

WORLD = (
    SETUP
    + """
def loop(*turns):
    turn = [call("write", {"path": "a.txt"}, id="w"), {"type": "usage", "input_tokens": 5, "cost": 0.25}]
    return agentnb.SessionLoop(ScriptedLLM(turns or [turn, "done"]), [write])
"""
)
BEFORE = """
store = agentnb.Store("runs.db")
ended = loop("done").start("go", name="ended", store=store)
await ended
run = loop().start("go", name="unfinished", store=store)
await run.step("turn")
"""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveKernel]:
    """Give a kernel that was restarted while a run waited for a person; its store lies in its folder."""
    tmp_path = tmp_path_factory.mktemp("restarted")
    with LiveKernel("ipykernel7") as kernel:
        kernel.run(f"%cd -q {tmp_path}\n{WORLD}\n{BEFORE}")
        kernel.manager.restart_kernel(now=True)
        kernel.client.wait_for_ready(timeout=60)
        kernel.run(f"%cd -q {tmp_path}\n{WORLD}")
        yield kernel


STORED = "from agentnb.store import open_stores\nprint([(i.name, i.stop_reason) for i in open_stores()[0].runs()])"


def shown(kernel: LiveKernel, cell: str) -> list[dict[str, Any]]:
    """Run a cell; gives the bundles that it has displayed, as they were when it ended."""
    sent = kernel.send(cell)
    assert kernel.reply(sent)["status"] == "ok"
    kernel.until(lambda: kernel.is_idle(sent))
    outputs: dict[str, dict[str, Any]] = {}
    for kind in ("display_data", "update_display_data", "execute_result"):
        for number, content in enumerate(kernel.of(sent, kind)):
            outputs[content.get("transient", {}).get("display_id") or f"{kind} {number}"] = content["data"]
    return list(outputs.values())


def texts(bundles: list[dict[str, Any]]) -> str:
    return "\n".join(bundle["text/plain"] for bundle in bundles)


@pytest.mark.kernel
def test_the_table_of_runs_shows_status_and_cost(restarted: LiveKernel) -> None:
    (bundle,) = shown(restarted, "%load_ext agentnb\n%runs")
    lines = bundle["text/plain"].splitlines()
    assert lines[0].split() == ["name", "design", "status", "turns", "calls", "cost", "when"]
    assert lines[1].split()[:8] == ["unfinished", "SessionLoop", "waiting", "for", "you:", "write", "1", "0"]
    assert lines[1].split()[8] == "0.2500"
    assert lines[2].split()[:5] == ["ended", "SessionLoop", "completed", "1", "0"]
    assert "from this kernel and runs.db" in lines[3]
    assert bundle["text/html"].count("</tr>") == 3
    assert restarted.run("table = agentnb.runs('runs.db')\nprint(table[0].cost, len(table))").strip() == "0.25 2"


@pytest.mark.kernel
def test_after_a_restart_one_cell_shows_unfinished_runs_and_another_resumes_one(restarted: LiveKernel) -> None:
    bundles = shown(restarted, "agentnb.attach()")
    headline, panel, copy = bundles
    assert headline["text/plain"].startswith("unfinished (SessionLoop): waiting for you: write; ")
    assert "read only. To resume it: agentnb.attach('unfinished', loop)" in headline["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in panel
    assert "write" in copy["text/html"]
    assert copy["text/plain"].startswith("unfinished (SessionLoop): waiting for you, phase acting")

    assert restarted.fails("agentnb.attach('unfinished').approve('w')")[0] == "UnknownName"
    bundles = shown(restarted, "run = agentnb.attach('unfinished', loop('done'))\nrun")
    assert "application/vnd.jupyter.widget-view+json" in bundles[0]
    assert restarted.run("print(run.name, [waiting.id for waiting in run.pending])").strip() == "unfinished ['w']"
    assert restarted.run("run.approve('w')\nprint(await run, outcome(run))").strip() == "done wrote a.txt"
    assert restarted.run(STORED).strip() == ("[('unfinished', 'completed'), ('ended', 'completed')]")
    assert "There are no unfinished runs" in texts(shown(restarted, "agentnb.attach()"))


def test_attach_says_how_to_resume_a_cancelled_run(newest: LiveKernel, tmp_path: Path) -> None:
    with LiveKernel("ipykernel7") as first:
        first.run(f"%cd -q {tmp_path}\n{WORLD}\n{BEFORE}\nrun.cancel()")
    newest.run(f"%cd -q {tmp_path}\n{WORLD}")
    said = texts(shown(newest, "agentnb.attach()"))
    assert "There are no unfinished runs. A cancelled run, for example after a restart of the kernel" in said
    assert "resumes with agentnb.attach(name, loop)" in said
    assert "To resume it: agentnb.attach('unfinished', loop)" in newest.run(
        "from agentnb.notebook.attaching import headline\nprint(headline(agentnb.attach('unfinished')))"
    )
    newest.run("run = agentnb.attach('unfinished', loop('done'))\nrun.approve('w')")
    assert newest.run("print(await run, outcome(run))").strip() == "done wrote a.txt"


def test_attach_in_the_same_kernel_returns_the_run_itself(newest: LiveKernel, tmp_path: Path) -> None:
    newest.run(f"%cd -q {tmp_path}\n{WORLD}\nrun = loop().start('go', name='here')\nawait run.step('turn')")
    bundles = shown(newest, "agentnb.attach()")
    assert any("here (SessionLoop): waiting for you" in bundle["text/plain"] for bundle in bundles)
    same = "print(agentnb.attach('here') is run, agentnb.attach('here', loop()) is run, run in agentnb.attach())"
    assert newest.run(same).strip() == "True True True"
    newest.run("run.cancel()")


def test_a_run_that_another_process_drives_is_followed_and_read_only(newest: LiveKernel, tmp_path: Path) -> None:
    with LiveKernel("ipykernel7") as first:
        for kernel in (first, newest):
            kernel.run(f"%cd -q {tmp_path}\n{WORLD}")
        first.run(BEFORE)
        newest.run("import gc; gc.collect()")  # an ended run of this name, of another test, is found before a store's
        newest.run("seen = agentnb.attach('unfinished')\npanel = seen.panel()")
        assert newest.run("print(panel.parts, [w.name for w in seen.pending])").strip() == (
            "['graph', 'events', 'diagram'] ['write']"
        )
        first.run("run.approve('w')\nawait run")
        followed = (
            "from time import sleep\nwhile not seen.state.over: sleep(0.05)\nprint(seen.output, len(seen.events))"
        )
        assert newest.run(followed).split() == ["done", first.run("print(len(run.events))").strip()]
        assert "completed" in newest.run("print(agentnb.runs())")


def test_a_run_of_your_own_loop_is_attached_with_its_recorded_phases(newest: LiveKernel, tmp_path: Path) -> None:
    newest.run(
        f"%cd -q {tmp_path}\n{WORLD}\nfrom agentnb.core.events import PhaseChange, RunEnd\n"
        "class Own(agentnb.Loop):\n    phases = {'first': ['second'], 'second': ['done'], 'done': []}\n"
        "    def advance(self, state):\n        if state.phase == 'first':\n"
        "            return PhaseChange(source='first', phase='second')\n        return RunEnd(reason='completed')\n"
        "await Own().start('go', name='own', store=agentnb.Store('own.db'))"
    )
    newest.run(
        "import gc; gc.collect(); from agentnb.notebook.stored_run import RecordedRun\nagentnb.run.run._runs.clear()"
    )
    said = newest.run("seen = agentnb.attach('own')\nprint(seen, seen.loop.phases)")
    assert said.strip().endswith("{'first': ['second'], 'second': ['done'], 'done': []}")


MISTAKES = [
    ("agentnb.attach('nobody')", "RecordingMissing", "There is no run 'nobody' in"),
    ("agentnb.attach('x', store='nowhere.db')", "RecordingMissing", "There is no store nowhere.db; stores here: "),
    ("agentnb.attach('x', store='text.db')", "UsageError", "text.db is not a store of agentnb; stores here: "),
    ("agentnb.attach('kept', agentnb.Agent(None))", "RecordingMismatch", "the given loop is of kind Agent"),
    ("agentnb.attach('kept', 'loop')", "UsageError", "loop must be a loop, the one that resumes the run"),
    (
        "agentnb.attach(loop=loop())",
        "UsageError",
        "the name of the run to resume: attach(name, loop). Runs: kept",
    ),
    ("agentnb.attach(7)", "UsageError", "Pass a store as store="),
    ("agentnb.attach('kept', approve=True)", "UsageError", "Without a loop the run is read-only and cannot use"),
]


@pytest.fixture(scope="module")
def kept(newest: LiveKernel, tmp_path_factory: pytest.TempPathFactory) -> LiveKernel:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text.db").write_text("no store")
    newest.run(
        f"%cd -q {folder}\n{WORLD}\n%load_ext agentnb\nawait loop('x').start('go', name='kept',"
        " store=agentnb.Store('kept.db'))\nagentnb.run.run._runs.clear()"
    )
    return newest


@pytest.mark.parametrize(("cell", "name", "words"), MISTAKES, ids=[cell for cell, _, _ in MISTAKES])
def test_a_wrong_call_of_attach_says_what_is_possible(kept: LiveKernel, cell: str, name: str, words: str) -> None:
    ename, said = kept.fails(cell)
    assert ename == name
    assert words in said


def test_a_followed_recording_is_garbage_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentnb.notebook.stored_run.PERIOD", 0.01)
    store, looked = Store(tmp_path / "runs.db"), threading.Event()
    run = SessionLoop(ScriptedLLM(["Hello."])).start("hi", store=store)
    asyncio.run(run.step())
    recorded = RecordedRun(store, store.runs()[0])
    recorded.watch(lambda event: looked.set())
    asyncio.run(run.step())
    assert looked.wait(60)
    kept = weakref.ref(recorded)
    del recorded
    until(lambda: gc.collect() >= 0 and kept() is None)
    store.close()
