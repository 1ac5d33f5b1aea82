"""The base of the other browser tests: the methods of the page object work on a real JupyterLab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import NoBrowser, find_chromium

if TYPE_CHECKING:
    from pathlib import Path

    from tests.browser.conftest import Notebooks

PID = "import os; print(os.getpid())"


def test_a_notebook_runs_saves_restarts_and_survives_the_death_of_its_kernel(
    notebooks: Notebooks, kernel_name: str, tmp_path: Path
) -> None:
    notebook = notebooks.open(kernel=kernel_name, cells=[PID, "import ipykernel; print(ipykernel.__version__)"])
    first = notebook.kernel_pid
    assert notebook.run(0).strip() == str(first)
    assert notebook.run(1).startswith(kernel_name.removeprefix("ipykernel").removeprefix("-")[:1])
    notebook.save()
    assert str(first) in notebook.path.read_text()

    notebook.restart_kernel()
    second = notebook.kernel_pid
    assert first != second
    notebook.kill_kernel()
    notebook.await_new_kernel()
    assert notebook.kernel_pid not in (first, second)
    assert notebook.run(0).strip() == str(notebook.kernel_pid)

    notebook.theme("dark")
    notebook.screenshot(tmp_path / "dark.png")
    notebook.theme("light")
    notebook.screenshot(tmp_path / "light.png")
    assert (tmp_path / "dark.png").read_bytes() != (tmp_path / "light.png").read_bytes()


async def test_a_notebook_can_be_driven_from_a_coroutine(notebooks: Notebooks) -> None:
    assert notebooks.open(cells=["print(6 * 7)"]).run(0).strip() == "42"


def test_without_a_browser_an_error_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("AGENTNB_CHROMIUM", raising=False)
    with pytest.raises(NoBrowser, match="apt-get install -y chromium-headless-shell"):
        find_chromium()
    monkeypatch.setenv("AGENTNB_CHROMIUM", "/no/such/browser")
    with pytest.raises(NoBrowser, match="/no/such/browser"):
        find_chromium()
