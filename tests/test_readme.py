"""The documentation is correct: the code of the README runs, and every path, link and section that is named exists."""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import agentnb
from tests.kernels import without_ports

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RULES = sorted(ROOT.glob("agentnb/loops/*/SEMANTICS.md"))
DOCUMENTS = [ROOT / "agentnb/ARCHITECTURE.md", *RULES]
PAGES = [
    "README.md",
    ".github/CONTRIBUTING.md",
    ".github/CHANGELOG.md",
    "notebooks/data/README.md",
    *(str(document.relative_to(ROOT)) for document in DOCUMENTS),
]
SOURCES = [path for folder in ("agentnb", "tests") for path in (ROOT / folder).rglob("*.py")]
SOURCES += (ROOT / "agentnb").rglob("*.js")
CITATION = re.compile(r"(?<![\w/])((?:\w+/)*)(SEMANTICS|ARCHITECTURE)\.md((?:[,;] \d+\. [^;)]*)*)")


def test_the_distribution_has_its_own_name_and_no_command() -> None:
    assert "console_scripts" not in distribution("agentnb-toolkit").entry_points.groups
    with pytest.raises(PackageNotFoundError):
        distribution("agentnb")  # a different package on PyPI


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Return the commands of the README, each as a list of words."""
    return [shlex.split(part) for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")]


def execute(notebook: Any, folder: Path) -> None:
    """Run a notebook in this folder."""
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=60, kernel_name="python3", resources=resources, config=without_ports()).execute()


def printed(cell: Any) -> str:
    """Return the output of a cell, joined from all its messages."""
    return "".join(output.text for output in cell.outputs)


@pytest.mark.kernel
def test_the_example_runs_unchanged(tmp_path: Path) -> None:
    example = blocks("python")[0]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(example)])
    execute(notebook, tmp_path)
    assert printed(notebook.cells[0]) == "Done.\n"


@pytest.mark.kernel
def test_the_replay_and_fork_blocks_run_after_the_example(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(block) for block in blocks("python")[:2]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute(notebook, tmp_path)
    phase, asked, came_to = printed(notebook.cells[1]).splitlines()
    assert phase == "thinking"
    assert "name='delete'" in asked
    assert came_to == "As you wish."


@pytest.mark.kernel
def test_the_analysis_block_runs_after_the_example(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(blocks("python")[place]) for place in (0, 2)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    execute(notebook, tmp_path)
    told = "".join(output.text for output in notebook.cells[1].outputs if output.output_type == "stream")
    assert "the same in 4 events" in told
    assert "1 of 1 questions saved" in told


@pytest.mark.kernel
def test_the_study_block_runs_by_itself(tmp_path: Path) -> None:
    found = [block for block in blocks("python") if "agentnb.study(" in block]
    used = found[:2] if find_spec("cloudpickle") else found[:1]  # the second one needs an extra
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in used])
    execute(notebook, tmp_path)
    told = "".join(output.text for output in notebook.cells[0].outputs if output.output_type == "stream")
    assert "<Study levelled: 60 of 60 done>" in told
    assert "There is no step." in told  # from the table
    (line,) = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert "60 of 60 done" in line.data["text/plain"]  # the progress line, as a saved notebook keeps it
    for cell in notebook.cells[1:]:
        assert "<Study levelled: 80 of 80 done>" in "".join(o.text for o in cell.outputs if o.output_type == "stream")


async def run_block(text: str) -> None:
    """Run the only code block with this text in this process."""
    (block,) = [block for block in blocks("python") if text in block]
    running = eval(compile(block, "README.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {"__name__": "readme"})
    if running is not None:
        await running


async def test_the_block_about_resampling_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    await run_block("agentnb.resample(")
    printed = capsys.readouterr().out
    assert "flips" in printed
    assert "It was 1874." in printed


async def test_the_block_about_search_and_sql_runs_by_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    await run_block("store.search(")
    first, second, levels, messages = capsys.readouterr().out.splitlines()
    assert first.startswith("year 1891 0 How high was it")
    assert second.startswith("year 1874 0 How high was it")
    assert levels == "[('year 1874', '1120'), ('year 1891', '870')]"
    assert messages == "[(8,)]"


@pytest.mark.kernel
def test_the_block_about_recordings_of_other_tools_runs(tmp_path: Path) -> None:
    (block,) = (one for one in blocks("python") if "Path(" in one and "chat.json" in one)
    (on,) = (one for one in blocks("python") if ".preview()" in one)
    (out,) = (one for one in blocks("python") if ".export(" in one)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in (block, on, out)])
    execute(notebook, tmp_path)
    told = "".join(one.text for one in notebook.cells[0].outputs if one.output_type == "stream")
    assert told.splitlines() == ["chat messages {}", "['weather']", "It is cold."]
    assert printed(notebook.cells[1]).splitlines()[0] == "3 messages to script; tools: weather"
    assert printed(notebook.cells[2]) == "ATIF {}\n"


def test_the_example_has_ten_lines_of_code() -> None:
    example = blocks("python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) == 10


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_files_and_extras_named_in_commands_exist(command: list[str]) -> None:
    named = [word for word in command if "/" in word and not word.startswith(".venv/")]
    assert all((ROOT / word).exists() for word in named)
    extras = re.findall(r"\.\[(.*?)\]", " ".join(command))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(extra in known for names in extras for extra in names.split(","))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_target_of_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


def test_every_path_named_in_the_readme_exists() -> None:
    named = re.findall(r"`([\w.]+/[\w./]*)`", README)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_names_every_variable_for_an_api_key() -> None:
    assert {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"} <= set(re.findall(r"`(\w+_API_KEY)`", README))


def test_pre_commit_runs_the_checks_of_the_test_command() -> None:
    checks = re.findall(r"^ *check (.+)$", (ROOT / ".ci/test").read_text(), flags=re.MULTILINE)
    names = [re.split(r" (?=-|\S*[./])", check)[0] for check in checks]  # without the arguments
    hooks = re.findall(r"^        name: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), flags=re.MULTILINE)
    assert len(names) > 4
    assert hooks == names


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    lines = (ROOT / ".github/CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## [Unreleased]"
    assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {f"### {kind}" for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")}


def test_the_citation_names_the_version() -> None:
    assert f"version: {agentnb.__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()


def test_every_package_is_listed_in_the_docstring_of_agentnb() -> None:
    named = set(re.findall(r"^    ([a-z_]+)  ", agentnb.__doc__ or "", flags=re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "agentnb").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "agentnb").glob("*.py")} - {"__init__"}
    assert named == packages | modules


@pytest.mark.parametrize("script", [".ci/run", ".ci/test", ".ci/system", "binder/postBuild"])
def test_the_scripts_are_executable_and_stop_at_the_first_error(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    text = (ROOT / script).read_text()
    assert text.startswith("#!")
    assert re.search(r"^set -e", text, flags=re.MULTILINE)


def test_builds_run_the_command_named_in_the_readme() -> None:
    assert ["bash", ".ci/test"] in commands()
    assert "bash .ci/test" in (ROOT / ".ci/run").read_text()
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text()


def test_the_pictures_are_small_enough_to_load() -> None:
    pictures = re.findall(r"!\[.+?\]\((.+?)\)", README)
    assert 0 < sum((ROOT / picture).stat().st_size for picture in pictures) < 300_000


# -- citations ---------------------------------------------------------------------------------------------------------


def headings(document: Path) -> list[str]:
    """Return the numbered headings of a document, such as "5. Steering"."""
    return re.findall(r"^## (\d+\. .+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)


def unknown_citations(text: str, source: Path) -> list[str]:
    """Return the citations of a source file's text that name a document or a heading that does not exist.

    A citation is `SEMANTICS.md, 5. Steering`, or `agent/SEMANTICS.md, 5. Event pairs` from another folder. Several
    headings are separated by semicolons.
    """
    unknown = []
    for match in CITATION.finditer(re.sub(r"\s+(#\s+)?", " ", text)):
        folder, name, cited = match.groups()
        candidates = [ROOT / "agentnb" / folder, ROOT / "agentnb/loops" / folder] if folder else [source.parent]
        if name == "ARCHITECTURE":
            candidates = [ROOT / "agentnb"]
        document = next((path / f"{name}.md" for path in candidates if (path / f"{name}.md").exists()), None)
        if document is None:
            unknown.append(match[0])
            continue
        known = headings(document)
        sections = re.split(r"[,;] (?=\d+\. )", cited)[1:]
        unknown += [section for section in sections if not section.startswith(tuple(known))]
    return unknown


def test_every_cited_section_exists() -> None:
    unknown = {
        str(source.relative_to(ROOT)): found
        for source in SOURCES
        if source != Path(__file__) and (found := unknown_citations(source.read_text(encoding="utf-8"), source))
    }
    assert unknown == {}


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("(SEMANTICS.md, 5. Steering)", []),
        ("(SEMANTICS.md, 3. Algorithm; 5. Steering). It goes on.", []),
        ("(SEMANTICS.md, 5.\n    # Steering)", []),
        ("(SEMANTICS.md, 5. Stirring)", ["5. Stirring"]),
        ("(SEMANTICS.md, 3. Algorithm; 6. Steering)", ["6. Steering"]),
        ("(agent/SEMANTICS.md, 5. Steering)", ["5. Steering"]),
        ("(ARCHITECTURE.md, 4. Promises)", []),
        ("(nowhere/SEMANTICS.md)", ["nowhere/SEMANTICS.md"]),
    ],
)
def test_a_citation_of_a_section_that_does_not_exist_is_found(text: str, unknown: list[str]) -> None:
    assert unknown_citations(text, ROOT / "agentnb/loops/session_loop/loop.py") == unknown


def test_no_source_cites_a_document_that_is_not_in_the_repository() -> None:
    elsewhere = re.compile(r"\b(?:SEMANTICS|DESIGN)(?:\.md)?,? \d|\bDESIGN, promise|\(\d[a-h]\.\d+\)")
    texts = {source: source.read_text(encoding="utf-8") for source in SOURCES if source != Path(__file__)}
    own = re.compile(r"SEMANTICS\.md, \d+\. ")
    found = {str(source.relative_to(ROOT)): elsewhere.findall(own.sub("", text)) for source, text in texts.items()}
    assert {source: cited for source, cited in found.items() if cited} == {}


def test_every_design_has_a_semantics_file_that_starts_with_its_source() -> None:
    designs = {path.parent.name for path in (ROOT / "agentnb/loops").glob("*/__init__.py")}
    assert {path.parent.name for path in RULES} == designs
    first = {path.parent.name: next(iter(headings(path)), "no numbered heading") for path in RULES}
    assert {name: heading for name, heading in first.items() if heading not in ("1. Source", "1. State")} == {}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.parent.name)
def test_the_sections_of_a_document_are_numbered_in_order(document: Path) -> None:
    assert [int(heading.split(".")[0]) for heading in headings(document)] == [*range(1, len(headings(document)) + 1)]


def test_every_file_named_in_the_architecture_exists() -> None:
    text = (ROOT / "agentnb/ARCHITECTURE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+[\w.]*)`", text)
    assert len(named) > 40
    assert [path for path in named if not ((ROOT / "agentnb" / path).exists() or (ROOT / path).exists())] == []
