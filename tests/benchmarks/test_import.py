"""What `import agentnb` costs, and what it must not bring along."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.measure import report

FLOOR = "import asyncio, pydantic; from pydantic import BaseModel, TypeAdapter; TypeAdapter(int)"


def _seconds(statement: str) -> float:
    """The least CPU seconds of a fresh interpreter that runs the statement."""
    program = f"import time; {statement}; print(time.process_time())"
    return min(
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(7)
    )


def test_importing_agentnb_costs_little_more_than_pydantic_and_asyncio(capsys) -> None:
    floor, ours = _seconds(FLOOR), _seconds("import agentnb")
    with capsys.disabled():
        report("import agentnb, to pydantic and asyncio", ours / floor, 1.5, f"{ours * 1e3:.0f} ms")
    assert ours / floor < 2.5


def test_importing_agentnb_loads_no_widgets_no_plotting_and_no_http() -> None:
    program = "import sys, agentnb; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    unwanted = {"ipywidgets", "anywidget", "IPython", "matplotlib", "httpx", "stamina", "numpy", "sqlite3.dbapi2"}
    assert not unwanted - {"sqlite3.dbapi2"} & set(loaded)
