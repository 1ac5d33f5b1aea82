"""Notebooks with approvals, executed by nbclient and papermill; and a person, who is always recognised."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.kernels import REPOSITORY, without_ports
from tests.notebook.live_kernel import LiveKernel

pytestmark = pytest.mark.kernel

SETUP = f"""
import sys; sys.path.insert(0, {str(REPOSITORY)!r})
import asyncio, agentnb
from agentnb.testing import ScriptedLLM, call

@agentnb.tool(approve=True)
def write(path: str) -> str:
    "Write a file."
    return f"wrote {{path}}"

def start(name, **options):
    turn = [call("write", {{"path": "a.txt"}}, id="w")]
    return agentnb.SessionLoop(ScriptedLLM([turn, "done"]), [write]).start("go", name=name, **options)

def outcome(run):
    return next(message.content for message in run.messages if message.role == "tool")
"""
SHOWN = "run = start('shown')\nrun"
CELLS = [
    SETUP,
    SHOWN,
    "print(await run, outcome(run))",
    "print(agentnb.headless(None, after=0.1))",
    "run = start('result')\nprint(run.result(), outcome(run))",
    "run = start('pulled')\nasync for event in run: pass\nprint(run.output, outcome(run))",
    "run = start('stopped', breakpoints=['model_end'])\ntry:\n    await run\nexcept agentnb.RunCancelled as error:\n"
    "    print(error)",
    "run = start('held')\nrun.play()\nrun.pause()\ntry:\n    run.result()\nexcept agentnb.RunCancelled as error:\n"
    "    print(error)",
    "run = start('left to a later cell')\nrun.play()",
    "while not run.pending: await asyncio.sleep(0.01)\nawait asyncio.sleep(0.3)\nrun.approve('w')",
    "print(await run, outcome(run))",
]


def printed(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def warned(cell: Any) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stderr")


def cell_of(notebook: Any, source: str) -> Any:
    return next(cell for cell in notebook.cells if source in cell.source)


@pytest.fixture(scope="module")
def executed() -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    return NotebookClient(notebook, timeout=120, kernel_name="python3", config=without_ports()).execute()


def test_nbclient_executes_a_notebook_with_approvals_to_its_end_and_calls_are_denied(executed: Any) -> None:
    for source in ("print(await run, outcome(run))", "run = start('result')", "run = start('pulled')"):
        said = printed(cell_of(executed, source))
        assert said.startswith("done Rejected: Nobody is there to decide: this notebook is executed by a program")
        assert 'agentnb.headless("approve")' in said


def test_one_line_in_the_cell_says_which_call_was_refused_and_how_to_decide_in_advance(executed: Any) -> None:
    for source in ("print(await run, outcome(run))", "run = start('result')", "run = start('pulled')"):
        (line,) = warned(cell_of(executed, source)).splitlines()
        assert line.startswith("agentnb: The call of 'write' with {'path': 'a.txt'} was rejected, because no person is")
        assert "AGENTNB_HEADLESS=approve" in line


def test_the_declaration_in_force_can_be_printed(executed: Any) -> None:
    said = printed(cell_of(executed, "agentnb.headless"))
    assert said.startswith("<Headless policy: none declared, so reject, after 0.1 s; no person is present: this")


def test_the_saved_panel_says_why_the_call_was_denied(executed: Any) -> None:
    output, copy = cell_of(executed, SHOWN).outputs
    assert copy.data == {"text/plain": ""}  # which was the copy of the panel while the panel was live
    assert "completed" in output.data["text/plain"]
    page = output.data["text/html"]
    assert "rejected by the policy" in page
    assert "Nobody is there to decide" in page
    assert "AGENTNB_HEADLESS=approve" in page


def test_without_a_person_a_breakpoint_or_a_pause_does_not_block_the_notebook(executed: Any) -> None:
    for source, words in (
        ("start('stopped'", "paused (breakpoint at model_end"),
        ("start('held'", "paused, and no person"),
    ):
        said = printed(cell_of(executed, source))
        assert said.startswith(words)
        assert "no person is present to resume it: this notebook is executed by a program" in said


def test_a_later_cell_can_decide_in_place_of_a_person(executed: Any) -> None:
    assert printed(executed.cells[-1]) == "done wrote a.txt\n"


def test_papermill_denies_calls_and_an_environment_variable_declares_a_policy(tmp_path: Path) -> None:
    denied = "agentnb.headless(None, after=patience)\nprint(await run, outcome(run))"
    declare = "import os\nos.environ['AGENTNB_HEADLESS'] = 'approve'\nagentnb.run.headless._declared = None"
    approved = "run = start('declared')\nprint(await run, outcome(run))"
    sources = [SETUP, "patience = 60", SHOWN, denied, declare, approved]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.cells[1].metadata["tags"] = ["parameters"]
    notebook.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "--no-progress-bar", "-p", "patience", "0.1"]
    subprocess.run(command, cwd=tmp_path, timeout=90, check=True, capture_output=True)
    done = nbformat.read(tmp_path / "out.ipynb", 4)
    assert printed(cell_of(done, denied)).startswith("done Rejected: Nobody is there to decide")
    assert printed(cell_of(done, approved)) == "done wrote a.txt\n"
    assert "completed" in cell_of(done, SHOWN).outputs[0].data["text/plain"]


WAIT = """
try:
    run.result(timeout={seconds})
except TimeoutError:
    print("waits for", [waiting.name for waiting in run.pending])
"""


def test_a_run_waits_for_a_person_who_is_absent(kernel: LiveKernel) -> None:
    """Run All, and then a closed tab: cells accept input requests, and no page sends messages."""
    kernel.run(SETUP)
    assert "a person may be present" in kernel.run("print(agentnb.headless(None, after=0.05))")
    kernel.run("run = start('person'); run.play()\nwhile not run.pending: await asyncio.sleep(0.01)")
    assert "waits for ['write']" in kernel.run(WAIT.format(seconds=0.5))
    assert kernel.run("run.approve('w')\nprint(await run)").strip() == "done"  # the tab is open again


@pytest.fixture
def executing() -> Iterator[LiveKernel]:
    """Return a kernel as nbclient uses it: its cells accept no input requests."""
    with LiveKernel("ipykernel7") as own:
        own.run(SETUP, allow_stdin=False)
        yield own


def test_one_cell_run_by_a_person_counts_for_the_life_of_the_kernel(executing: LiveKernel) -> None:
    look = "print(agentnb.headless(None, after=0.05))"
    assert "no person is present" in executing.run(look, allow_stdin=False)
    executing.run("'somebody has come to look'")
    assert "a person may be present" in executing.run(look, allow_stdin=False)
    assert "waits for" in executing.run(f"run = start('seen')\n{WAIT.format(seconds=0.5)}", allow_stdin=False)


def test_a_page_that_sends_messages_to_a_panel_counts_as_a_person(executing: LiveKernel) -> None:
    show = "run = start('page')\nprint(run.panel().model_id, flush=True)\n"
    until_heard = (
        "while 'no person is present' in repr(agentnb.headless(None, after=0.05)): await asyncio.sleep(0.01)\n"
    )
    cell = executing.send(show + until_heard + WAIT.format(seconds=0.5), allow_stdin=False)
    executing.until_printed(cell, "\n")
    panel = executing.printed(cell).strip()
    executing.comm(panel, {"method": "custom", "content": {"type": "sync", "have": 0}})
    executing.until_printed(cell, "waits for ['write']")
