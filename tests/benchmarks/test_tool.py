"""The definition of a tool costs little: its schema and its validator are built at the first use."""

from __future__ import annotations

import time
from typing import Any

from agentnb import tool
from tests.benchmarks.measure import report


def search(query: str, limit: int = 10, exact: bool = False) -> str:
    """Search the corpus.

    Args:
        query: the words to search for
        limit: the maximum of results
        exact: whether the words must be adjacent
    """
    return ""


def least_seconds(make: Any) -> float:
    times = []
    for _ in range(50):
        started = time.process_time()
        make()
        times.append(time.process_time() - started)
    return min(times)


def test_the_definition_of_a_tool_costs_a_fraction_of_its_schema(capsys: Any) -> None:
    with_schema = least_seconds(lambda: tool(search).parameters)
    defined = least_seconds(lambda: tool(search))
    with capsys.disabled():
        report("@tool, to @tool with its schema", defined / with_schema, 0.2, f"{defined * 1e6:.0f} us")
    assert defined / with_schema < 0.3
