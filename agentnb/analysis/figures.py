"""Figures of recordings, one function for each (matplotlib).

Each function returns the axes that it has drawn on, and uses neither pyplot nor its state. Without `ax=`, it makes a
new figure, which is displayed as the last line of a cell: `timeline(run).figure`. With `ax=`, it draws on the given
axes, and keeps the title and the labels that they have.

A figure is a single image in a notebook that is read on light and on dark pages, so it has an opaque background, as the
panel and its diagram have. No text colour has a contrast of 4.5:1 both on white and on JupyterLab's dark background.
Markup that follows the page's theme is no alternative, because Jupyter removes it from a notebook that is not trusted.
The user's matplotlib style sets the background and the text colour: with `matplotlib.style.use("dark_background")` all
figures are dark.

Names come from models, tools and people; a figure shows them as text on one line and never as mathematical notation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate, groupby
from statistics import median
from typing import Any

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from agentnb.analysis.intervals import intervals, phases
from agentnb.analysis.rows import MessageRow, call_rows, message_rows
from agentnb.analysis.sources import one_source, sources
from agentnb.core.errors import UsageError
from agentnb.run.validation import shown
from agentnb.widgets.text import one_line, visible

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
WIDTH = 36
"""The maximum number of characters of a name."""
SHADES = ("#2a78b8", "#d9a441", "#5b9279", "#c8553d", "#7d6b9e", "#8a96a3", "#b07d62", "#4f8fa3")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
"""The hatches of parts with the same shade, used if there are more parts than shades."""
MARKERS = (".", "s", "^", "v", "D")

TICKS = 6
"""The number of intervals of an axis in seconds, chosen so that the labels of short times do not overlap."""


def timeline(of: Any, *, ax: Axes | None = None, axes: Axes | None = None) -> Axes:
    """Draw when models and calls ran or waited for a person: a row for each loop's model and for each call.

    The x axis is in seconds since the first event. Of more than 60 rows, the longest are drawn.

    of: one recording. ax: the axes to draw on, None for a new figure; `axes` is another name. Returns the axes.
    Raises UsageError unless `of` is exactly one recording and `ax` is matplotlib axes.
    """
    source = one_source(of)
    found = intervals(source)

    # Of too many lanes, draw those with the longest total time.
    spent: dict[tuple[str, ...], float] = {}
    for interval in found:
        spent[interval.lane] = spent.get(interval.lane, 0.0) + interval.end - interval.start
    longest = set(sorted(spent, key=lambda lane: -spent[lane])[:LANES])
    drawn = [interval for interval in found if interval.lane in longest]
    lanes = list(dict.fromkeys(interval.lane for interval in drawn))

    axes = _axes_for(axes if ax is None else ax, 9, 1.2 + 0.24 * max(3, len(lanes)))
    shortest = 0.002 * max((interval.end for interval in drawn), default=0)  # an interval without duration is visible
    for kind in COLOURS:
        for number, lane in enumerate(lanes):
            bars = [(i.start, max(i.end - i.start, shortest)) for i in drawn if (i.lane, i.kind) == (lane, kind)]
            if bars:
                axes.broken_barh(bars, (number - 0.36, 0.72), facecolor=COLOURS[kind], linewidth=0)
    selected = f" (the {len(lanes)} longest of {len(spent):,})" if len(spent) > len(lanes) else ""
    _set_title(axes, f"{_label(source.name)}: what ran when{selected}", x="seconds")
    axes.set_xlim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    _label_rows(axes, [_label(lane[-1]) for lane in lanes])
    styles = {kind: {"color": colour} for kind, colour in COLOURS.items()}
    _draw_key(axes, [kind for kind in COLOURS if any(interval.kind == kind for interval in drawn)], styles)
    return axes


def dwell_times(of: Any, *, ax: Axes | None = None, axes: Axes | None = None) -> Axes:
    """Draw the time in seconds that each loop spent in each of its phases: a bar for each loop.

    With more than 30 loops, draw a row for each phase instead, with a dot for each loop and a line at the median, on a
    logarithmic axis.

    of: one recording or several; the labels of loops of several runs have the run's name. ax: the axes to draw on,
    None for a new figure; `axes` is another name. Returns the axes. Raises UsageError if `of` is not a recording or
    `ax` is not matplotlib axes.
    """
    found = sources(of)
    times: dict[tuple[str, str], dict[str, float]] = {}
    for source in found:
        for interval in phases(source):
            loop = times.setdefault(("" if len(found) == 1 else source.name, interval.lane[0]), {})
            loop[interval.kind] = loop.get(interval.kind, 0.0) + interval.end - interval.start
    if len(times) > BARS:
        return _draw_distributions(axes if ax is None else ax, times)
    axes = _axes_for(axes if ax is None else ax, 9, 1.3 + 0.4 * max(1, len(times)))
    # Each phase has one style in all bars. Visible parts have the styles that are easiest to distinguish.
    amounts = list(times.values())
    parts = dict.fromkeys(part for loop in amounts for part in loop)
    ordered = dict.fromkeys((*_visible(parts, amounts), *parts))
    styles = {part: part_style(number) for number, part in enumerate(ordered)}
    _draw_stacked(axes, [_label(f"{run} {loop}" if run else loop) for run, loop in times], amounts, styles)
    _set_title(axes, "how long in each phase", x="seconds")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    return axes


def _draw_distributions(axes: Axes | None, times: Mapping[tuple[str, str], Mapping[str, float]]) -> Axes:
    """Draw the distribution of the times of many loops in each phase, and return the axes.

    There is a row for each phase of each loop, or, if these would be more than `BARS`, for each phase of all loops.
    """
    loops = {loop for _, loop in times}
    rows = {(loop, phase) for (_, loop), spent in times.items() for phase in spent}
    separate = len(loops) > 1 and len(rows) <= BARS
    took: dict[str, list[float]] = {}
    for (_, loop), spent in sorted(times.items(), key=lambda one: one[0][1]):
        for phase, seconds in spent.items():
            if seconds > 0:  # a logarithmic axis has no zero
                took.setdefault(f"{loop}: {phase}" if separate else phase, []).append(seconds)
    axes = _axes_for(axes, 9, 1.3 + 0.4 * max(2, len(took)))
    _set_title(axes, f"how long in each phase ({len(times):,} loops)")
    _draw_dots(axes, took, {}, COLOURS["tool"])
    return axes


def tokens(of: Any, *, ax: Axes | None = None, axes: Axes | None = None) -> Axes:
    """Draw the cumulative number of tokens that each run has read and written, and their cost.

    The x axis counts the answers of a run, in order. The cost has a separate axis at the right, in the model's
    currency. It is drawn only if the models reported it.

    of: one recording or several. ax: the axes to draw on, None for a new figure; `axes` is another name. Returns
    the axes of the tokens. Raises UsageError if `of` is not a recording or `ax` is not matplotlib axes.
    """
    axes = _axes_for(axes if ax is None else ax, 9, 3.6)
    costs = None
    used: dict[str, list[MessageRow]] = {}
    for source in sources(of):
        rows = [row for row in message_rows(source) if row.role == "assistant" and not math.isnan(row.input_tokens)]
        used |= {source.name: rows} if rows else {}
    # One line for each run and quantity; with many runs, all lines have one colour and are translucent.
    for number, (name, answers) in enumerate(used.items()):
        whose = "" if len(used) == 1 else f"{name}: "
        steps = range(1, len(answers) + 1)
        drawn = _line_style(number) if len(used) <= NAMED else {"color": SHADES[0], "alpha": 0.3, "linewidth": 1}
        if len(answers) > MARKED:
            drawn["marker"] = ""
        read = _cumulative(row.input_tokens for row in answers)
        written = _cumulative(row.output_tokens for row in answers)
        axes.plot(steps, read, label=f"{whose}read", **drawn)
        axes.plot(steps, written, label=f"{whose}written", linestyle="--", **drawn)
        if any(row.cost > 0 for row in answers):
            costs = costs or axes.twinx()
            costs.plot(steps, _cumulative(row.cost for row in answers), label=f"{whose}cost", linestyle=":", **drawn)
    if costs is not None:
        costs.set(ylabel="cost", ylim=(0, None))
        costs.spines[["top"]].set_visible(False)
    many = f" ({len(used):,} runs)" if len(used) > NAMED else ""
    _set_title(axes, f"tokens used{many}", x="answers of the model", y="tokens")
    axes.set_ylim(0, None)
    axes.set_xlim(0, max(map(len, used.values()), default=0) + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_key_of_lines(axes, list(used), has_cost=costs is not None)
    if not used:
        _write_note(axes, "no model reported how many tokens it used")
    return axes


def _cumulative(amounts: Iterable[float]) -> list[float]:
    return list(accumulate(0.0 if math.isnan(amount) else amount for amount in amounts))


def latency(of: Any, *, ax: Axes | None = None, axes: Axes | None = None) -> Axes:
    """Draw the durations of model requests and tool calls: a dot for each, and a line at the median of each row.

    The x axis is logarithmic, in seconds. There is a row for the models and one for each tool.

    of: one recording or several, combined. ax: the axes to draw on, None for a new figure; `axes` is another name.
    Returns the axes. Raises UsageError if `of` is not a recording or `ax` is not matplotlib axes.
    """
    took: dict[str, list[float]] = {}
    for source in sources(of):
        for row in message_rows(source):
            if row.took > 0:
                took.setdefault("model", []).append(row.took)
        for call in call_rows(source):
            if call.took > 0 and not call.own:
                took.setdefault(call.tool, []).append(call.took)
    axes = _axes_for(axes if ax is None else ax, 9, 1.3 + 0.4 * max(2, len(took)))
    _set_title(axes, "how long models and tools took")
    _draw_dots(axes, took, {"model": COLOURS["model"]}, COLOURS["tool"])
    if not took:
        _write_note(axes, "no request has been answered, and no call has ended")
    return axes


def approvals(of: Any, *, ax: Axes | None = None, axes: Axes | None = None) -> Axes:
    """Draw the decisions about the calls of each tool: a bar for each tool.

    If a person was asked, the label of the tool has the median of the times from the question to the decision.

    of: one recording or several, combined. ax: the axes to draw on, None for a new figure; `axes` is another name.
    Returns the axes. Raises UsageError if `of` is not a recording or `ax` is not matplotlib axes.
    """
    rows = [row for source in sources(of) for row in call_rows(source) if row.decision is not None]
    rows.sort(key=lambda row: row.tool)
    labels: list[str] = []
    counts: list[Mapping[str, float]] = []
    for tool, of_tool in groupby(rows, key=lambda row: row.tool):
        calls = list(of_tool)
        waited = [call.waited for call in calls if not math.isnan(call.waited)]
        median_wait = f" ({EngFormatter('s', places=1)(median(waited))})" if waited else ""
        labels.append(_label(tool) + median_wait)
        counts.append(Counter(str(row.decision) for row in calls))
    axes = _axes_for(axes if ax is None else ax, 9, 1.3 + 0.4 * max(1, len(counts)))
    _draw_stacked(axes, labels, counts, {decision: {"color": colour} for decision, colour in DECIDED.items()})
    _set_title(axes, "what was decided about calls, and how long it took a person", x="calls")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not counts:
        _write_note(axes, "there are no decisions about calls")
    return axes


# -- common parts: axes, labels, styles and legends -------------------------------------------------------------------


class Chart(Figure):
    """A figure that a notebook displays, also if pyplot has not been set up there."""

    def _repr_png_(self) -> bytes:
        self.savefig(file := BytesIO(), format="png", dpi=110)
        return file.getvalue()


def _axes_for(axes: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or the axes of a new figure of `width` by `height` inches if `axes` is None.

    Raises UsageError if `axes` are not matplotlib axes.
    """
    if isinstance(axes, Axes):
        return axes
    if axes is not None:
        raise UsageError(f"axes must be matplotlib axes, for example figure.subplots(), got {shown(axes)}.")
    figure = Chart(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _set_title(axes: Axes, title: str, *, x: str = "", y: str = "") -> None:
    """Set the title and the labels of the axes, each only if it is not set."""
    if not any(axes.get_title(where) for where in ("left", "center", "right")):
        axes.set_title(title, loc="left")
    if not axes.get_xlabel():
        axes.set_xlabel(x)
    if not axes.get_ylabel():
        axes.set_ylabel(y)


def _write_note(axes: Axes, note: str) -> None:
    """Write the reason for an empty figure, because empty axes look like an error."""
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", color=_text_colour())


def _text_colour() -> Any:
    """Return the text colour of the user's matplotlib style."""
    return rcParams["text.color"]


def _background() -> Any:
    """Return the background colour of the user's matplotlib style."""
    return rcParams["axes.facecolor"]


def _draw_stacked(
    axes: Axes, labels: Sequence[str], amounts: Sequence[Mapping[str, float]], styles: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draw a bar for each label, which consists of its parts in the order of `styles`, and a legend of the parts.

    amounts: the parts of each label's bar. styles: the style of each part.
    """
    starts = [0.0] * len(amounts)
    parts = [part for part in styles if any(part in amount for amount in amounts)]
    for part in parts:
        widths = [amount.get(part, 0.0) for amount in amounts]
        axes.barh(range(len(amounts)), widths, left=starts, height=0.66, **styles[part])
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _label_rows(axes, labels, rows=1)
    axes.set_xlim(0, None)
    _draw_key(axes, _visible(parts, amounts), styles)


def _visible(parts: Iterable[str], amounts: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the parts that are wide enough to be visible in a bar, for the legend."""
    longest = max((sum(amount.values()) for amount in amounts), default=0)
    return [part for part in parts if max(one.get(part, 0) for one in amounts) > longest / 500]


def _draw_dots(axes: Axes, rows: Mapping[str, Sequence[float]], shades: Mapping[str, str], shade: str) -> None:
    """Draw a row of dots for each name, with a line at the median, on a logarithmic axis in seconds.

    The label of a row has the number of dots. shades: the colours of some rows. shade: the colour of all others.
    """
    for number, (name, seconds) in enumerate(rows.items()):
        drawn: dict[str, Any] = {"color": shades.get(name, shade), "alpha": 0.5, "markersize": 5, "markeredgewidth": 0}
        axes.plot(seconds, [number] * len(seconds), "o", **drawn)
        axes.plot([median(seconds)] * 2, [number - 0.3, number + 0.3], color=_text_colour(), linewidth=1.6)
    _label_rows(axes, [f"{_label(name)} ({len(seconds):,})" for name, seconds in rows.items()])
    if rows:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter("s"))
        everything = [one for seconds in rows.values() for one in seconds]
        _set_ticks(axes, max(everything) / min(everything))


def _set_ticks(axes: Axes, spread: float) -> None:
    """Label a logarithmic axis so that it is readable also if it has few powers of ten or none.

    spread: the ratio of the largest to the smallest value.
    """
    axes.xaxis.set_minor_formatter(EngFormatter("s") if spread < 100 else NullFormatter())
    if 1 < spread < 4:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS - 1))
        axes.xaxis.set_minor_locator(NullLocator())
    elif spread < 100:
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))


