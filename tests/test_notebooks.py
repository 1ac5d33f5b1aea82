"""The notebooks run unchanged, without a person and without a network, and their results follow from the data."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from agentnb.llms import Local
from tests.kernels import without_ports

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
FIRST = "01_first_loop.ipynb"
LABORATORY = "02_five_loops.ipynb"
PAGE = "approvals_page.ipynb"
MODEL_CELL = "llm = analyst()"
PATIENCE = 120  # seconds for a cell; the slowest cell took 3

pytestmark = pytest.mark.kernel


OFFLINE = """
import sys

def refuse(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    else:
        return
    if host not in (None, "", "localhost", "127.0.0.1", "::1"):
        raise OSError(f"There is no network: {host}")

sys.addaudithook(refuse)
"""
"""The first code of a kernel: it prevents every connection to another machine."""


def execute(
    folder: Path, name: str = FIRST, *, model: str | None = None, last: str | None = None, cluster: bool = False
) -> Any:
    """Run a notebook as `jupyter execute` does, and then a last cell; raise the error of a cell.

    cluster: run the cells, too, that start a cluster, which takes seconds.
    """
    startup = folder / ".ipython" / "profile_default" / "startup" / "offline.py"
    startup.parent.mkdir(parents=True, exist_ok=True)
    startup.write_text(OFFLINE)
    notebook = nbformat.read(folder / name, 4)
    if not cluster:
        notebook.cells = [cell for cell in notebook.cells if "cluster" not in cell.metadata.get("tags", ())]
    if last is not None:
        notebook.cells.append(nbformat.v4.new_code_cell(last))
    if model is not None:
        (cell,) = [cell for cell in notebook.cells if "model" in cell.metadata.get("tags", ())]
        cell.source = model
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=PATIENCE, kernel_name="python3", resources=resources, config=without_ports()
    ).execute(env={**os.environ, "IPYTHONDIR": str(folder / ".ipython")})
    return notebook


def copied(folder: Path) -> Path:
    """Copy the files that the notebooks need to a folder of the test."""
    left_behind = shutil.ignore_patterns("*.db*", "*.agentnb.json", "reports", "__pycache__", ".*")
    return Path(shutil.copytree(NOTEBOOKS, folder / "notebooks", ignore=left_behind))


def printed(notebook: Any, source: str) -> str:
    """Return the output of the only cell that contains this source."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
    return "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")


def table_of_runs(notebook: Any) -> str:
    """Return the table of %runs as text."""
    (cell,) = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source == "%runs"]
    return next(output.data["text/plain"] for output in cell.outputs if "data" in output)


