"""Real clicks in a real JupyterLab, while cells of every shape run. How soon they arrive: test_clicks.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook

SHOW = "from tests.browser.gate_button import GateButton\nbutton = GateButton()\nbutton"
BLOCKS = "print('running'); print('got', button.wait()); print('after')"
AWAITS = "print('running'); print('got', await button.wait_async()); print('after')"
SCRATCH = 3


@pytest.fixture(scope="module")
def opened(module_notebooks: Notebooks, kernel_name: str) -> Notebook:
    """Give one notebook for each kernel; its cells: show, block, await, scratch."""
    return module_notebooks.open(kernel=kernel_name, cells=[SHOW, BLOCKS, AWAITS, ""])


@pytest.fixture
def notebook(opened: Notebook) -> Notebook:
    """Give that notebook with a new button on show."""
    opened.run(0)
    opened.wait_output(0, "waiting")
    return opened


@pytest.fixture(params=[1, 2], ids=["blocks", "awaits"])
def waiting(request: pytest.FixtureRequest) -> int:
    """Give the number of a cell that waits for the click."""
    return int(request.param)


def start(notebook: Notebook, cell: int) -> None:
    """Start a waiting cell and wait until its code runs."""
    notebook.run_cell(cell)
    while "running" not in notebook.outputs(cell):
        if not notebook.is_running(cell):  # for a moment after Stop, a kernel drops requests
            notebook.run_cell(cell)
        time.sleep(0.02)


def test_a_click_arrives_after_the_cell_has_returned(notebook: Notebook) -> None:
    notebook.click("Approve")
    notebook.wait_output(0, "clicked 1")


def test_a_click_arrives_while_a_cell_waits(notebook: Notebook, waiting: int) -> None:
    start(notebook, waiting)
    assert notebook.is_running(waiting)
    notebook.click("Approve")
    notebook.wait_cell(waiting)
    assert "after" in notebook.outputs(waiting)
    notebook.wait_output(0, "clicked 1")


def test_a_typed_text_arrives_whole_in_the_message_and_in_the_trait(notebook: Notebook, waiting: int) -> None:
    start(notebook, waiting)
    text = "because it is größer than 5 \N{CLAPPING HANDS SIGN}"
    notebook.do(lambda page: page.get_by_label("Reason").press_sequentially(text, delay=5))
    notebook.click("Approve")
    notebook.wait_cell(waiting)
    assert f"got {text}" in notebook.outputs(waiting)
    # The trait may arrive after the click: the page sends its next value when the kernel has handled the last one.
    notebook.set_cell(
        SCRATCH, f"import asyncio\nwhile button.typed != {text!r}: await asyncio.sleep(0.01)\nprint('typed')"
    )
    assert notebook.run(SCRATCH).strip() == "typed"


def test_stop_ends_the_wait_and_the_kernel_stays_usable(notebook: Notebook, waiting: int) -> None:
    """The latency is measured in tests/notebook, without a page."""
    start(notebook, waiting)
    notebook.stop()
    notebook.wait_cell(waiting)
    error = "KeyboardInterrupt" if waiting == 1 else "CancelledError"
    notebook.wait_output(waiting, error)
    start(notebook, waiting)
    notebook.click("Approve")
    notebook.wait_cell(waiting)
    assert "after" in notebook.outputs(waiting)


def test_the_queue_runs_after_the_wait_and_in_order(notebook: Notebook, waiting: int) -> None:
    start(notebook, waiting)
    notebook.set_cell(SCRATCH, "print('done' if button.future.done() else 'overtaken')")
    notebook.run_cell(SCRATCH)
    notebook.do(lambda page: page.get_by_label("Reason").fill("in the meantime"))
    assert notebook.is_running(SCRATCH)
    notebook.click("Approve")
    notebook.wait_cell(SCRATCH)
    assert notebook.outputs(SCRATCH).strip() == "done"
