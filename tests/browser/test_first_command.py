"""The first command of README, in a copy of this folder and with Python only: the notebook that it opens runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from tests.browser.notebook import Notebook
from tests.browser.server import START, JupyterServer
from tests.test_readme import blocks, commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.browser import Chromium

ROOT = Path(__file__).parents[2]
FIRST = "01_first_loop.ipynb"
LEFT_BEHIND = shutil.ignore_patterns(".*", "tests", "__pycache__", "*.db*", "*.agentnb.json", "reports")
INSTALL = 280
"""Seconds for downloads."""


class FirstCommand(JupyterServer):
    """JupyterLab as that command starts it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self._cwd = Path(shutil.copytree(ROOT, folder / "agentnb", ignore=LEFT_BEHIND))
        self.root = self._cwd / "notebooks"
        first = commands()[: blocks("bash")[0].count("&&") + 1]
        self._setup, self._lab = first[:-1], first[-1]

        self._opened = folder / "opened.txt"

    def install(self) -> None:
        """Take the steps before the last."""
        said: dict[str, Any] = {"capture_output": True, "text": True, "timeout": INSTALL, "check": False}
        for step in self._setup:
            done = subprocess.run(step, cwd=self._cwd, env=self._environment(), **said)
            assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"

    def opened(self) -> str:
        """Wait for the page that the command opens in the browser, a file with a redirect; return its contents."""
        until = time.monotonic() + START
        while not self._opened.exists() or not (address := self._opened.read_text().strip()):
            assert time.monotonic() < until, self.log()
            time.sleep(0.1)
        return Path(address.removeprefix("file://")).read_text()

    def _command(self) -> list[str]:
        options = [option for option in self._options() if option != "--no-browser"]
        writes = f"--ServerApp.browser=sh -c 'echo %s > {self._opened}'"
        return [*self._lab, *options, writes]

    def _environment(self) -> dict[str, str]:
        """Return an environment without the variables of the tests."""
        python = Path(sys.executable).resolve().parent
        given = super()._environment().items()
        known = {name: value for name, value in given if not name.startswith(("PYTHON", "VIRTUAL"))}
        # Without PIP_COMPILE=0, pip compiles all files of all packages, also those that are never imported.
        return known | {"PATH": f"{python}{os.pathsep}{os.defpath}", "PIP_COMPILE": "0"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FirstCommand]:
    server = FirstCommand(tmp_path)
    server.install()
    with server:
        yield server


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


@pytest.mark.slow
def test_the_notebook_that_the_command_opens_runs_from_its_first_cell_to_its_last(
    lab: FirstCommand, browser: Chromium
) -> None:
    assert f"{lab.url}/lab/tree/{FIRST}" in lab.opened()
    path = lab.root / FIRST
    cells = code_cells(path)
    notebook = Notebook.open_file(browser, lab, path)
    notebook.run_all()
    notebook.wait_cell(len(cells) - 1, timeout=120)
    answer = next(number for number, cell in enumerate(cells) if "print(await run)" in cell.source)
    assert "The report is written." in notebook.outputs(answer)
    notebook.save()
    assert [output for cell in code_cells(path) for output in cell.outputs if output.output_type == "error"] == []
    notebook.close()
