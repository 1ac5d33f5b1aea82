"""Common parts of the figures: axes, labels, styles and legends.

A figure is a single image in a notebook that is read on light and on dark pages, so it has an opaque background, as the
panel and its diagram have. No text colour has a contrast of 4.5:1 both on white and on JupyterLab's dark background.
Markup that follows the page's theme is no alternative, because Jupyter removes it from a notebook that is not trusted.
The user's matplotlib style sets the background and the text colour: with `matplotlib.style.use("dark_background")` all
figures are dark.

Titles and labels that a user has set on given axes are kept. Names come from models, tools and people; a figure shows
them as text on one line and never as mathematical notation.
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
from agentnb.run.validation import shown
from agentnb.widgets.text import one_line, visible

WIDTH = 36
"""The maximum number of characters of a name."""

SHADES = ("#2a78b8", "#d9a441", "#5b9279", "#c8553d", "#7d6b9e", "#8a96a3", "#b07d62", "#4f8fa3")
HATCHES = ("", "///", "...", "xxx", "\\\\\\")
"""The hatches of parts with the same shade, used if there are more parts than shades."""
MARKERS = (".", "s", "^", "v", "D")

TICKS = 6
"""The number of intervals of an axis in seconds, chosen so that the labels of short times do not overlap."""


class Chart(Figure):
    """A figure that a notebook displays, also if pyplot has not been set up there."""

    def _repr_png_(self) -> bytes:
        self.savefig(file := BytesIO(), format="png", dpi=110)
        return file.getvalue()


def axes_for(axes: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or the axes of a new figure of `width` by `height` inches if `axes` is None.

    Raises UsageError if `axes` are not matplotlib axes.
    """
    if isinstance(axes, Axes):
        return axes
    if axes is not None:
        raise UsageError(f"axes= takes matplotlib axes to draw on, figure.subplots() for one, not {shown(axes)}.")
    figure = Chart(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def entitle(axes: Axes, title: str, *, x: str = "", y: str = "") -> None:
    """Set the title and the labels of the axes, each only if it is not set."""
    if not any(axes.get_title(where) for where in ("left", "center", "right")):
        axes.set_title(title, loc="left")
    if not axes.get_xlabel():
        axes.set_xlabel(x)
    if not axes.get_ylabel():
        axes.set_ylabel(y)


def say_empty(axes: Axes, words: str) -> None:
    """Write the reason for an empty figure, because empty axes look like an error."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=ink())


def ink() -> Any:
    """Return the text colour of the user's matplotlib style."""
    return rcParams["text.color"]


def ground() -> Any:
    """Return the background colour of the user's matplotlib style."""
    return rcParams["axes.facecolor"]


def draw_dots(axes: Axes, rows: Mapping[str, Sequence[float]], shades: Mapping[str, str], shade: str) -> None:
    """Draw a row of dots for each name, with a line at the median, on a logarithmic axis in seconds.

    The label of a row has the number of dots. shades: the colours of some rows. shade: the colour of all others.
    """
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
    """Label a logarithmic axis so that it is readable also if it has few powers of ten or none.

    spread: the ratio of the largest to the smallest value.
    """
    axes.xaxis.set_minor_formatter(EngFormatter("s") if spread < 100 else NullFormatter())
    if 1 < spread < 4:
        axes.xaxis.set_major_locator(MaxNLocator(TICKS - 1))
        axes.xaxis.set_minor_locator(NullLocator())
    elif spread < 100:
        axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))


def name_rows(axes: Axes, labels: Sequence[str], *, rows: int = 2) -> None:
    """Label the rows of the axes from top to bottom, with space for at least `rows` rows."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(max(rows, len(labels)) - 0.5, -0.5)


def label(name: str, width: int = WIDTH) -> str:
    """Return a name as one line of text of at most `width` characters, without mathematical notation."""
    text = one_line(visible(name), width).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text  # matplotlib omits names with "_" from a legend


def look(number: int) -> dict[str, Any]:
    """Return the style of the bar part with this index. Styles repeat only after all shades and hatches are used."""
    hatch = HATCHES[number // len(SHADES) % len(HATCHES)]
    return {"facecolor": SHADES[number % len(SHADES)], "hatch": hatch, "edgecolor": ground(), "linewidth": 0}


def draw_key(axes: Axes, names: Iterable[str], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw a legend of bar parts. `looks` has the style of each name."""
    draw_legend(axes, [Patch(label=label(name), **looks[name]) for name in names])


def draw_legend(axes: Axes, handles: Sequence[Artist], *, columns: int = 6) -> None:
    """Draw a legend if there are handles: outside the axes on a figure of `axes_for`, inside the axes on others."""
    if handles and isinstance(axes.figure, Chart):
        axes.figure.legend(handles=handles, loc="outside lower left", ncols=columns, frameon=False, fontsize=9)
    elif handles:
        axes.legend(handles=handles, frameon=False, fontsize=9)
