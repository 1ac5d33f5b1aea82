"""Figures of recordings, one call each (matplotlib).

A figure is made of axes that are returned, and of nothing else: pyplot and its state are never touched. Drawn without
`axes=`, they come on a figure of their own, which shows itself as the last line of a cell: `timeline(run).figure`.
With `axes=` they are drawn where you say, and what you have set up there stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import groupby
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from agentnb.analysis.call_rows import CallRow, call_rows
from agentnb.analysis.message_rows import message_rows
from agentnb.analysis.sources import one_source, sources
from agentnb.analysis.stretches import Stretch, phases, stretches

COLOURS: Mapping[str, str] = {
    "model": "#8a96a3",
    "tool": "#2a78b8",
    "waiting": "#d9a441",
    "failed": "#c8553d",
    "paused": "#b9b9b9",
}
"""What each kind of thing is drawn in; told apart also without seeing colours, by where and how wide it is."""

SHADES = ("#2a78b8", "#d9a441", "#5b9279", "#c8553d", "#7d6b9e", "#8a96a3", "#b07d62", "#4f8fa3")
DECIDED: Mapping[str, str] = {
    "approve": "#5b9279",
    "edit": "#2a78b8",
    "replace": "#7d6b9e",
    "answer": "#4f8fa3",
    "reject": "#c8553d",
    "ask": "#8a96a3",
}
LANES = 60
"""Rows of a timeline: of more, those that took longest are drawn."""


class Chart(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot has been set up there."""

    def _repr_png_(self) -> bytes:
        self.savefig(file := BytesIO(), format="png", dpi=110)
        return file.getvalue()