def _label_rows(axes: Axes, labels: Sequence[str], *, rows: int = 2) -> None:
    """Label the rows of the axes from top to bottom, with space for at least `rows` rows."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(max(rows, len(labels)) - 0.5, -0.5)


def _label(name: str, width: int = WIDTH) -> str:
    """Return a name as one line of text of at most `width` characters, without mathematical notation."""
    text = one_line(visible(name), width).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib omits names with "_" from a legend


def _line_style(number: int) -> dict[str, Any]:
    """Return the style of the lines of the run with this index."""
    mark = MARKERS[number // len(SHADES) % len(MARKERS)]
    return {"color": SHADES[number % len(SHADES)], "marker": mark, "markersize": 4}


def _draw_key_of_lines(axes: Axes, runs: Sequence[str], *, has_cost: bool) -> None:
    """Draw the legend: the line styles with their meanings, then the colour of each run if there are several runs."""
    named = 1 < len(runs) <= NAMED
    colour = _text_colour() if named else SHADES[0]
    lines = [
        Line2D([], [], color=colour, label="read"),
        Line2D([], [], color=colour, label="written", linestyle="--"),
        *([Line2D([], [], color=colour, label="cost (right)", linestyle=":")] if has_cost else []),
    ]
    if named:
        lines += [Line2D([], [], label=_label(name, 24), **_line_style(number)) for number, name in enumerate(runs)]
    _draw_legend(axes, lines if runs else [], columns=4 if named else 6)


def part_style(number: int) -> dict[str, Any]:
    """Return the style of the bar part with this index. Styles repeat only after all shades and hatches are used."""
    hatch = HATCHES[number // len(SHADES) % len(HATCHES)]
    return {"facecolor": SHADES[number % len(SHADES)], "hatch": hatch, "edgecolor": _background(), "linewidth": 0}


def _draw_key(axes: Axes, names: Iterable[str], styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw a legend of bar parts. `styles` has the style of each name."""
    _draw_legend(axes, [Patch(label=_label(name), **styles[name]) for name in names])


def _draw_legend(axes: Axes, handles: Sequence[Artist], *, columns: int = 6) -> None:
    """Draw a legend if there are handles: outside the axes on a figure of `_axes_for`, inside the axes on others."""
    if handles and isinstance(axes.figure, Chart):
        axes.figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    elif handles:
        axes.legend(handles=handles, frameon=False, fontsize=9)