def pages(notebook: Any) -> list[str]:
    """Return the HTML of all panels."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    found = ["".join(output.data["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    return [page for page in found if "agentnb-static" in page]


def module(name: str) -> ModuleType:
    """Import a module from the folder of the notebooks."""
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


# -- run without a person -------------------------------------------------------------------------------------------


def test_the_test_environment_has_no_network(tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "empty.ipynb")
    with pytest.raises(CellExecutionError, match=r"There is no network: example\.org"):
        execute(tmp_path, "empty.ipynb", last="import urllib.request\nurllib.request.urlopen('http://example.org')")


def test_the_agent_finds_the_change_in_the_data(first: Any) -> None:
    answer = printed(first, "print(await run)")
    assert "The level changed in 1899: from 1098 to 850 (10⁸ m³ a year), -23%." in answer  # Cobb 1978, table 1
    assert "From 1899 to 1901 the mean was 829, the new level already" in answer
    assert "the agent says so: True" in printed(first, "the agent says so")


def test_the_approved_report_has_the_text_that_was_shown(first: Any, folder: Path) -> None:
    (report,) = (folder / "reports").iterdir()
    assert report.name == "nile.md"
    shown = printed(first, "for waiting in run.pending")
    assert shown == f"write_report\nnile.md\n{report.read_text(encoding='utf-8')}\n"


def test_the_restored_run_repeats_no_call_and_its_policy_rejects_the_report(first: Any) -> None:
    assert "There is no report: Rejected: Not before a colleague has seen it." in printed(first, "print(await again)")
    before, after = printed(first, "for each in (run, again)").split("<Run nile-again")
    assert "write_report {" in before
    assert "write_report {" not in after
    assert "describe_tables" not in after


def test_every_run_of_the_notebook_is_in_its_store(first: Any) -> None:
    runs = table_of_runs(first)
    assert re.search(r"nile-again +SessionLoop +completed +\d+ +\d+", runs)
    assert re.search(r"nile +SessionLoop +completed +\d+ +\d+", runs)


def test_the_panels_of_the_notebook_need_no_script(first: Any) -> None:
    assert len(pages(first)) == 2
    assert not any("<script" in page or "javascript:" in page for page in pages(first))


def test_different_data_results_in_a_different_answer(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    table = folder / "data" / "nile.csv"
    head, *rows = table.read_text().split()
    years, flows = zip(*(row.split(",") for row in rows), strict=True)
    table.write_text("\n".join([head, *map(",".join, zip(years, reversed(flows), strict=True))]))
    answer = printed(execute(folder), "print(await run)")
    assert "The level changed in 1943: from 850 to 1098" in answer
    assert "From 1902 to 1942 the mean was 844, still the old level" in answer


@pytest.mark.local_model
def test_the_notebook_runs_with_a_model_in_this_process(tmp_path: Path) -> None:
    """No cell fails, whatever the small model answers."""
    assert Local().model
    notebook = execute(
        copied(tmp_path), model="from agentnb.llms import Local\n\nllm = Local(max_tokens=200, temperature=0)"
    )
    assert "SessionLoop" in table_of_runs(notebook)


# -- the saved notebook ---------------------------------------------------------------------------------------------


def test_the_notebook_was_saved_after_one_complete_run(saved: Any) -> None:
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.parametrize("source", ["print(await run)", "print(await again)", "the agent says so"])
def test_the_saved_outputs_are_the_current_outputs(saved: Any, first: Any, source: str) -> None:
    assert printed(saved, source) == printed(first, source) != ""


def test_the_saved_panels_show_the_ended_runs_without_a_kernel(saved: Any) -> None:
    assert len(pages(saved)) == 2
    for page in pages(saved):
        assert "✓ done" in page
        assert "<script" not in page
    assert "application/vnd.jupyter.widget-view+json" not in (NOTEBOOKS / FIRST).read_text(encoding="utf-8")
    assert "widgets" not in saved.metadata


def test_the_notebook_file_is_small(saved: Any) -> None:
    assert (NOTEBOOKS / FIRST).stat().st_size < 500_000


def test_only_one_cell_constructs_a_model(saved: Any) -> None:
    naming = [
        cell for cell in saved.cells if cell.cell_type == "code" and re.search(r"analyst|agentnb\.llms", cell.source)
    ]
    assert [cell.metadata.tags for cell in naming] == [["model"]]
    assert MODEL_CELL in naming[0].source


# -- the laboratory -------------------------------------------------------------------------------------------------

DESIGNS = ["Agent", "SessionLoop", "ExecutionLoop", "ConversationEngine", "LoopAgent"]
FINDING = "The level changed in 1899: from 1098 to 850, -23%. Of 2,000 shuffled series none had so large a step."
RECORD = """
for name, run in runs.items():  # by the runs' own counts, not the notebook's
    usage, seconds = run.usage, run.events[-1].time - run.events[0].time
    written = [e for e in run.events if e.type == "call_start" and e.name == "write_report"]
    print(name, "1899" in str(run.output), sum(e.type == "model_end" for e in run.events), len(written))
    print(int(usage["input_tokens"] + usage["output_tokens"]), f"{seconds:.1f}", str(run.output).replace("\\n", " "))
"""


def table(notebook: Any) -> dict[str, dict[str, str]]:
    """Return the table of the laboratory: the measurements of each design."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    (text,) = [output.data["text/markdown"] for output in outputs if "text/markdown" in output.get("data", {})]
    head, _, *rows = [[word.strip() for word in line.strip("|").split("|")] for line in text.splitlines()]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return execute(copied(tmp_path_factory.mktemp("laboratory")), LABORATORY, last=RECORD)


@pytest.fixture(scope="module")
def saved_laboratory() -> Any:
    return nbformat.read(NOTEBOOKS / LABORATORY, 4)


def test_all_five_designs_have_the_same_result(laboratory: Any) -> None:
    assert {name: row["answer"] for name, row in table(laboratory).items()} == dict.fromkeys(DESIGNS, "1899")
    assert printed(laboratory, RECORD).count(FINDING) == len(DESIGNS)