def _axes(axes: Axes | None, width: float, height: float) -> Axes:
    if axes is not None:
        return axes
    figure = Chart(figsize=(width, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def timeline(of: Any, *, axes: Axes | None = None) -> Axes:
    """What ran when, in parallel, and waiting for whom: a row for each loop's model and for each call.

    of: one recording. x is in seconds since its first event. Raises UsageError where it is not one.
    """
    source = one_source(of)
    drawn = _longest(stretches(source), LANES)
    lanes = list(dict.fromkeys(stretch.lane for stretch in drawn))
    axes = _axes(axes, 9, 1.2 + 0.24 * max(3, len(lanes)))
    shortest = 0.002 * max((stretch.end for stretch in drawn), default=0)  # what takes no time is still to be seen
    for kind in COLOURS:
        for number, lane in enumerate(lanes):
            bars = [(s.start, max(s.end - s.start, shortest)) for s in drawn if (s.lane, s.kind) == (lane, kind)]
            if bars:
                axes.broken_barh(bars, (number - 0.36, 0.72), facecolor=COLOURS[kind], linewidth=0)
    axes.set_title(f"{source.name}: what ran when", loc="left")
    axes.set(xlabel="seconds", xlim=(0, None), yticks=range(len(lanes)))
    axes.set_yticklabels([lane[-1] for lane in lanes])
    axes.set_ylim(max(2, len(lanes)) - 0.5, -0.5)
    _key(axes, [kind for kind in COLOURS if any(stretch.kind == kind for stretch in drawn)], COLOURS)
    return axes


def _longest(found: Sequence[Stretch], lanes: int) -> list[Stretch]:
    spent: dict[tuple[str, ...], float] = {}
    for stretch in found:
        spent[stretch.lane] = spent.get(stretch.lane, 0.0) + stretch.end - stretch.start
    kept = set(sorted(spent, key=lambda lane: -spent[lane])[:lanes])
    return [stretch for stretch in found if stretch.lane in kept]


def _key(axes: Axes, names: Iterable[str], colours: Mapping[str, str]) -> None:
    """The legend: on a figure of our own outside of the axes, where it hides nothing."""
    patches = [Patch(color=colours[name], label=name) for name in names]
    if patches and isinstance(axes.figure, Chart):
        axes.figure.legend(handles=patches, loc="outside lower left", ncols=6, frameon=False, fontsize=9)
    elif patches:
        axes.legend(handles=patches, frameon=False, fontsize=9)


def dwell_times(of: Any, *, axes: Axes | None = None) -> Axes:
    """How long each loop was in each of its phases: a bar for each loop, in seconds.

    of: one recording or several; loops of several runs are told apart by the run's name.
    """
    found = sources(of)
    times: dict[str, dict[str, float]] = {}
    for source in found:
        for stretch in phases(source):
            name = stretch.lane[0] if len(found) == 1 else f"{source.name} {stretch.lane[0]}"
            loop = times.setdefault(name, {})
            loop[stretch.kind] = loop.get(stretch.kind, 0.0) + stretch.end - stretch.start
    return _stacked(times, _axes(axes, 9, 1.3 + 0.4 * max(1, len(times))), "how long in each phase", "seconds")


def _stacked(
    amounts: Mapping[str, Mapping[str, float]],
    axes: Axes,
    title: str,
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> Axes:
    """A bar for each name, made of its parts."""
    parts = list(dict.fromkeys(part for amount in amounts.values() for part in amount))
    longest = max((sum(amount.values()) for amount in amounts.values()), default=0)
    told = [part for part in parts if max(one.get(part, 0) for one in amounts.values()) > longest / 500]
    in_order = dict.fromkeys((*told, *parts))
    shades = colours or {part: SHADES[number % len(SHADES)] for number, part in enumerate(in_order)}
    behind = dict.fromkeys(amounts, 0.0)
    for part in parts:
        widths = [amount.get(part, 0.0) for amount in amounts.values()]
        axes.barh(list(amounts), widths, left=list(behind.values()), color=shades[part], height=0.66)
        behind = {name: start + width for (name, start), width in zip(behind.items(), widths, strict=True)}
    axes.set_title(title, loc="left")
    axes.set(xlabel=unit, ylim=(max(1, len(amounts)) - 0.5, -0.5))
    _key(axes, told, shades)
    return axes


def tokens(of: Any, *, axes: Axes | None = None) -> Axes:
    """Tokens read and written, and what they cost, request by request: what each run has used up to there.

    of: one recording or several. x counts the answers of a run, in the order they came; the cost, where models told it,
    is on an axis of its own at the right, in the model's currency.
    """
    axes = _axes(axes, 9, 3.6)
    costs = None
    for number, source in enumerate(found := sources(of)):
        answers = [row for row in message_rows(source) if row.role == "assistant" and not math.isnan(row.input_tokens)]
        steps = range(1, len(answers) + 1)
        whose = "" if len(found) == 1 else f"{source.name}: "
        shade = SHADES[number % len(SHADES)]
        axes.plot(steps, _running(row.input_tokens for row in answers), color=shade, marker=".", label=f"{whose}read")
        written = _running(row.output_tokens for row in answers)
        axes.plot(steps, written, color=shade, marker=".", linestyle="--", label=f"{whose}written")
        if any(row.cost > 0 for row in answers):
            costs = costs or axes.twinx()
            spent = _running(row.cost for row in answers)
            costs.plot(steps, spent, color=shade, linestyle=":", label=f"{whose}cost")
            axes.plot([], [], color=shade, linestyle=":", label=f"{whose}cost (right)")
    if costs is not None:
        costs.set(ylabel="cost", ylim=(0, None))
        costs.spines[["top"]].set_visible(False)
    axes.set_title("tokens used", loc="left")
    axes.set(xlabel="answers of the model", ylabel="tokens", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        axes.legend(frameon=False, fontsize=9)
    return axes


def _running(amounts: Iterable[float]) -> list[float]:
    total, sums = 0.0, []
    for amount in amounts:
        total += 0.0 if math.isnan(amount) else amount
        sums.append(total)
    return sums


def latency(of: Any, *, axes: Axes | None = None) -> Axes:
    """How long models and tools took: a dot for each request and call, and a line at the median.

    of: one recording or several, taken together. The axis is logarithmic, in seconds.
    """
    took: dict[str, list[float]] = {}
    for source in sources(of):
        for row in message_rows(source):
            if row.took > 0:
                took.setdefault("model", []).append(row.took)
        for call in call_rows(source):
            if call.took > 0 and not call.own:
                took.setdefault(call.tool, []).append(call.took)
    axes = _axes(axes, 9, 1.3 + 0.4 * max(2, len(took)))
    for number, (name, seconds) in enumerate(took.items()):
        shade = COLOURS["model" if name == "model" else "tool"]
        axes.plot(seconds, [number] * len(seconds), "o", color=shade, alpha=0.5, markersize=5, markeredgewidth=0)
        axes.plot([median(seconds)] * 2, [number - 0.3, number + 0.3], color="#333333", linewidth=1.6)
    axes.set_title("how long models and tools took", loc="left")
    axes.set_yticks(range(len(took)))
    axes.set_yticklabels([f"{name} ({len(seconds)})" for name, seconds in took.items()])
    axes.set_ylim(max(2, len(took)) - 0.5, -0.5)
    if took:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter("s"))
        all_of_them = [one for seconds in took.values() for one in seconds]
        few_powers = max(all_of_them) < 30 * min(all_of_them)  # of ten: too few to read the axis by
        axes.xaxis.set_minor_formatter(EngFormatter("s") if few_powers else NullFormatter())
    return axes


def approvals(of: Any, *, axes: Axes | None = None) -> Axes:
    """What was decided about the calls of each tool, and how long a person took: a bar for each tool.

    of: one recording or several, taken together. Behind each tool's name is the median of the times from the question
    to the answer, in seconds, where a person was asked.
    """
    rows = [row for source in sources(of) for row in call_rows(source) if row.decision is not None]
    rows.sort(key=lambda row: row.tool)
    counts: dict[str, dict[str, float]] = {}
    for tool, calls in groupby(rows, key=lambda row: row.tool):
        asked = list(calls)
        decided = counts[_with_wait(tool, asked)] = {}
        for row in asked:
            decided[str(row.decision)] = decided.get(str(row.decision), 0) + 1
    axes = _axes(axes, 9, 1.3 + 0.4 * max(1, len(counts)))
    _stacked(counts, axes, "what was decided about calls, and how long it took a person", "calls", DECIDED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return axes


def _with_wait(tool: str, calls: Sequence[CallRow]) -> str:
    waited = [call.waited for call in calls if not math.isnan(call.waited)]
    return f"{tool} ({median(waited):.3g} s)" if waited else tool
