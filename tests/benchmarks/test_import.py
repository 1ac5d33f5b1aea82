"""What `import agentnb` costs, and what it must not bring along."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.benchmarks.measure import report

FLOOR = "import asyncio, pydantic; from pydantic import BaseModel, TypeAdapter; TypeAdapter(int)"


def _seconds(statement: str) -> float:
    """The least CPU seconds of a fresh interpreter that runs the statement, and has run it before.

    Where this process keeps no bytecode, the interpreters would compile agentnb each time, and pydantic not.
    """
    program = f"import time; {statement}; print(time.process_time())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", program]
    return min(
        float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
        for _ in range(7)
    )


def test_importing_agentnb_costs_little_more_than_pydantic_and_asyncio(capsys) -> None:
    floor, ours = _seconds(FLOOR), _seconds("import agentnb")
    with capsys.disabled():
        report("import agentnb, to pydantic and asyncio", ours / floor, 1.5, f"{ours * 1e3:.0f} ms")
    assert ours / floor < 2.5


@pytest.mark.parametrize("what", ["agentnb", "agentnb.analysis.frames"])
def test_importing_it_loads_no_widgets_no_plotting_and_no_http(what: str) -> None:
    program = f"import sys, {what}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"ipywidgets", "anywidget", "IPython", "matplotlib", "httpx", "stamina"} & set(loaded)
    assert what != "agentnb" or not {"numpy", "pandas"} & set(loaded)