def test_the_table_has_the_figures_of_the_runs(laboratory: Any) -> None:
    said = printed(laboratory, RECORD).splitlines()
    for name, first, second in zip(DESIGNS, said[::2], said[1::2], strict=True):
        row, tokens_and_seconds = table(laboratory)[name], second.split(" ")[:2]
        assert first == f"{name} True {row['turns']} {row['approvals']}"
        assert tokens_and_seconds == [row["tokens"].replace(",", ""), row["seconds"]]


def test_the_statements_of_the_laboratory_about_each_design_are_true(laboratory: Any) -> None:
    rows = table(laboratory)
    turns = {name: int(row["turns"]) for name, row in rows.items()}
    seconds = {name: float(row["seconds"]) for name, row in rows.items()}
    tokens = {name: int(row["tokens"].replace(",", "")) for name, row in rows.items()}
    assert {row["calls"] for row in rows.values()} == {"5"}
    assert {row["approvals"] for row in rows.values()} == {"1"}
    assert turns["Agent"] == turns["SessionLoop"]
    # Each of the two saves at least a quarter of the time. Which of them is faster depends on the load of the machine.
    assert max(seconds["ExecutionLoop"], seconds["SessionLoop"]) < seconds["Agent"]
    assert min(turns, key=turns.__getitem__) == "ExecutionLoop"
    assert max(turns, key=turns.__getitem__) == "ConversationEngine"
    assert tokens["ExecutionLoop"] > tokens["Agent"]
    each = {name: tokens[name] / turns[name] for name in DESIGNS}
    assert each["ConversationEngine"] < each["SessionLoop"]


def test_each_section_of_the_laboratory_prints_the_described_output(laboratory: Any) -> None:
    assert "terminal: ['agent_finish']" in printed(laboratory, "EventCollector")
    assert "From 1899 to 1901 the mean was 829" in printed(laboratory, "session.steer")
    dataflow = re.findall(r"s  (call_\w+) +(\w+)", printed(laboratory, "execution.run"))
    at = {event: dataflow.index(event) for event in dataflow}
    assert at["call_started", "find_break"] < at["call_received", "compare"]  # while the answer is being streamed
    assert at["call_completed", "find_break"] < at["call_started", "compare"]
    assert "executing → paused" in printed(laboratory, "engine.pause()")
    continued = printed(laboratory, "other.continue_()")
    assert "'find_break'" not in continued
    assert FINDING in continued
    resumed = printed(laboratory, "session_so_far")
    assert "pass 1" not in resumed
    assert resumed.endswith("ended: {'newsroom': True}\n")


def test_different_data_results_in_a_different_answer_of_the_laboratory() -> None:
    found = {
        "find_break": {"year": 1943},
        "compare": {"before": 850.0, "after": 1097.8},
        "shuffle_test": {"rounds": 100, "as_large": 3},
    }
    said = [{"role": "user", "content": f"nile.csv? {found}".replace("'", '"')}]
    model = module("laboratory")
    assert model.finding(model.found_in(said)) == (
        "The level changed in 1943: from 850 to 1098, +29%. Of 100 shuffled series 3 had so large a step."
    )


