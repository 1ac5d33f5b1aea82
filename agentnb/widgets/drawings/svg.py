"""SVG as elements, without colours: shapes have names and classes, and style sheets define the colours of a theme.

So another status is shown by a change of classes, on the page or in the text of a drawing. All texts come from models
and users; `ElementTree` escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from agentnb.widgets.drawings.layout import Point

NAMESPACE = "http://www.w3.org/2000/svg"
RADIUS, HEAD = 5.0, 6.0
"""The radius of a line's corners, and the length of an arrow's tip."""

Element = ElementTree.Element


def drawing(width: float, height: float, classes: str = "") -> Element:
    """Return the root of a drawing of this size."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    classes = f"agentnb-svg {classes}".strip()
    return Element("svg", {"xmlns": NAMESPACE, "class": classes, "aria-hidden": "true"} | size)


def group(parent: Element, name: str, classes: str) -> Element:
    """Add a group of shapes. The page finds it by its name."""
    return ElementTree.SubElement(parent, "g", {"data-gid": name, "class": classes})


def path(parent: Element, shape: str, classes: str = "") -> None:
    """Add a shape, which is SVG path data."""
    ElementTree.SubElement(parent, "path", {"d": shape} | ({"class": classes} if classes else {}))


def text(parent: Element, words: str, place: Point, classes: str = "") -> None:
    """Add a text at a place."""
    where = {"x": f"{place[0]:g}", "y": f"{place[1]:g}"}
    ElementTree.SubElement(parent, "text", ({"class": classes} if classes else {}) | where).text = words


def as_text(root: Element) -> str:
    """Return a drawing as text."""
    return ElementTree.tostring(root, encoding="unicode")


def box(place: Point, width: float, height: float, radius: float = RADIUS) -> str:
    """Return the outline of a box with round corners."""
    (x, y), r = place, radius
    corners = [f"a{r:g} {r:g} 0 0 1 {dx:g} {dy:g}" for dx, dy in ((r, r), (-r, r), (-r, -r), (r, -r))]
    across, down = width - 2 * r, height - 2 * r
    return (
        f"M{x + r:g} {y:g}h{across:g}{corners[0]}v{down:g}{corners[1]}h{-across:g}{corners[2]}v{-down:g}{corners[3]}z"
    )


def tip(end: Point, before: Point) -> str:
    """Return the tip of an arrow that ends at `end`, in a straight line from `before`."""
    (x, y), (x0, y0) = end, before
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    left, top = x - HEAD * dx, y - HEAD * dy
    side = (HEAD / 2 * dy, HEAD / 2 * dx)
    return f"M{x:g} {y:g}L{left + side[0]:g} {top + side[1]:g}L{left - side[0]:g} {top - side[1]:g}z"


def rounded(points: Sequence[Point]) -> str:
    """Return a line through points at right angles, with round corners."""
    line = "M{:g} {:g}".format(*points[0])
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        start, end = _towards(corner, before), _towards(corner, after)
        line += f"L{start[0]:g} {start[1]:g}Q{corner[0]:g} {corner[1]:g} {end[0]:g} {end[1]:g}"
    return line + "L{:g} {:g}".format(*points[-1])


def _towards(corner: Point, other: Point) -> Point:
    """Return the point where the curve of a corner meets the line to the other point."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)  # one of them is 0
    radius = min(RADIUS, length / 2)
    return (corner[0] + dx / length * radius, corner[1] + dy / length * radius) if length else corner
