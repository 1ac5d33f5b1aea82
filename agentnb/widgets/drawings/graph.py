"""The drawing of a call graph: a box for each call, and arrows from each call to the calls that read its result.

The status of a call is a class and a few words in its box (`Dress`). The page changes these in place, and gets a new
drawing only if there are new calls or arrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from unicodedata import east_asian_width
from xml.etree import ElementTree

from agentnb.widgets.drawings import svg
from agentnb.widgets.drawings.layout import ACROSS, HEIGHT, WIDTH, Arrow, Point, lay_out_graph
from agentnb.widgets.text import one_line, visible

CELLS = 20
"""The number of characters of a box's first line, which has the tool and the id."""
ID = 8
INSET = 10

Box = tuple[str, str]
Shape = tuple[tuple[Box, ...], tuple[Arrow, ...]]
"""The parts of a drawing that do not change: the id and the tool of each call, and the arrows between the calls."""
Dress = tuple[str, str, str]
"""The parts that change: the status of a call (a class), the words for it in the box, a sentence about the call."""


@lru_cache(maxsize=32)
def draw(shape: Shape) -> str:
    """Return the drawing without the status of the calls."""
    boxes, arrows = shape
    layout = lay_out_graph(len(boxes), arrows)
    root = svg.drawing(layout.width, layout.height, "agentnb-calls")

    # Arrows to the right, through the columns between; then those that close a cycle, in a curve below.
    for (source, target), way in layout.ways.items():
        group = svg.group(root, f"edge-{source}-{target}", "agentnb-edge")
        x, y = way[-1]
        svg.path(group, _curve([*way[:-1], (x - svg.HEAD, y)]))
        svg.path(group, svg.tip((x, y), (x - 1, y)), "agentnb-tip")
    for source, target in layout.below:
        group = svg.group(root, f"edge-{source}-{target}", "agentnb-edge")
        (x1, y1), (x2, y2) = layout.places[source], layout.places[target]
        x1, y1, x2, y2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2 + HEIGHT
        low = max(y1, y2) + svg.HEAD + 12
        svg.path(group, f"M{x1:g} {y1:g}C{x1:g} {low:g} {x2:g} {low:g} {x2:g} {y2 + svg.HEAD:g}")
        svg.path(group, svg.tip((x2, y2), (x2, y2 + 1)), "agentnb-tip")

    # Boxes: the tool and the id, and below them the status.
    for number, ((id, tool), place) in enumerate(zip(boxes, layout.places, strict=True)):
        group = svg.group(root, f"node-{number}", "agentnb-node")
        ElementTree.SubElement(group, "title")
        svg.path(group, svg.box(place, WIDTH, HEIGHT))
        (x, y), id = place, one_line(visible(id), ID)
        tool = fitted(one_line(visible(tool)) or "(no tool)", CELLS - len(id) - 1)
        svg.text(group, tool, (x + INSET, y + 15.5), "agentnb-node-tool")
        svg.text(group, id, (x + WIDTH - INSET, y + 15.5), "agentnb-node-id")
        svg.text(group, "", (x + INSET, y + 30.5), "agentnb-node-standing")
    return svg.as_text(root)


def fitted(text: str, room: int) -> str:
    """Return the beginning of a text that is `room` characters wide. East Asian characters count twice."""
    wide = 0
    for length, character in enumerate(text):
        wide += 2 if east_asian_width(character) in "WF" else 1
        if wide > room:
            return text[: max(0, length - 1)] + "…"
    return text


def _curve(way: Sequence[Point]) -> str:
    """Return a curve through points: it leaves each box or place at its right side and enters the next at its left."""
    x, y = way[0]
    line = f"M{x + WIDTH:g} {y:g}"
    for number, (x, y) in enumerate(way[1:], 1):
        line += f"C{x - ACROSS / 2:g} {way[number - 1][1]:g} {x - ACROSS / 2:g} {y:g} {x:g} {y:g}"
        if number < len(way) - 1:
            line += f"h{WIDTH:g}"
    return line