def test_the_laboratory_was_saved_after_one_complete_run_and_needs_no_kernel(saved_laboratory: Any) -> None:
    cells = [cell for cell in saved_laboratory.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert "widgets" not in saved_laboratory.metadata
    text = (NOTEBOOKS / LABORATORY).read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget-view+json" not in text
    assert len(text) < 500_000
    (panel,) = pages(saved_laboratory)
    assert "✓ done" in panel
    assert "<script" not in panel


def test_the_saved_figures_of_the_laboratory_are_the_current_figures(saved_laboratory: Any, laboratory: Any) -> None:
    kept, made = table(saved_laboratory), table(laboratory)
    for row in (*kept.values(), *made.values()):
        del row["seconds"]
    assert kept == made


# -- recordings -----------------------------------------------------------------------------------------------------

SAYS = {
    "03_snapshot_restore_replay.ipynb": [
        (
            "elsewhere =",
            "waiting: ['write_report']\nThere is no report: Rejected: Not from here.\nevents: 32 of which new: 5",
        ),
        ("forged =", "forged.agentnb.json was changed after it was written: line 1"),
        ("recording.breakpoints", "25 model_end (hit 5)\n31 model_end (hit 6)"),
        (
            "researcher(max_turns=3)",
            "the same loop: all 33 events as recorded\nevent 0 was {'max_turns': 12}\nevent 0 is now {'max_turns': 3}",
        ),
        ("write_test(run", "It passes."),
    ],
    "04_what_if.ipynb": [
        ("def requests", "6 requests were made then; 1 is made by the fork."),
        ("levelled = ", "events. Then, for the same question:"),
        ("levelled = ", "The level changed in 1888"),
        ("asked = ", "From 1899 to 1901 the mean was 829, the new level already"),
        ("def by_length", "by_length  <Backtest: 1 of 1 questions saved"),
    ],
    "05_reading_runs.ipynb": [
        ("def short_ones", "75% as the person decided, 3 missed, 0 refused"),
        ("def short_ones", "one_year     <Backtest: 12 of 12 questions saved"),
        ("tried = ", "['nile-04', 'nile-07', 'nile-10']"),
        ("store.find", "38 events exported"),
    ],
    "06_anyones_recording.ipynb": [
        ('agentnb.replay(folder / "bad.jsonl")', "Claude Code - 24 events, not carried: nothing"),
        ("edit = bad.find", "16 Edit {'file_path': 'test_stats.py'"),
        ("difference = diff(good, bad)", "13 call_end Bash -> report.py:12"),
        ("fixed.preview()", "7 messages to script; tools: Edit, Bash, Read"),
        ("await fixed", "pytest: 1 passed"),
        ("await same", "test_stats.py was changed: True"),
        ("fixed.export", "ATIF {"),
    ],
    "07_a_study.ipynb": [
        ("study = ", "<Study levelled: 0 of 120 done>"),
        ("study.start()", "<Study levelled: 120 of 120 done>"),
        ("cost = ", "fetch_table     60\npublish        120"),
        ("turns = ", "asking twice waits longer: True"),
    ],
}
"""The output of cells of a notebook, or the part of it that is the same each time."""


@pytest.mark.parametrize("name", list(SAYS))
def test_a_notebook_on_recordings_runs_and_was_saved_after_a_complete_run(name: str, tmp_path: Path) -> None:
    saved, folder = nbformat.read(NOTEBOOKS / name, 4), copied(tmp_path)
    for notebook in (saved, execute(folder, name), execute(folder, name)):  # for a second time in the same folder
        for source, words in SAYS[name]:
            assert words in printed(notebook, source)
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "widgets" not in saved.metadata
    text = (NOTEBOOKS / name).read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget-view+json" not in text
    assert len(text) < 500_000


EQUAL_TABLES = "<Study levelled: 120 of 120 done>\nequal tables: True\n"


def test_the_study_was_saved_with_equal_tables_from_a_cluster() -> None:
    assert printed(nbformat.read(NOTEBOOKS / "07_a_study.ipynb", 4), "LocalCluster(") == EQUAL_TABLES


@pytest.mark.sampled(1000)
def test_the_study_on_a_cluster_has_equal_tables(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    assert printed(execute(copied(tmp_path), "07_a_study.ipynb", cluster=True), "LocalCluster(") == EQUAL_TABLES


# -- the page for Voila ---------------------------------------------------------------------------------------------


def test_the_page_ends_with_a_pending_call_if_nobody_decides(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    page = execute(
        folder,
        PAGE,
        last="import asyncio\nwhile not run.pending: await asyncio.sleep(0.01)\nprint(run.pending[0].arguments)",
    )
    assert "In 1899 the yearly flow of the Nile at Aswan fell from 1098 to 850" in page.cells[-1].outputs[0].text
    assert not (folder / "reports").exists()


def test_the_page_was_saved_with_an_ended_run_and_needs_no_kernel() -> None:
    saved = nbformat.read(NOTEBOOKS / PAGE, 4)
    (panel,) = pages(saved)
    assert "The report is in reports/nile.md." in panel
    assert "<script" not in panel
    assert "widgets" not in saved.metadata
    text = (NOTEBOOKS / PAGE).read_text(encoding="utf-8")
    assert "application/vnd.jupyter.widget-view+json" not in text
    assert len(text) < 100_000


# -- modules of the notebooks ---------------------------------------------------------------------------------------

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
def test_an_expression_is_evaluated_to_its_number(expression: str, value: float) -> None:
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


def test_the_analyst_reports_a_failed_tool_and_stops() -> None:
    messages = [
        {"role": "user", "content": "When did it change?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "describe_tables", "arguments": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "FileNotFoundError: data", "is_error": True},
    ]
    said = "".join(chunk["content"] for chunk in module("analyst").next_turn(messages) if isinstance(chunk, dict))
    assert said == "I cannot go on. A tool failed: FileNotFoundError: data"
