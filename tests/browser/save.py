"""Save the notebooks as they are distributed: run from top to bottom in JupyterLab, with the outputs of that run.

    python -m tests.browser.save
    python -m tests.browser.save 04_what_if.ipynb

Each notebook runs in a separate folder with the files that it needs, is saved when its panels are static, and is copied
back without metadata about this machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from tests.browser.browser import Chromium
from tests.browser.notebook import Notebook
from tests.browser.server import JupyterServer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGE = "approvals_page.ipynb"  # for Voila: its question waits for a person, so it is saved by hand
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
PATIENCE = 180.0
LIVE = "application/vnd.jupyter.widget-view+json"
# Below each live panel is its static one, which of a run that has ended is the last.
AT_REST = """() => [...document.querySelectorAll(".jp-NotebookPanel .agentnb-panel")].every((panel) => {
    const hasEnded = ["done", "stopped", "failed"].includes(panel.querySelector(".agentnb-state")?.dataset.sign);
    const isRecorded = panel.querySelector(".agentnb-about-run")?.textContent.includes("recorded");
    const keepsItsPanel = isRecorded || panel.matches(".agentnb-study");
    const saved = hasEnded && !keepsItsPanel ? "[data-agentnb-ended]" : "[data-agentnb-copy]";
    return panel.closest(".jp-OutputArea").querySelector(saved); })"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Save the notebooks that are named, or all."""
    known = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb") if path.name != PAGE)
    parser = argparse.ArgumentParser(prog="python -m tests.browser.save", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NOTEBOOK", help=", ".join(known))
    names = parser.parse_args(arguments).names or known
    if unknown := set(names) - set(known):
        parser.error(f"no notebook {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    with (
        tempfile.TemporaryDirectory() as folder,
        JupyterServer(Path(folder), {"python3": None}) as server,
        Chromium() as browser,
    ):
        for name in names:
            saved = run_and_save(browser, server, name)
            nbformat.write(saved, NOTEBOOKS / name)
            print(f"{name}: {(NOTEBOOKS / name).stat().st_size:,} bytes")


def run_and_save(browser: Chromium, server: JupyterServer, name: str) -> Any:
    """A notebook as JupyterLab has saved it after a run from top to bottom."""
    folder = server.root / Path(name).stem
    left_behind = shutil.ignore_patterns("*.db*", "*.agentnb.json", "*.jsonl", "reports", "__pycache__", ".*", "test_*")
    shutil.copytree(NOTEBOOKS, folder, ignore=left_behind)
    notebook = Notebook.open_file(browser, server, folder / name)
    cells = [cell for cell in nbformat.read(folder / name, 4).cells if cell.cell_type == "code"]
    notebook.run_all()
    notebook.wait_cell(len(cells) - 1, timeout=PATIENCE)
    # A panel stays live, also after the end of its run, with a hidden static one below it.
    notebook.do(lambda page: page.wait_for_function(AT_REST, timeout=1000 * PATIENCE))
    notebook.save()
    notebook.close()
    saved = nbformat.read(folder / name, 4)
    saved.metadata = nbformat.from_dict(METADATA)
    for cell in saved.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {})
    for cell in saved.cells:
        if cell.cell_type == "code":
            cell.outputs = _at_rest(cell.outputs)
    assert LIVE not in nbformat.writes(saved), f"{name}: a panel is live in the file"
    return saved


def _at_rest(outputs: Sequence[Any]) -> list[Any]:
    """Join streams that arrived in pieces, and replace a live panel (of a replay) by its copy."""
    joined: list[Any] = []
    for output in outputs:
        data = output.get("data", {})
        if LIVE in data or data == {"text/plain": ""}:
            continue
        before = joined[-1] if joined else None
        if before and output.output_type == before.output_type == "stream" and output.name == before.name:
            before.text += output.text
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    main()
