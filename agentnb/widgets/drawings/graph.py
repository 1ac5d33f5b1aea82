"""The drawing of a call graph: boxes with a call's id and tool, arrows from who writes to who reads.

SVG as text, made from elements, so that whatever a tool is called is escaped. As with the state diagram shapes have
names and classes and no colours, and how the calls stand is a class and a few words in each box (`dress`): the page
changes these in place, and gets a new drawing only when calls or arrows come.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from unicodedata import east_asian_width
from xml.etree import ElementTree

from agentnb.widgets.drawings.layers import ACROSS, HEIGHT, WIDTH, Arrow, Layout, Place, lay_out
from agentnb.widgets.text import one_line, visible

CELLS = 20
"""Characters of a box's first line: the tool and the id."""
ID = 8
RADIUS, HEAD, INSET = 5, 6, 10

Box = tuple[str, str]
Shape = tuple[tuple[Box, ...], tuple[Arrow, ...]]
"""What is drawn: the id and the tool of each call, and the arrows between them."""
Dress = tuple[str, str, str]
"""What changes: the standing (a class), the words for it in the box, and the call in a sentence."""


@lru_cache(maxsize=32)
def draw(shape: Shape) -> str:
    """The drawing, undressed."""
    return ElementTree.tostring(_drawn(shape), encoding="unicode")


def dress(shape: Shape, dresses: Sequence[Dress]) -> str:
    """The drawing with how each call stands, as the page shows it."""
    root = _drawn(shape)
    for group in root.findall("g"):
        kind, _, ends = group.get("data-gid", "").partition("-")
        standing, words, sentence = dresses[int(ends.partition("-")[0])]  # an arrow looks like the call it comes from
        group.set("class", f"{group.get('class')} agentnb-is-{standing}")
        if kind == "node":
            group[0].text, group[-1].text = sentence, words
    return ElementTree.tostring(root, encoding="unicode")


def _drawn(shape: Shape) -> ElementTree.Element:
    boxes, arrows = shape
    layout = lay_out(len(boxes), arrows)
    size = {"viewBox": f"0 0 {layout.width:g} {layout.height:g}", "width": f"{layout.width:g}"}
    size["height"] = f"{layout.height:g}"
    classes = {"class": "agentnb-svg agentnb-calls", "aria-hidden": "true"}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"} | classes | size)
    for (source, target), line, head in _lines(layout):
        group = ElementTree.SubElement(root, "g", {"data-gid": f"edge-{source}-{target}", "class": "agentnb-edge"})
        ElementTree.SubElement(group, "path", {"d": line})
        ElementTree.SubElement(group, "path", {"d": head, "class": "agentnb-tip"})
    for number, (box, (x, y)) in enumerate(zip(boxes, layout.places, strict=True)):
        _box(root, number, box, x, y)
    return root


def _box(root: ElementTree.Element, number: int, box: Box, x: float, y: float) -> None:
    id = one_line(visible(box[0]), ID)
    tool = _cut(one_line(visible(box[1])) or "(no tool)", CELLS - len(id) - 1)
    r, w, h = RADIUS, WIDTH - 2 * RADIUS, HEIGHT - 2 * RADIUS
    corners = [f"a{r} {r} 0 0 1 {r} {r}", f"a{r} {r} 0 0 1 -{r} {r}", f"a{r} {r} 0 0 1 -{r} -{r}"]
    outline = f"M{x + r:g} {y:g}h{w:g}{corners[0]}v{h:g}{corners[1]}h-{w:g}{corners[2]}v-{h:g}a{r} {r} 0 0 1 {r} -{r}z"
    group = ElementTree.SubElement(root, "g", {"data-gid": f"node-{number}", "class": "agentnb-node"})
    ElementTree.SubElement(group, "title")
    ElementTree.SubElement(group, "path", {"d": outline})
    for name, text, left, down in (
        ("tool", tool, x + INSET, 15.5),
        ("id", id, x + WIDTH - INSET, 15.5),
        ("standing", "", x + INSET, 30.5),
    ):
        place = {"class": f"agentnb-node-{name}", "x": f"{left:g}", "y": f"{y + down:g}"}
        ElementTree.SubElement(group, "text", place).text = text


def _cut(text: str, room: int) -> str:
    """The beginning of a text that is `room` characters wide; those of East Asia are as wide as two."""
    wide = 0
    for length, character in enumerate(text):
        wide += 2 if east_asian_width(character) in "WF" else 1
        if wide > room:
            return text[: max(0, length - 1)] + "…"
    return text


def _lines(layout: Layout) -> list[tuple[Arrow, str, str]]:
    """Each arrow's line and tip."""
    made = []
    for arrow, way in layout.ways.items():
        x, y = way[-1]
        tip = f"M{x:g} {y:g}l-{HEAD} -{HEAD / 2:g}v{HEAD}z"
        made.append((arrow, _across([*way[:-1], (x - HEAD, y)]), tip))
    for source, target in layout.below:
        (x1, y1), (x2, y2) = (_foot(layout.places[end]) for end in (source, target))
        low = max(y1, y2) + HEAD + 12
        line = f"M{x1:g} {y1:g}C{x1:g} {low:g} {x2:g} {low:g} {x2:g} {y2 + HEAD:g}"
        made.append(((source, target), line, f"M{x2:g} {y2:g}l{HEAD / 2:g} {HEAD}h-{HEAD}z"))
    return made


def _across(way: Sequence[Place]) -> str:
    x, y = way[0]
    line = f"M{x + WIDTH:g} {y:g}"
    for number, (x, y) in enumerate(way[1:], 1):
        line += f"C{x - ACROSS / 2:g} {way[number - 1][1]:g} {x - ACROSS / 2:g} {y:g} {x:g} {y:g}"
        if number < len(way) - 1:
            line += f"h{WIDTH:g}"
    return line


def _foot(place: Place) -> Place:
    return place[0] + WIDTH / 2, place[1] + HEIGHT
