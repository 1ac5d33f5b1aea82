"""Figures of runs, drawn from their events: when models and tools ran, and what was measured.

The figures have a white background, so that they are readable on a light page and on a dark one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"model": "#9aa5b1", "tool": "#2a78b8", "write": "#c8553d"}
Span = tuple[str, float, float]
SHORTEST = 0.06
"""The shortest bar, in seconds. A shorter span is drawn with this width, so that it is visible."""


def spans(run: Any, tools: Collection[str]) -> Iterator[Span]:
    """Yield each model request and each call of the given tools: its kind, start and duration (both in seconds)."""
    events, begun = run.events, {}
    for event in events:
        key = (event.path, getattr(event, "call_id", "model"))
        if event.type in ("model_start", "call_start"):
            begun[key] = event.time
        elif event.type == "model_end":
            yield "model", begun[key] - events[0].time, event.time - begun[key]
        elif event.type == "call_end" and event.name in tools and key in begun:
            kind = "write" if event.name == "write_report" else "tool"
            yield kind, begun[key] - events[0].time, event.time - begun[key]


def picture(runs: Mapping[str, Any], tools: Collection[str], measured: Sequence[Mapping[str, Any]]) -> Image:
    """Return a figure with the runs over time, and below it a bar chart for each measured value."""
    figure = Figure(figsize=(9, 6.4), layout="constrained", facecolor="white")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    _in_time(above.subplots(), runs, tools)
    names = [name for name in measured[0] if name not in ("design", "answer")]
    for axes, name in zip(below.subplots(1, len(names), sharey=True), names, strict=True):
        _bars(axes, name, measured)
    figure.savefig(file := BytesIO(), format="png", dpi=110)
    said = "; ".join(f"{row['design']}: " + ", ".join(f"{name} {row[name]}" for name in names) for row in measured)
    return Image(file.getvalue(), alt=f"The five runs in time, and what they took. {said}.")


def _in_time(axes: Axes, runs: Mapping[str, Any], tools: Collection[str]) -> None:
    for place, run in enumerate(runs.values()):
        busy: list[float] = []  # the end of the last bar in each lane; concurrent calls are drawn in different lanes
        for kind, start, seconds in sorted(spans(run, tools), key=lambda span: span[1]):
            lane = 0
            if kind != "model":
                free = next((lane for lane, until in enumerate(busy) if until <= start + 1e-3), len(busy))
                busy[free : free + 1] = [start + seconds]
                lane = free + 1
            drawn = (start, max(seconds, SHORTEST))
            axes.broken_barh([drawn], (place - 0.32 + 0.2 * lane, 0.18), facecolor=COLOURS[kind], edgecolor="white")
    axes.set(xlabel="seconds", yticks=range(len(runs)), yticklabels=list(runs))
    axes.invert_yaxis()
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    for kind, words in (("model", "the model answers"), ("tool", "a calculation"), ("write", "the file is written")):
        axes.broken_barh([], (0, 0), color=COLOURS[kind], label=words)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, frameon=False, borderaxespad=0)
    axes.set_title("What was at work when", loc="left")


def _bars(axes: Axes, name: str, measured: Sequence[Mapping[str, Any]]) -> None:
    designs, values = [str(row["design"]) for row in measured], [row[name] for row in measured]
    drawn = axes.barh(designs, values, color=COLOURS["tool"])
    axes.bar_label(drawn, labels=[f"{value:,}" for value in values], padding=2, fontsize=9)
    axes.set(title=name.replace("_", " "), xticks=[], xlim=(0, 1.35 * max(max(values), 1)))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.yaxis.set_inverted(True)
