"""Figures of recordings, one function for each (matplotlib).

Each function returns the axes that it has drawn on, and uses neither pyplot nor its state. Without `axes=`, it makes a
new figure, which is displayed as the last line of a cell: `timeline(run).figure`. With `axes=`, it draws on the given
axes, and keeps the title and the labels that they have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from agentnb.analysis.call_rows import CallRow, call_rows
from agentnb.analysis.drawing import (
    MARKERS,
    SHADES,
    TICKS,
    axes_for,
    draw_dots,
    draw_key,
    draw_legend,
    entitle,
    ink,
    label,
    look,
    name_rows,
    say_empty,
)
from agentnb.analysis.message_rows import MessageRow, message_rows
from agentnb.analysis.sources import one_source, sources
from agentnb.analysis.stretches import Stretch, phases, stretches

COLOURS: Mapping[str, str] = {
    "model": "#8a96a3",
    "tool": "#2a78b8",
    "waiting": "#d9a441",
    "failed": "#c8553d",
    "paused": "#b9b9b9",
}
"""The colour of each kind of interval. Position and width distinguish the kinds too, for readers who see no colours."""

DECIDED: Mapping[str, str] = {
    "approve": "#5b9279",
    "edit": "#2a78b8",
    "replace": "#7d6b9e",
    "answer": "#4f8fa3",
    "reject": "#c8553d",
    "ask": "#8a96a3",
}
LANES = 60
"""The maximum number of rows of a timeline. If there are more, the longest are drawn, and the title says so."""
BARS = 30
"""The maximum number of loops with one bar each. If there are more, the distribution of their times is drawn."""
NAMED = 24
"""The maximum number of runs with a colour and a name each. With more, the legend would fill the figure."""
MARKED = 60
"""The maximum number of answers of a run with a marker each. If there are more, only the line is drawn."""


def timeline(of: Any, *, axes: Axes | None = None) -> Axes:
    """Draw when models and calls ran or waited for a person: a row for each loop's model and for each call.

    The x axis is in seconds since the first event. Of more than 60 rows, the longest are drawn.

    of: one recording. axes: the axes to draw on, None for a new figure. Returns the axes. Raises UsageError unless `of`
    is exactly one recording and `axes` are matplotlib axes.
    """
    source = one_source(of)
    found = stretches(source)
    drawn = _longest(found, LANES)
    lanes = list(dict.fromkeys(stretch.lane for stretch in drawn))
    axes = axes_for(axes, 9, 1.2 + 0.24 * max(3, len(lanes)))
    shortest = 0.002 * max((stretch.end for stretch in drawn), default=0)  # an interval without duration is visible
    for kind in COLOURS:
        for number, lane in enumerate(lanes):
            bars = [(s.start, max(s.end - s.start, shortest)) for s in drawn if (s.lane, s.kind) == (lane, kind)]
            if bars:
                axes.broken_barh(bars, (number - 0.36, 0.72), facecolor=COLOURS[kind], linewidth=0)
    there = len({stretch.lane for stretch in found})
    longest = f" (the {len(lanes)} longest of {there:,})" if there > len(lanes) else ""
    entitle(axes, f"{label(source.name)}: what ran when{longest}", x="seconds")
    axes.set_xlim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    name_rows(axes, [label(lane[-1]) for lane in lanes])
    looks = {kind: {"color": colour} for kind, colour in COLOURS.items()}
    draw_key(axes, [kind for kind in COLOURS if any(stretch.kind == kind for stretch in drawn)], looks)
    return axes


def _longest(found: Sequence[Stretch], lanes: int) -> list[Stretch]:
    spent: dict[tuple[str, ...], float] = {}
    for stretch in found:
        spent[stretch.lane] = spent.get(stretch.lane, 0.0) + stretch.end - stretch.start
    kept = set(sorted(spent, key=lambda lane: -spent[lane])[:lanes])
    return [stretch for stretch in found if stretch.lane in kept]


def dwell_times(of: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the time in seconds that each loop spent in each of its phases: a bar for each loop.

    With more than 30 loops, draw a row for each phase instead, with a dot for each loop and a line at the median, on a
    logarithmic axis.

    of: one recording or several; the labels of loops of several runs have the run's name. axes: the axes to draw on,
    None for a new figure. Returns the axes. Raises UsageError if `of` is not a recording or `axes` are not matplotlib
    axes.
    """
    found = sources(of)
    times: dict[tuple[str, str], dict[str, float]] = {}
    for source in found:
        for stretch in phases(source):
            loop = times.setdefault(("" if len(found) == 1 else source.name, stretch.lane[0]), {})
            loop[stretch.kind] = loop.get(stretch.kind, 0.0) + stretch.end - stretch.start
    if len(times) > BARS:
        return _spread(axes, times)
    axes = axes_for(axes, 9, 1.3 + 0.4 * max(1, len(times)))
    # Each phase has one style in all bars.
    parts = dict.fromkeys(part for loop in times.values() for part in loop)
    told = _told(parts, list(times.values()))  # visible parts have the styles that are easiest to distinguish
    looks = {part: look(number) for number, part in enumerate(dict.fromkeys((*told, *parts)))}
    _stacked(axes, [label(f"{run} {loop}" if run else loop) for run, loop in times], list(times.values()), looks)
    entitle(axes, "how long in each phase", x="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    return axes


def _spread(axes: Axes | None, times: Mapping[tuple[str, str], Mapping[str, float]]) -> Axes:
    """Draw the distribution of the times of many loops in each phase, and return the axes.

    There is a row for each phase of each loop, or, if these would be more than `BARS`, for each phase of all loops.
    """
    loops = {loop for _, loop in times}
    apart = len(loops) > 1 and len({(loop, phase) for (_, loop), spent in times.items() for phase in spent}) <= BARS
    took: dict[str, list[float]] = {}
    for (_, loop), spent in sorted(times.items(), key=lambda one: one[0][1]):
        for phase, seconds in spent.items():
            if seconds > 0:  # a logarithmic axis has no zero
                took.setdefault(f"{loop}: {phase}" if apart else phase, []).append(seconds)
    axes = axes_for(axes, 9, 1.3 + 0.4 * max(2, len(took)))
    entitle(axes, f"how long in each phase ({len(times):,} loops)")
    draw_dots(axes, took, {}, COLOURS["tool"])
    return axes


def _stacked(
    axes: Axes, labels: Sequence[str], amounts: Sequence[Mapping[str, float]], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draw a bar for each label, which consists of its parts in the order of `looks`, and a legend of the parts.

    amounts: the parts of each label's bar. looks: the style of each part.
    """
    behind = [0.0] * len(amounts)
    parts = [part for part in looks if any(part in amount for amount in amounts)]
    for part in parts:
        widths = [amount.get(part, 0.0) for amount in amounts]
        axes.barh(range(len(amounts)), widths, left=behind, height=0.66, **looks[part])
        behind = [start + width for start, width in zip(behind, widths, strict=True)]
    name_rows(axes, labels, rows=1)
    axes.set_xlim(0, None)
    draw_key(axes, _told(parts, amounts), looks)


def _told(parts: Iterable[str], amounts: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts that are wide enough to be visible in a bar, for the legend."""
    longest = max((sum(amount.values()) for amount in amounts), default=0)
    return [part for part in parts if max(one.get(part, 0) for one in amounts) > longest / 500]


def tokens(of: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the cumulative number of tokens that each run has read and written, and their cost.

    The x axis counts the answers of a run, in order. The cost has a separate axis at the right, in the model's
    currency. It is drawn only if the models reported it.

    of: one recording or several. axes: the axes to draw on, None for a new figure. Returns the axes of the tokens.
    Raises UsageError if `of` is not a recording or `axes` are not matplotlib axes.
    """
    axes = axes_for(axes, 9, 3.6)
    costs = None
    used: dict[str, list[MessageRow]] = {}
    for source in sources(of):
        rows = [row for row in message_rows(source) if row.role == "assistant" and not math.isnan(row.input_tokens)]
        used |= {source.name: rows} if rows else {}
    # One line for each run and quantity; with many runs, all lines have one colour and are translucent.
    for number, (name, answers) in enumerate(used.items()):
        whose = "" if len(used) == 1 else f"{name}: "
        steps = range(1, len(answers) + 1)
        drawn = _line(number) if len(used) <= NAMED else {"color": SHADES[0], "alpha": 0.3, "linewidth": 1}
        if len(answers) > MARKED:
            drawn["marker"] = ""
        axes.plot(steps, _running(row.input_tokens for row in answers), label=f"{whose}read", **drawn)
        axes.plot(
            steps, _running(row.output_tokens for row in answers), label=f"{whose}written", linestyle="--", **drawn
        )
        if any(row.cost > 0 for row in answers):
            costs = costs or axes.twinx()
            costs.plot(steps, _running(row.cost for row in answers), label=f"{whose}cost", linestyle=":", **drawn)
    if costs is not None:
        costs.set(ylabel="cost", ylim=(0, None))
        costs.spines[["top"]].set_visible(False)
    many = f" ({len(used):,} runs)" if len(used) > NAMED else ""
    entitle(axes, f"tokens used{many}", x="answers of the model", y="tokens")
    axes.set_ylim(0, None)
    axes.set_xlim(0, max(map(len, used.values()), default=0) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name_lines(axes, list(used), has_cost=costs is not None)
    if not used:
        say_empty(axes, "no model has told how many tokens it used")
    return axes


def _line(number: int) -> dict[str, Any]:
    """Return the style of the lines of the run with this index."""
    mark = MARKERS[number // len(SHADES) % len(MARKERS)]
    return {"color": SHADES[number % len(SHADES)], "marker": mark, "markersize": 4}


def _name_lines(axes: Axes, runs: Sequence[str], *, has_cost: bool) -> None:
    """Draw the legend: the line styles with their meanings, then the colour of each run if there are several runs."""
    named = 1 < len(runs) <= NAMED
    colour = ink() if named else SHADES[0]
    lines = [
        Line2D([], [], color=colour, label="read"),
        Line2D([], [], color=colour, label="written", linestyle="--"),
        *([Line2D([], [], color=colour, label="cost (right)", linestyle=":")] if has_cost else []),
    ]
    if named:
        lines += [Line2D([], [], label=label(name, 24), **_line(number)) for number, name in enumerate(runs)]
    draw_legend(axes, lines if runs else [], columns=4 if named else 6)


def _running(amounts: Iterable[float]) -> list[float]:
    return list(accumulate(0.0 if math.isnan(amount) else amount for amount in amounts))


def latency(of: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the durations of model requests and tool calls: a dot for each, and a line at the median of each row.

    The x axis is logarithmic, in seconds. There is a row for the models and one for each tool.

    of: one recording or several, combined. axes: the axes to draw on, None for a new figure. Returns the axes. Raises
    UsageError if `of` is not a recording or `axes` are not matplotlib axes.
    """
    took: dict[str, list[float]] = {}
    for source in sources(of):
        for row in message_rows(source):
            if row.took > 0:
                took.setdefault("model", []).append(row.took)
        for call in call_rows(source):
            if call.took > 0 and not call.own:
                took.setdefault(call.tool, []).append(call.took)
    axes = axes_for(axes, 9, 1.3 + 0.4 * max(2, len(took)))
    entitle(axes, "how long models and tools took")
    draw_dots(axes, took, {"model": COLOURS["model"]}, COLOURS["tool"])
    if not took:
        say_empty(axes, "no request was answered, and no call came to an end")
    return axes


def approvals(of: Any, *, axes: Axes | None = None) -> Axes:
    """Draw the decisions about the calls of each tool: a bar for each tool.

    If a person was asked, the label of the tool has the median of the times from the question to the decision.

    of: one recording or several, combined. axes: the axes to draw on, None for a new figure. Returns the axes. Raises
    UsageError if `of` is not a recording or `axes` are not matplotlib axes.
    """
    rows = [row for source in sources(of) for row in call_rows(source) if row.decision is not None]
    rows.sort(key=lambda row: row.tool)
    labels: list[str] = []
    counts: list[Mapping[str, float]] = []
    for tool, of_tool in groupby(rows, key=lambda row: row.tool):
        calls = list(of_tool)
        labels.append(_with_wait(tool, calls))
        counts.append(Counter(str(row.decision) for row in calls))
    axes = axes_for(axes, 9, 1.3 + 0.4 * max(1, len(counts)))
    _stacked(axes, labels, counts, {decision: {"color": colour} for decision, colour in DECIDED.items()})
    entitle(axes, "what was decided about calls, and how long it took a person", x="calls")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not counts:
        say_empty(axes, "nothing was decided about any call")
    return axes


def _with_wait(tool: str, calls: Sequence[CallRow]) -> str:
    waited = [call.waited for call in calls if not math.isnan(call.waited)]
    return f"{label(tool)} ({EngFormatter('s', places=1)(median(waited))})" if waited else tool
