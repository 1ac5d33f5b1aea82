"""The notebooks: they run as they are, with nobody there and no network, and what they say follows from the data."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from agentnb.llms import Local

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FIRST = "01_first_loop.ipynb"
MODEL_CELL = "llm = analyst()"
PATIENCE = 120  # seconds for a cell; the slowest took 3

pytestmark = pytest.mark.kernel


def execute(folder: Path, *, model: str | None = None) -> Any:
    """Run the first notebook as `jupyter execute` does; an error in a cell is an error here."""
    notebook = nbformat.read(folder / FIRST, 4)
    if model is not None:
        (cell,) = [cell for cell in notebook.cells if "model" in cell.metadata.get("tags", ())]
        cell.source = model
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=resources).execute()
    return notebook


def copied(folder: Path) -> Path:
    """Copy what the notebooks need to a folder of a test's own."""
    left_behind = shutil.ignore_patterns("*.db*", "*.agentnb.json", "reports", "__pycache__", ".*")
    return Path(shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=left_behind))


def printed(notebook: Any, source: str) -> str:
    """Give what the one cell that contains this source has printed."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def pages(notebook: Any) -> list[str]:
    """Give the HTML of all outputs."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return ["".join(output.data["text/html"]) for output in outputs if "text/html" in output.get("data", {})]


def module(name: str) -> ModuleType:
    """Import a module that lies beside the notebooks."""
    spec = importlib.util.spec_from_file_location(name, NOTEBOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    imported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return imported


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def first(folder: Path) -> Any:
    return execute(folder)


@pytest.fixture(scope="module")
def saved() -> Any:
    return nbformat.read(NOTEBOOKS / FIRST, 4)


# -- run with nobody there ------------------------------------------------------------------------------------------


def test_the_agent_finds_the_change_that_is_in_the_data(first: Any) -> None:
    answer = printed(first, "print(await run)")
    assert "The level changed in 1899: from 1098 to 850 (10⁸ m³ a year), -23%." in answer  # Cobb 1978, table 1
    assert "From 1899 to 1901 the mean was 829, the new level already" in answer
    assert "the agent says so: True" in printed(first, "the agent says so")


def test_the_approved_report_is_written_with_the_text_that_was_shown(first: Any, folder: Path) -> None:
    (report,) = (folder / "reports").iterdir()
    assert report.name == "nile.md"
    shown = printed(first, "for waiting in run.pending")
    assert shown == f"write_report\nnile.md\n{report.read_text(encoding='utf-8')}\n"


def test_the_restored_run_does_not_repeat_what_was_done_and_its_policy_refuses_the_report(first: Any) -> None:
    assert "There is no report: Rejected: Not before a colleague has seen it." in printed(first, "print(await again)")
    before, after = printed(first, "for each in (run, again)").split("<Run nile-again")
    assert "write_report {" in before
    assert "write_report {" not in after
    assert "describe_tables" not in after


def test_every_run_of_the_notebook_is_in_its_store(first: Any) -> None:
    runs = printed(first, "%runs")
    assert re.search(r"nile-again +SessionLoop +\d+ events +completed", runs)
    assert re.search(r"nile +SessionLoop +\d+ events +completed", runs)


def test_its_panels_read_without_a_script(first: Any) -> None:
    assert len(pages(first)) == 2
    assert not any("<script" in page or "javascript:" in page for page in pages(first))


def test_another_river_gives_another_answer(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    table = folder / "data" / "nile.csv"
    head, *rows = table.read_text().split()
    years, flows = zip(*(row.split(",") for row in rows), strict=True)
    table.write_text("\n".join([head, *map(",".join, zip(years, reversed(flows), strict=True))]))
    answer = printed(execute(folder), "print(await run)")
    assert "The level changed in 1943: from 850 to 1098" in answer
    assert "From 1902 to 1942 the mean was 844, still the old level" in answer


@pytest.mark.local_model
def test_the_notebook_runs_to_its_end_with_a_model_in_this_process(tmp_path: Path) -> None:
    """Whatever so small a model does, no cell fails."""
    assert Local().model
    notebook = execute(
        copied(tmp_path), model="from agentnb.llms import Local\n\nllm = Local(max_tokens=200, temperature=0)"
    )
    assert "SessionLoop" in printed(notebook, "%runs")


# -- as it is saved -------------------------------------------------------------------------------------------------


def test_it_is_saved_after_one_run_from_top_to_bottom(saved: Any) -> None:
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("source", ["print(await run)", "print(await again)", "the agent says so"])
def test_its_saved_outputs_are_what_it_prints_today(saved: Any, first: Any, source: str) -> None:
    assert printed(saved, source) == printed(first, source) != ""


def test_its_saved_panels_show_the_ended_runs_and_need_no_kernel(saved: Any) -> None:
    assert len(pages(saved)) == 2
    for page in pages(saved):
        assert "completed" in page
        assert "<script" not in page
    assert "application/vnd.jupyter.widget-view+json" not in (NOTEBOOKS / FIRST).read_text(encoding="utf-8")
    assert "widgets" not in saved.metadata


def test_it_is_small(saved: Any) -> None:
    assert (NOTEBOOKS / FIRST).stat().st_size < 500_000


def test_only_one_cell_names_a_model(saved: Any) -> None:
    naming = [
        cell for cell in saved.cells if cell.cell_type == "code" and re.search(r"analyst|agentnb\.llms", cell.source)
    ]
    assert [cell.metadata.tags for cell in naming] == [["model"]]
    assert MODEL_CELL in naming[0].source


# -- what lies beside it --------------------------------------------------------------------------------------------

TABLE = {"year": np.array([1.0, 2.0, 3.0, 4.0]), "volume": np.array([10.0, 20.0, 60.0, 70.0])}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3 ** 2 / 4 - -1", 6.5),
        ("mean(volume)", 40),
        ("mean(volume[year < 3]) - mean(volume[~(year < 3)])", -50),
        ("sum(volume[(year >= 2) & (year != 3) | (volume == 10)])", 100),
        ("slope(volume, year)", 22),
        ("max(volume) - min(volume) + median(year) + count(year)", 66.5),
        ("sqrt(std(volume) ** 2)", 25.495),
    ],
)
def test_an_expression_comes_to_its_number(expression: str, value: float) -> None:
    assert module("columns").evaluate(expression, TABLE) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "volume.__class__",
        "mean.__globals__",
        "(lambda: 1)()",
        "[volume for volume in year][0]",
        "volume[0]",
        "volume[year]",
        "'a' * 9",
        "True",
        "mean(volume, axis=0)",
        "mean(*volume)",
        "sqrt(volume, year)",
        "1 < 2 < 3",
        "(year := 1)",
        "9 ** 9 ** 9",
        "1 / 0",
        "volume",
        "depth",
        "eval('1')",
        "mean(volume[year > 9])",
        "slope(volume, year[year < 3])",
        "slope(volume[year < 2], year[year < 2])",
        "1 +",
        "1; 2",
        "1 + " * 100 + "1",
    ],
)
def test_an_expression_that_is_not_arithmetic_on_columns_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        module("columns").evaluate(expression, TABLE)


def test_the_analyst_reports_a_tool_that_failed_instead_of_going_on() -> None:
    messages = [
        {"role": "user", "content": "When did it change?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "describe_tables", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "FileNotFoundError: data", "is_error": True},
    ]
    said = "".join(chunk["content"] for chunk in module("analyst").next_turn(messages) if isinstance(chunk, dict))
    assert said == "I cannot go on. A tool failed: FileNotFoundError: data"
