"""The static panel of a study: its sums, its arms, and its first runs, as one piece of HTML with inline styles only.

It needs no kernel, no script and no network, and without any style it still reads as two tables. Each run has its
strip as text: a mark for each model request, call, question to a person and failure, in their order.
"""

from __future__ import annotations

from typing import Any

from agentnb.core.errors import printable
from agentnb.studies import Resampling, Study
from agentnb.widgets.static.html import count, line, portable
from agentnb.widgets.static.panel import STYLE
from agentnb.widgets.static.pictures import image, share_picture
from agentnb.widgets.text import duration, one_line, visible
from agentnb.widgets.views.miniature import CALL, FAILED_CALL, FAILURE, MODEL, QUESTION
from agentnb.widgets.views.population import Line, Population
from agentnb.widgets.views.steps import steps_data

ROWS = 30
"""The maximum number of runs that are listed. Those that wait and those that have failed come first."""
MARKS = 24
"""The maximum number of marks of a run."""
ARMS = 12
"""The maximum number of arms that are listed."""
STEPS, SAMPLES = 12, 8
"""The maximum number of steps of a resampling, and of its samples, that are listed."""
BAR_WIDE, BAR_STYLE = 120, "vertical-align:middle"
"""The pixels of the bar of a step, and its style."""

_MARKS = {MODEL: "●", CALL: "■", QUESTION: "◆", FAILURE: "✕", FAILED_CALL: "□"}
_SIGNS = {"waiting": "◆ ", "failed": "✕ ", "running": "● "}
_FIRST = {"waiting": 0, "failed": 1, "running": 2}
_SPACE = "\u2003"
"""Between two cells: without any style, they would touch."""
_CELL = ' style="text-align:left;white-space:nowrap"'


def plain_study(study: Study) -> str:
    """Return a study as text: its counts, and a line for each arm."""
    head = Population(study).head()
    lines = [printable(repr(study))]
    lines += [f"  {visible(arm['name'])}: {', '.join(_counts(arm['counts']))}" for arm in head["arms"][:ARMS]]
    return "\n".join(lines)


def static_study(study: Study, population: Population | None = None, note: str = "") -> str:
    """Return the current state of a study as HTML of at most 12 kB.

    population: its rows, if there are some; otherwise they are read. note: a sentence about the page itself.
    """
    if population is None:
        population = Population(study)
        population.read()
    while population.follow():
        pass
    head = population.head()
    room = SAMPLES if isinstance(study, Resampling) else ROWS
    runs = sorted(population.lines, key=lambda one: _FIRST.get(one.run.status, 3))[:room]
    shown = sorted(runs, key=lambda one: (_FIRST.get(one.run.status, 3), one.number))
    took = f" · {duration(head['seconds'])}" if head["seconds"] else ""
    state = [] if head["sign"] in ("waiting", "failed") else [line(head["words"], 40)]  # the counts have these words
    words = " · ".join([*state, ", ".join(_counts(head["counts"]))])
    parts = [
        f"<div><b>{line(head['name'], 80)}</b> · {words}{took}</div>",
        f'<div style="opacity:.72">{line(_about(study, head), 200)}</div>',
        f'<div style="margin:4px 0">{line(note)}</div>' if note else "",
        _steps(study) if isinstance(study, Resampling) else _arms(head),
        _runs(shown, population),
    ]
    if (more := len(population.lines) - len(shown)) > 0:
        parts.append(f'<div style="opacity:.72">and {count(more, "more run")}</div>')
    parts.append('<div style="opacity:.72">● model · ■ call · □ failed call · ◆ you were asked · ✕ model failed</div>')
    return portable(f'<div aria-label="Study">{"".join(parts)}</div>', STYLE)


def _about(study: Study, head: dict[str, Any]) -> str:
    inputs = head["inputs"]
    if isinstance(study, Resampling):
        grid = f"{count(len(head['arms']), 'step')}, {count(head['repeats'], 'sample')} of each"
    else:
        grid = f"{count(len(head['arms']), 'arm')}, {count(len(inputs), 'input')}, {count(head['repeats'], 'repeat')}"
    parts = [
        grid,
        *head["loops"],
        *(inputs if len(inputs) == 1 else []),
    ]
    return " · ".join(part for part in parts if part)


