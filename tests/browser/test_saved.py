"""The part of a run in the file that JupyterLab saves is small, also with the state of the widgets, and readable."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.widgets.pages import CONTRAST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook
    from tests.browser.server import JupyterServer

LIMIT = 200_000
"""Bytes that a run adds to a notebook at most, however many events it has."""
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
    return [[*text(words), call("search", {"query": f"q{n}"}, id=f"c{n}")] for n in range(TURNS)]
"""
CELLS = ["first = start(looks('I look.')); first", "second = start(looks('word ' * 20)); second", ""]
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


@pytest.mark.parametrize("events", [3_000, pytest.param(10_000, marks=pytest.mark.sampled(1000))])  # nightly: both
@pytest.mark.usefixtures("saves_state")
def test_runs_of_thousands_of_events_add_little_to_a_saved_notebook(
    events: int, notebooks: Notebooks, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = notebooks.open(cells=[f"TURNS = {events // 4}\n{SETUP}", *CELLS])
    notebook.run_all()
    for run in RUNS:
        notebook.wait_output(run, "asks you", timeout=60)
    notebook.set_cell(3, "print(len(first.events), len(second.events))")
    assert [int(count) > events for count in notebook.run(3).split()] == [True, True]
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
        print(f"\na notebook with two runs of {events:,} events: {', '.join(f'{size:,}' for size in sizes)} bytes")
    assert max(sizes) < len(RUNS) * LIMIT

    kept = notebook.path.with_name("kept.ipynb")  # under its own path it would be given the same kernel
    shutil.copy(notebook.path, kept)
    again = notebooks.open_file(kept)
    for run in RUNS:
        again.wait_output(run, "search")


NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
IS_TRUSTED = "() => lab.cells.every((cell) => cell.model.trusted)"
PICTURES = "all => all.map((image) => [image.alt.split(':')[0], image.naturalWidth > 0 && image.clientWidth > 0])"
DROPPED = ".jp-OutputArea :is(style, script, svg)"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_first_notebook_reads_well_before_anything_was_run(
    notebooks: Notebooks, server: JupyterServer, theme: Any
) -> None:
    """JupyterLab does not trust it, so it drops style sheets and drawings in the page."""
    content = json.loads((NOTEBOOKS / "01_first_loop.ipynb").read_text(encoding="utf-8"))
    content["metadata"]["kernelspec"]["name"] = "ipykernel7"
    path = server.root / f"fresh-{theme}.ipynb"
    path.write_text(json.dumps(content))
    notebook = notebooks.open_file(path)
    notebook.theme(theme)

    def look(page: Page) -> None:
        assert not page.evaluate(IS_TRUSTED)
        assert page.locator(".agentnb-static").locator(DROPPED).count() == 0
        panel = page.locator(".agentnb-static").first
        panel.scroll_into_view_if_needed()
        if shots := os.environ.get("AGENTNB_SCREENSHOTS"):
            page.screenshot(path=f"{shots}/fresh-{theme}.png")
        shown = panel.inner_text()
        words = ("done", "Somewhere between 1871 and 1970", "Turn 1", "compare_splits", "19 rows", "write_report")
        assert [word for word in (*words, "The level changed in 1899", "Saved copy of") if word not in shown] == []
        assert panel.locator("img").evaluate_all(PICTURES) == [["Timeline", True], ["State diagram", True]]
        output = panel.locator("details", has_text="19 rows").first
        output.locator("summary").click()
        assert "0.5634" in output.inner_text()
        page.evaluate(CONTRAST.read_text())
        poor = page.evaluate("window.poorContrast('.agentnb-static')")
        assert [words for words in poor if re.search(r"\w", words)] == []  # a mark is no text

    notebook.do(look)


def as_text(html: str) -> list[str]:
    return re.sub(r"<[^>]*>", "", html).split()
