"""What figures have in common: where they are drawn, how names and decisions look on them, and their key.

A figure is one picture, saved in a notebook that is read on a light page and on a dark one, so it stands on a ground of
its own on both, as the panel and its diagram do. No ink keeps 4.5:1 on white and on JupyterLab's dark alike, and of
markup that could follow the page's theme a notebook that is not trusted leaves nothing. Which ground and which ink is
up to the user's matplotlib style: with `matplotlib.style.use("dark_background")` figures are dark throughout.

What a user has set up on axes that were given stays: a title or a label is written where there is none. Names come from
models, tools and people; on a figure they are text on one line, and never mathematics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from statistics import median
from typing import Any

from matplotlib import rcParams
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from agentnb.core.errors import UsageError
from agentnb.run.given import shown
from agentnb.widgets.text import one_line, visible

WIDTH = 36
"""Characters of a name."""

SHADES = ("#2a78b8", "#d9a441", "#5b9279", "#c8553d", "#7d6b9e", "#8a96a3", "#b07d62", "#4f8fa3")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
"""What tells those apart that have the same shade, as there are more of them than shades."""
MARKERS = (".", "s", "^", "v", "D")

TICKS = 6
"""Stretches that an axis in seconds is divided into, so that short times do not run into each other."""


class Chart(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot has been set up there."""

    def _repr_png_(self) -> bytes:
        self.savefig(file := BytesIO(), format="png", dpi=110)
        return file.getvalue()


def axes_for(axes: Axes | None, width: float, height: float) -> Axes:
    """The axes that were given, or some on a figure of their own. Raises UsageError where what was given is none."""
    if isinstance(axes, Axes):
        return axes
    if axes is not None:
        raise UsageError(f"axes= takes matplotlib axes to draw on, figure.subplots() for one, not {shown(axes)}.")
    figure = Chart(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def entitle(axes: Axes, title: str, *, x: str = "", y: str = "") -> None:
    """Write the title and what the axes are, where nobody has."""
    if not any(axes.get_title(where) for where in ("left", "center", "right")):
        axes.set_title(title, loc="left")
    if not axes.get_xlabel():
        axes.set_xlabel(x)
    if not axes.get_ylabel():
        axes.set_ylabel(y)


def say_empty(axes: Axes, words: str) -> None:
    """Say why nothing is drawn: axes alone look as if something had gone wrong."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=ink())


def ink() -> Any:
    """What is written in: the user's matplotlib style says so."""
    return rcParams["text.color"]


def ground() -> Any:
    """What is drawn on."""
    return rcParams["axes.facecolor"]


def draw_dots(axes: Axes, rows: Mapping[str, Sequence[float]], shades: Mapping[str, str], shade: str) -> None:
    """Seconds on a logarithmic axis, a row of dots for each name, with a line at the median; how many, in its label."""
    for number, (name, seconds) in enumerate(rows.items()):
        drawn: dict[str, Any] = {"color": shades.get(name, shade), "alpha": 0.5, "markersize": 5, "markeredgewidth": 0}
        axes.plot(seconds, [number] * len(seconds), "o", **drawn)
        axes.plot([median(seconds)] * 2, [number - 0.3, number + 0.3], color=ink(), linewidth=1.6)
    name_rows(axes, [f"{label(name)} ({len(seconds):,})" for name, seconds in rows.items()])
    if rows:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter("s"))
        everything = [one for seconds in rows.values() for one in seconds]
        _divide(axes, max(everything) / min(everything))


def _divide(axes: Axes, spread: float) -> None:
    """Label a logarithmic axis so that it can be read also where it holds few powers of ten, or none."""
    axes.xaxis.set_minor_formatter(EngFormatter("s") if spread < 100 else NullFormatter())
    if 1 < spread < 4:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS - 1))
        axes.xaxis.set_minor_locator(NullLocator())
    elif spread < 100:
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))


def name_rows(axes: Axes, labels: Sequence[str], *, rows: int = 2) -> None:
    """Rows from the top to the bottom of the axes, each with its label; room for so many at the least."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(max(rows, len(labels)) - 0.5, -0.5)


def label(name: str, width: int = WIDTH) -> str:
    """A name as it stands on a figure."""
    text = one_line(visible(name), width).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib leaves those out of a key


def look(number: int) -> dict[str, Any]:
    """The look of the number-th of many parts of a bar: no two have the same, as far as there are any."""
    hatch = HATCHES[number // len(SHADES) % len(HATCHES)]
    return {"facecolor": SHADES[number % len(SHADES)], "hatch": hatch, "edgecolor": ground(), "linewidth": 0}


def draw_key(axes: Axes, names: Iterable[str], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """The legend of parts that look like that."""
    draw_legend(axes, [Patch(label=label(name), **looks[name]) for name in names])


def draw_legend(axes: Axes, handles: Sequence[Artist], *, columns: int = 6) -> None:
    """A legend, where it has anything: on a figure of our own outside of the axes, where it hides nothing."""
    if handles and isinstance(axes.figure, Chart):
        axes.figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    elif handles:
        axes.legend(handles=handles, frameon=False, fontsize=9)
