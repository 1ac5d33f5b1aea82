"""The part of a run in the file that JupyterLab saves is small, also with the state of the widgets, and readable."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook
    from tests.browser.server import JupyterServer

LIMIT = 200_000
"""Bytes that a run of ten thousand events adds to a notebook at most."""
PLUGIN = "@jupyter-widgets/jupyterlab-manager:plugin"
SETUP = """
import agentnb
from agentnb.testing import ScriptedLLM, call, text

@agentnb.tool
def search(query: str) -> str:
    return ('found <b>"it"</b> & more; ' * 40)[:1000]

@agentnb.tool(approve=True)
def write(path: str) -> str:
    return "wrote " + path

def start(turns):
    turns = [*turns, [call("write", {"path": "a.txt"}, id="w")], "It is over."]
    run = agentnb.SessionLoop(ScriptedLLM(turns), [search, write]).start("go")
    run.play()
    return run

def looks(words):
    return [[*text(words), call("search", {"query": f"q{n}"}, id=f"c{n}")] for n in range(2500)]
"""
CELLS = [SETUP, "first = start(looks('I look.')); first", "second = start(looks('word ' * 20)); second", ""]
RUNS = (1, 2)


@pytest.fixture
def saves_state(server: JupyterServer) -> Iterator[None]:
    """Switch "Save Widget State Automatically" on for the pages of one test."""
    server.change_setting(PLUGIN, {"saveState": True})
    yield
    server.change_setting(PLUGIN, {"saveState": False})


def saved(notebook: Notebook) -> tuple[str, list[str]]:
    """Save; gives the file, and the HTML under each run."""
    notebook.save()
    text = notebook.path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    pages = [[out.get("data", {}).get("text/html", "") for out in cells[run]["outputs"]] for run in RUNS]
    return text, ["".join("".join(page) for page in under) for under in pages]


@pytest.mark.usefixtures("saves_state")
def test_runs_of_ten_thousand_events_add_little_to_a_saved_notebook(
    notebooks: Notebooks, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = notebooks.open(cells=CELLS)
    notebook.run_all()
    for run in RUNS:
        notebook.wait_output(run, "asks you", timeout=60)
    notebook.set_cell(3, "print(len(first.events), len(second.events))")
    assert [int(count) > 10_000 for count in notebook.run(3).split()] == [True, True]
    at_rest = "copy => copy.textContent.includes('was waiting for a decision')"  # not while it runs
    copies = f"() => [...document.querySelectorAll('[data-agentnb-copy]')].filter({at_rest}).length === {len(RUNS)}"
    notebook.do(lambda page: page.wait_for_function(copies))  # they are hidden
    waiting, pages = saved(notebook)
    assert '"_esm"' in waiting
    assert all("write was waiting for a decision" in " ".join(as_text(page)) for page in pages)

    notebook.reload()
    for run in RUNS:
        notebook.wait_output(run, "asks you", timeout=60)
    loaded_again, _ = saved(notebook)
    notebook.set_cell(3, "for run in (first, second): run.approve('w'); print(run.result(30))")
    assert notebook.run(3).count("It is over.") == 2
    for run in RUNS:
        notebook.wait_status(run, "done")
    over, pages = saved(notebook)
    # This page does not know the ids of the outputs in the file, so it cannot update them.
    assert all("State of 20" in page and "agentnb.attach(" in page for page in pages)
    sizes = [len(text.encode()) for text in (waiting, loaded_again, over)]
    with capsys.disabled():
        print(f"\na notebook with two runs of 10,000 events: {', '.join(f'{size:,}' for size in sizes)} bytes")
    assert max(sizes) < len(RUNS) * LIMIT

    kept = notebook.path.with_name("kept.ipynb")  # under its own path it would be given the same kernel
    shutil.copy(notebook.path, kept)
    again = notebooks.open_file(kept)
    for run in RUNS:
        again.wait_output(run, "search")


def as_text(html: str) -> list[str]:
    return re.sub(r"<[^>]*>", "", html).split()
