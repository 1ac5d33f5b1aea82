"""The notebooks, executed like a person who decides with the buttons."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.browser.notebook import PATIENCE
from tests.kernels import RELEASES

if TYPE_CHECKING:
    from tests.browser.conftest import Notebooks
    from tests.browser.notebook import Notebook
    from tests.browser.server import JupyterServer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FIRST = "01_first_loop.ipynb"
LABORATORY = "02_five_loops.ipynb"


class DeliveredNotebook:
    """One of the notebooks in JupyterLab; its cells are found by their source."""

    def __init__(self, notebooks: Notebooks, server: JupyterServer, kernel: str, name: str) -> None:
        folder = server.root / uuid.uuid4().hex[:8]
        left_behind = shutil.ignore_patterns("*.db*", "*.agentnb.json", "reports", "__pycache__", ".*")
        shutil.copytree(NOTEBOOKS, folder, ignore=left_behind)
        saved = nbformat.read(folder / name, 4)
        saved.metadata.kernelspec = {"name": kernel, "display_name": kernel, "language": "python"}
        nbformat.write(saved, folder / name)
        self.sources = [cell.source for cell in saved.cells if cell.cell_type == "code"]
        self.reports = folder / "reports"
        self.page: Notebook = notebooks.open_file(folder / name)

    def number(self, source: str) -> int:
        """Give the number of the first cell that contains this source."""
        return next(number for number, text in enumerate(self.sources) if source in text)

    def run_before(self, source: str, start: int = 0) -> int:
        """Run the cells before that cell, and give its number."""
        end = self.number(source)
        for number in range(start, end):
            self.page.run(number, timeout=60)
        return end

    def wait_static(self) -> None:
        """Wait until the notebook has no widget any more, which is so a moment after the end of the last run."""
        static = "() => !JSON.stringify(lab.panel.content.model.toJSON()).includes('widget-view+json')"
        self.page.do(lambda page: page.wait_for_function(static, timeout=PATIENCE * 1000))


@pytest.fixture
def first(notebooks: Notebooks, server: JupyterServer, kernel_name: str) -> DeliveredNotebook:
    return DeliveredNotebook(notebooks, server, kernel_name, FIRST)


@pytest.fixture
def laboratory(notebooks: Notebooks, server: JupyterServer, kernel_name: str) -> DeliveredNotebook:
    return DeliveredNotebook(notebooks, server, kernel_name, LABORATORY)


def test_a_report_that_is_approved_by_button_is_written(first: DeliveredNotebook) -> None:
    decide = first.run_before("for waiting in run.pending")
    assert not first.reports.exists()
    first.page.click("Approve")
    first.page.run_cell(first.number("print(await run)"))
    first.page.wait_output(first.number("print(await run)"), "The report is written.")
    assert "The level changed in 1899" in (first.reports / "nile.md").read_text(encoding="utf-8")
    assert first.page.run(decide) == ""  # no call is pending


def test_a_call_is_rejected_by_button_while_a_cell_waits_for_the_answer(first: DeliveredNotebook) -> None:
    first.run_before("for waiting in run.pending")
    answer = first.number("print(await run)")
    first.page.run_cell(answer)
    assert first.page.is_running(answer)
    first.page.click("Reject")
    first.page.fill("Reason", "Not on a Sunday.")
    first.page.click("Reject")
    first.page.wait_output(answer, "There is no report: Rejected: Not on a Sunday.")
    assert not first.reports.exists()


def test_after_run_all_the_saved_panels_need_no_kernel(first: DeliveredNotebook) -> None:
    last = len(first.sources) - 1
    first.page.run_all()
    first.page.wait_cell(last, timeout=120)
    for source in ("run = loop.start", "again = agentnb.restore"):
        first.page.wait_output(first.number(source), "done")
    first.wait_static()
    first.page.save()
    text = first.page.path.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget-view+json" not in text
    assert len(text) < 500_000


def test_without_a_rule_the_session_of_the_laboratory_waits_for_a_button(laboratory: DeliveredNotebook) -> None:
    start, stream = laboratory.number("session = SessionLoop"), laboratory.number("async for event in stream")
    for cell in (0, 1, 2):
        laboratory.page.run(cell, timeout=60)
    laboratory.page.set_cell(start, laboratory.sources[start].replace(", approve=policy", ""))
    laboratory.page.run(start)
    laboratory.page.run_cell(stream)
    laboratory.page.click("Approve")
    laboratory.page.wait_output(stream, "so it was not what came in 1902")
    assert "The level changed in 1899" in (laboratory.reports / "five_loops.md").read_text(encoding="utf-8")


@pytest.mark.sampled(
    1000
)  # it takes more than a minute: in the nightly job; each push has the same with the first notebook
@pytest.mark.parametrize("kernel_name", [next(iter(RELEASES))], indirect=True)
def test_after_run_all_the_saved_laboratory_needs_no_kernel(laboratory: DeliveredNotebook) -> None:
    last = len(laboratory.sources) - 1
    laboratory.page.run_all()
    laboratory.page.wait_cell(last, timeout=180)
    laboratory.page.wait_output(laboratory.number("session = SessionLoop"), "done")
    laboratory.wait_static()
    laboratory.page.save()
    text = laboratory.page.path.read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget-view+json" not in text
    assert "ConversationEngine | 1899" in text
    assert len(text) < 500_000
