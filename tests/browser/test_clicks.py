"""Every click arrives exactly once: a part of the matrix (`python -m tests.browser.matrix`), and the hard cases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.clicking import CELLS, LOOK, SHAPES, SHOW, WAIT, click_through
from tests.kernels import RELEASES

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook

CLICKS = 6
WAITING = {"awaits": SHAPES["await"][0], "blocks": SHAPES["blocking"][0]}


@pytest.fixture(scope="module")
def notebook(module_notebooks: Notebooks, kernel_name: str) -> Notebook:
    notebook = module_notebooks.open(kernel=kernel_name, cells=CELLS)
    notebook.run(0, timeout=60)
    return notebook


@pytest.mark.parametrize("shape", list(SHAPES))
def test_every_click_arrives_once_and_soon(
    notebook: Notebook, kernel_name: str, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = click_through(notebook, shape, CLICKS)
    assert outcome.faults == []
    assert len(outcome.latencies) == CLICKS
    assert outcome.median < 1
    with capsys.disabled():
        took = f"median {outcome.median * 1000:.0f} ms, p95 {outcome.p95 * 1000:.0f} ms from the click to its call"
        print(f"\n{kernel_name}, {shape}: {CLICKS} clicks, {took}")


def begin(notebook: Notebook, waiting: str) -> None:
    """Start a run of one call, in a cell that waits for it."""
    notebook.set_cell(SHOW, "run = start(0, 1); run")
    notebook.set_cell(WAIT, waiting)
    notebook.run(0)
    notebook.run(SHOW)
    notebook.run_cell(WAIT)
    notebook.wait_output(WAIT, "waits")
    notebook.wait_output(SHOW, "asks you")


@pytest.mark.parametrize("waiting", list(WAITING.values()), ids=list(WAITING))
def test_a_page_reloaded_while_a_cell_waits_shows_the_question_and_accepts_the_click(
    notebook: Notebook, waiting: str
) -> None:
    begin(notebook, waiting)
    notebook.save()
    notebook.reload()
    notebook.wait_output(SHOW, "asks you", timeout=60)
    notebook.wait_output(SHOW, "Turn 1")
    notebook.click("Approve")
    assert '"resumed": [[0, ' in notebook.run(LOOK)
    notebook.wait_status(SHOW, "done")
    assert "Messages" in notebook.outputs(SHOW)  # a view of the live panel: this page does not take the static panel


@pytest.mark.parametrize("kernel_name", [next(iter(RELEASES))], indirect=True)  # the pages differ, not the kernels
def test_with_two_tabs_the_first_click_decides_and_the_other_tab_shows_the_decision(
    notebook: Notebook, notebooks: Notebooks
) -> None:
    begin(notebook, WAITING["blocks"])
    notebook.save()
    other = notebooks.open_tab(notebook)
    other.wait_output(SHOW, "asks you", timeout=60)

    for tab in (notebook, other):  # a page shows the copy that was saved until its buttons are there
        tab.do(lambda page: page.wait_for_function(f"() => {BUTTONS}.length > 0"))

    def reject_and_approve(_: Any) -> None:  # as soon after each other as can be: both pages live on this one thread
        pressed = [
            tab.do(lambda page, name=name: page.evaluate_handle(BUTTON, name))
            for tab, name in ((other, "reject"), (notebook, "approve"))
        ]
        for button in pressed:  # the second click happens even if the answer to the first has just removed the button
            button.evaluate("button => button.click()")

    notebook.do(reject_and_approve)
    notebook.wait_cell(WAIT)
    notebook.wait_status(SHOW, "done")
    other.wait_status(SHOW, "done")
    for tab in (notebook, other):
        assert "asks you" not in tab.outputs(SHOW)
        assert "went on" not in tab.outputs(SHOW)
    told = notebook.run(LOOK)
    assert '"resumed": []' in told
    assert '"decisions": ["c0"]' in told


BUTTONS = 'document.querySelectorAll(".agentnb-call button")'
BUTTON = f"name => [...{BUTTONS}].find(button => button.dataset.do === name)"
