"""The default model of the notebook: a scripted analyst, which needs no key and no network.

It is not a language model: its sentences are written in advance. But each turn is computed from the messages alone, as
with a language model, and every number in it is read from the results of the tools. With the data of another river it
finds another year. For the same reason it continues correctly in a restored run, and after a rejection or an edit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentnb.testing import ScriptedLLM, call, delay, text

Messages = Sequence[Mapping[str, Any]]
Chunks = Iterator[Any]

PACE = 0.02
"""Seconds between two pieces of text."""


def analyst() -> ScriptedLLM:
    """Return the analyst, as a model for any loop."""
    return ScriptedLLM([next_turn], repeat=True)


def next_turn(messages: Messages) -> Chunks:
    """Yield the next answer of the analyst: its text, piece by piece, then its calls."""
    words, calls = _decide(Notes(messages))
    for piece in text(words):
        yield piece
        yield delay(PACE)
    yield from calls


class Notes:
    """The knowledge of the analyst, read from the messages: the results of the tools, and the questions."""

    def __init__(self, messages: Messages) -> None:
        self.results: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self.problem: str | None = None
        self.refusal: str | None = None
        made = {made["id"]: made for message in messages for made in message.get("tool_calls", ())}
        for message in messages:
            if message["role"] == "tool":
                self._note(made[message["tool_call_id"]], message)
        asked = [int(year) for message in messages if message["role"] == "user" for year in _years(message["content"])]
        self.dates = [year for year in dict.fromkeys(asked) if self.table and self.first < year < self.last]

    def _note(self, made: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        if made["name"] == "write_report":
            self.refusal = message["content"] if message.get("is_error") else None
        elif message.get("is_error"):
            self.problem = message["content"]
            return
        value = message["content"] if message.get("is_error") else _read(message["content"])
        self.results.setdefault(made["name"], []).append((made["arguments"], value))

    def made(self, tool: str) -> int:
        """Return the number of calls of a tool that have a result."""
        return len(self.results.get(tool, ()))

    def computed(self, expression: str) -> float | None:
        """Return the value of an expression, or None if it was not computed."""
        made = self.results.get("compute", ())
        return next((value for given, value in made if given["expression"] == expression), None)

    @property
    def table(self) -> Mapping[str, Any]:
        """The first table of the last description; empty before the first one."""
        described = self.results.get("describe_tables")
        return described[-1][1][0] if described else {}

    @property
    def file(self) -> str:
        """The file of the table."""
        return str(self.table["file"])

    @property
    def first(self) -> int:
        """The first year of the table."""
        return int(self.table["columns"]["year"]["min"])

    @property
    def last(self) -> int:
        """The last year of the table."""
        return int(self.table["columns"]["year"]["max"])

    @property
    def column(self) -> str:
        """The column with the values of each year."""
        return next(str(name) for name in self.table["columns"] if name != "year")

    @property
    def best(self) -> Mapping[str, Any]:
        """The split that leaves the least variance unexplained, of all compared splits."""
        splits = [split for _, result in self.results["compare_splits"] for split in result]
        return min(splits, key=lambda split: float(split["unexplained"]))

    @property
    def year(self) -> int:
        """The year of the best split."""
        return int(self.best["year"])

    def over(self, condition: str) -> str:
        """Return the expression for the mean over the years that meet a condition."""
        return f"mean({self.column}[{condition}])"

    def between(self, date: int) -> str:
        """Return the expression for the mean over the years between the break and a date, in either order."""
        if date > self.year:
            return self.over(f"(year >= {self.year}) & (year < {date})")
        return self.over(f"(year >= {date}) & (year < {self.year})")


def _decide(notes: Notes) -> tuple[str, list[Any]]:
    if notes.problem is not None:
        return f"I cannot go on. A tool failed: {notes.problem}", []
    if not notes.table:
        return "First I look at what there is.", [call("describe_tables")]
    if not notes.made("compare_splits"):
        return _look_coarsely(notes)
    if notes.made("compare_splits") == 1:
        return _look_closely(notes)
    if not notes.made("compute"):
        return _doubt(notes)
    open_dates = [date for date in notes.dates if date != notes.year and notes.computed(notes.between(date)) is None]
    if open_dates:
        words = f"Before I answer: the mean over the years between the break and {open_dates[0]}."
        return words, [_compute(notes, notes.between(date)) for date in open_dates]
    if not notes.made("write_report"):
        return "That is enough for a report.", [call("write_report", {"name": "nile.md", "text": _report(notes)})]
    return _answer(notes), []


def _look_coarsely(notes: Notes) -> tuple[str, list[Any]]:
    decades = list(range((notes.first // 10 + 1) * 10, notes.last, 10))
    words = (
        f"{notes.file} has one value for each of {notes.table['rows']} years. I compare the years before and after the "
        "start of every decade, and look at the extremes meanwhile."
    )
    extremes = call("extremes", {"file": notes.file, "column": notes.column})
    return words, [call("compare_splits", _split(notes, decades)), extremes]


def _look_closely(notes: Notes) -> tuple[str, list[Any]]:
    years = [year for year in range(notes.year - 9, notes.year + 10) if notes.first + 1 < year < notes.last]
    words = f"A split at {notes.year} explains most so far. I try every year around it."
    return words, [call("compare_splits", _split(notes, years))]


def _doubt(notes: Notes) -> tuple[str, list[Any]]:
    words = (
        f"The best split is {notes.year}. A slow decline would give a best split too, so I ask for the trend on either "
        "side of it, and for the size of the step against the spread."
    )
    return words, [_compute(notes, expression) for expression in _checks(notes)]


def _checks(notes: Notes) -> tuple[str, str, str]:
    column, before, after = notes.column, f"year < {notes.year}", f"year >= {notes.year}"
    return (
        f"slope({column}[{before}], year[{before}])",
        f"slope({column}[{after}], year[{after}])",
        f"(mean({column}[{after}]) - mean({column}[{before}])) / std({column}[{after}])",
    )


def _report(notes: Notes) -> str:
    return f"# The Nile at Aswan, {notes.first} to {notes.last}\n\n{_finding(notes)}\n"


def _finding(notes: Notes) -> str:
    best, (trend_before, trend_after, step) = notes.best, (notes.computed(check) for check in _checks(notes))
    lines = [
        f"The level changed in {notes.year}: from {best['mean_before']:.0f} to {best['mean_after']:.0f} "
        f"(10⁸ m³ a year), {best['mean_after'] / best['mean_before'] - 1:+.0%}."
    ]
    if trend_before is not None and trend_after is not None and step is not None:
        lines.append(
            f"One step leaves {best['unexplained']:.0%} of the variance. On either side of it the trend is "
            f"{trend_before:+.1f} and {trend_after:+.1f} a year; the step is {abs(step):.1f} standard deviations."
        )
    for date in notes.dates:
        lines.append(_against(notes, date))
    return "\n".join(lines)


def _against(notes: Notes, date: int) -> str:
    mean = notes.computed(notes.between(date))
    if mean is None:
        return f"The change came in {date} itself."
    before, after = notes.best["mean_before"], notes.best["mean_after"]
    is_new = abs(mean - after) < abs(mean - before)
    level = "the new level already" if is_new else "still the old level"
    span = f"{notes.year} to {date - 1}" if date > notes.year else f"{date} to {notes.year - 1}"
    verdict = "it cannot have been what happened" if is_new == (date > notes.year) else "it may have been what happened"
    return f"From {span} the mean was {mean:.0f}, {level}: {verdict} in {date}."


def _answer(notes: Notes) -> str:
    said = f"There is no report: {notes.refusal}" if notes.refusal is not None else "The report is written."
    return f"{_finding(notes)}\n{said}"


def _split(notes: Notes, years: list[int]) -> dict[str, Any]:
    return {"file": notes.file, "column": notes.column, "years": years}


def _compute(notes: Notes, expression: str) -> Any:
    return call("compute", {"file": notes.file, "expression": expression})


def _read(content: str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content


def _years(content: Any) -> list[str]:
    return re.findall(r"\b1[89]\d\d\b", content) if isinstance(content, str) else []
