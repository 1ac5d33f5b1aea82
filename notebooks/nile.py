"""The agent of the first notebook: its tools, its model and its loop. The first notebook explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from analyst import analyst
from columns import evaluate

from agentnb import SessionLoop, tool

DATA, REPORTS = Path(__file__).parent / "data", Path("reports")
RULES = "You analyse data. Use the tools, and state no number that they did not give."
QUESTION = (
    "Somewhere between 1871 and 1970 the yearly flow of the Nile at Aswan changed its level. "
    "Find the year, say how large the change is and how sure we can be, and write a short report."
)


def researcher(llm: Any = None, **options: Any) -> SessionLoop:
    """Return the loop. llm: its model, by default the scripted analyst. options: other options of the loop."""
    return SessionLoop(
        llm or analyst(), TOOLS, **{"name": "researcher", "system_prompt": RULES, "max_turns": 12, **options}
    )


def read(file: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the columns of a table by name."""
    if file not in (known := [path.name for path in DATA.glob("*.csv")]):
        raise ValueError(f"There is no table {file!r}; there are {known}.")
    rows = np.genfromtxt(DATA / file, delimiter=",", names=True)
    return {name: rows[name] for name in rows.dtype.names}


@tool
def describe_tables() -> list[dict[str, Any]]:
    """The tables there are, with their columns' ranges."""
    tables = {path.name: read(path.name) for path in sorted(DATA.glob("*.csv"))}
    return [
        {
            "file": file,
            "rows": len(next(iter(columns.values()))),
            "columns": {n: {"min": c.min(), "max": c.max(), "mean": c.mean()} for n, c in columns.items()},
        }
        for file, columns in tables.items()
    ]


@tool
def extremes(file: str, column: str, count: int = 3) -> dict[str, Any]:
    """The years with the smallest and the largest values of a column."""
    columns = read(file)
    order = np.argsort(columns[column])
    rows = [{"year": columns["year"][i], column: columns[column][i]} for i in order]
    return {"smallest": rows[:count], "largest": rows[: -count - 1 : -1]}


@tool
def compare_splits(file: str, column: str, years: list[int]) -> list[dict[str, Any]]:
    """For each year: a column's mean before it and from it on, and the share of variance this split leaves.

    Args:
        years: each the first year of the later part
    """
    columns = read(file)
    values, total = columns[column], columns[column].var() * columns[column].size
    compared = []
    for year in years:
        parts = [values[columns["year"] < year], values[columns["year"] >= year]]
        if not all(part.size for part in parts):
            raise ValueError(f"{year} leaves no years on one side.")
        before, after = (round(float(part.mean()), 1) for part in parts)
        unexplained = round(sum(part.var() * part.size for part in parts) / total, 4)
        compared.append({"year": year, "mean_before": before, "mean_after": after, "unexplained": unexplained})
    return compared


@tool
def compute(file: str, expression: str) -> float:
    """Arithmetic on columns that comes to one number, such as mean(volume[year < 1900]) / std(volume)."""
    return round(evaluate(expression, read(file)), 4)


@tool(approve=True, needs="write")
def write_report(name: str, text: str) -> str:
    """Write a report for people to read, a Markdown file such as nile.md."""
    if Path(name).name != name or Path(name).suffix != ".md":
        raise ValueError(f"{name!r} is not the plain name of a Markdown file.")
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / name).write_text(text, encoding="utf-8")
    return f"{len(text)} characters in {(REPORTS / name).as_posix()}"


TOOLS = [describe_tables, extremes, compare_splits, compute, write_report]