def _counts(counts: dict[str, int]) -> list[str]:
    words = {"waiting": "waiting for you"}
    order = ("done", "running", "waiting", "paused", "failed", "interrupted", "cancelled", "not started")
    return [f"{counts[status]:,} {words.get(status, status)}" for status in order if counts.get(status)]


def _steps(drawn: Resampling) -> str:
    """Return a row for each step of a resampling: the share of its samples that differ from the run, with a bar."""
    found = steps_data(drawn, drawn.step_sums())
    rows = []
    for step in found["steps"][:STEPS]:
        flips, low, high = step["flips"]
        share = flips / step["n"] if step["n"] else 0.0
        words = f"{share:.0%} ({flips} of {step['n']}; {low:.0%} to {high:.0%})" if step["n"] else "no samples yet"
        words += f"; {step['failed']} failed" if step["failed"] else ""
        bar = image(share_picture(share, low, high, BAR_WIDE), words, BAR_WIDE, BAR_STYLE) if step["n"] else ""
        rows.append([line(f"{step['name']}, #{step['at']}", 80), bar, line(words, 80), line(step["recorded"], 60)])
    heading = "the run ended with" if found["until"] == "end" else "in the run"
    more = len(found["steps"]) - STEPS
    rest = f'<div style="opacity:.72">and {count(more, "more step")}</div>' if more > 0 else ""
    return _html_table("Steps", ["step", "differs from the run", "of those with a value", heading], rows) + rest


def _arms(head: dict[str, Any]) -> str:
    top = head["outcomes"][:1]
    names = ["arm", "runs", *(f"ends with “{one_line(text, 30)}”" for text in top), "turns", "tokens", "time", "you"]
    rows = [
        [
            arm["name"],
            ", ".join(_counts(arm["counts"])),
            *(_share(arm["shares"][0], arm["ended"]) for _ in top),
            "" if arm["turns"] is None else f"{arm['turns']:g}",
            "" if arm["tokens"] is None else f"{arm['tokens']:,}",
            "" if arm["seconds"] is None else duration(arm["seconds"]),
            "" if arm["waited"] is None else duration(arm["waited"]),
        ]
        for arm in head["arms"][:ARMS]
    ]
    return _table("Arms", *_without_empty(names, rows)) + _difference(head)


def _difference(head: dict[str, Any]) -> str:
    """Return the difference of two arms in words."""
    if not head["differences"]:
        return ""
    points, low, high = (round(100 * share) for share in head["differences"][0])
    if points < 0:
        points, low, high = -points, -high, -low
    words = f"The difference is {count(points, 'point')}, {low} to {high} (95 %, Newcombe)"
    return f"<div>{words}{': it may be chance' if low <= 0 else ''}.</div>"


def _share(share: list[float], ended: int) -> str:
    number, low, high = share
    return f"{number / ended:.0%} ({number:g} of {ended}; {low:.0%} to {high:.0%})" if ended else ""


def _runs(lines: list[Line], population: Population) -> str:
    rows = []
    for one in lines:
        kind, words = one.outcome()
        mini = one.mini
        marks = "".join(_MARKS[int(mark[0])] for mark in mini.marks[:MARKS])
        rows.append(
            [
                population.name_of(one),
                f"{_SIGNS.get(kind, '')}{one_line(words, 40)}",
                marks + ("…" if len(mini.marks) > MARKS else ""),
                f"{mini.turns:,}" if mini.position else "",
                f"{mini.calls:,}" if mini.position else "",
                duration(mini.seconds) if mini.position else "",
                duration(mini.waited) if mini.waited else "",
            ]
        )
    columns = ["run", "outcome", "strip", "turns", "calls", "time", "you"]
    return _table("Runs", *_without_empty(columns, rows))


def _without_empty(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that have no text in any row."""
    kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    return [columns[number] for number in kept], [[row[number] for number in kept] for row in rows]


def _table(name: str, columns: list[str], rows: list[list[str]]) -> str:
    return _html_table(name, columns, [[line(cell, 80) for cell in row] for row in rows])


def _html_table(name: str, columns: list[str], rows: list[list[str]]) -> str:
    """Return a table whose cells are HTML."""
    head = "".join(f"<th{_CELL}>{line(column, 80)}{_SPACE}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{cell}{_SPACE}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table aria-label="{name}" style="margin:6px 0;border-collapse:collapse"><tr>{head}</tr>{body}</table>'
