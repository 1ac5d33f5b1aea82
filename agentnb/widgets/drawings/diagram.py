"""The state diagram: a loop's table of phases, drawn once for each loop and then only restyled.

Phases stand in one column in the order the table declares them, which is the order its author tells them in. A
transition to the next phase is a straight arrow; one that skips ahead runs in a lane on the right, one that goes back
in a lane on the left. All arrows into one phase share a lane, so the lanes are no more than the phases, lines cross at
right angles only, and nothing can overlap a phase however the table looks.

matplotlib draws (its SVG backend, never pyplot, whose figures would show up under cells; and none of its settings is
changed, because the user's own figures may be drawn at the same moment in another thread). What comes out is then
stripped of all presentation: shapes keep their names (`data-gid`, `phase-3`, `arrow-0-3`) and get classes, so that
`panel.css` gives the colours of either theme, and showing where a run stands is the toggling of a class. Drawing anew
would cost a quarter of a second each time. Names of phases are text of the user's and treated as such.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from agentnb.widgets.text import one_line, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = tuple[tuple[str, tuple[str, ...]], ...]

HEIGHT, GAP, LANE, MARGIN = 24.0, 16.0, 11.0, 6.0
CHARACTER, NAME = 6.4, 22  # width of a character at the size the text has; characters of a name that are shown
RADIUS, HEAD = 5.0, 5.5
_SVG = "{http://www.w3.org/2000/svg}"


def table_of(phases: Mapping[str, Sequence[str]]) -> Table:
    """A loop's `phases` as a value that can be a key; phases that are only named as targets come last."""
    names = dict.fromkeys([*phases, *(target for targets in phases.values() for target in targets)])
    return tuple((name, tuple(phases.get(name, ()))) for name in names)


@lru_cache(maxsize=64)
def diagram(table: Table) -> str:
    """The SVG of a table, without colours; 256 ms the first time (measured on two cores), nothing after."""
    return _Drawing(table).svg()


class _Drawing:
    """Where everything stands, in units of one pixel, y upwards as in matplotlib."""

    def __init__(self, table: Table) -> None:
        self.names = [name for name, _ in table]
        index = {name: number for number, name in enumerate(self.names)}
        self.arrows = [(index[a], index[b]) for a, targets in table for b in targets if a != b]
        self.box = max([60.0, *(16 + CHARACTER * len(_shown(name)) for name in self.names)])
        self.left = _lanes([(a, b) for a, b in self.arrows if b < a])
        self.right = _lanes([(a, b) for a, b in self.arrows if b > a + 1])
        self.x = MARGIN + self._room(self.left)
        self.width = self.x + self.box + self._room(self.right) + MARGIN
        self.height = 2 * MARGIN + len(self.names) * HEIGHT + (len(self.names) - 1) * GAP

    @staticmethod
    def _room(lanes: Mapping[int, int]) -> float:
        return LANE * (max(lanes.values()) + 1) + 8 if lanes else 0.0

    def _middle(self, number: int) -> float:
        return self.height - MARGIN - HEIGHT / 2 - number * (HEIGHT + GAP)

    def svg(self) -> str:
        """Draw with matplotlib, then strip."""
        from matplotlib.backends.backend_svg import FigureCanvasSVG  # only here: it takes long to import
        from matplotlib.figure import Figure

        figure = Figure(figsize=(self.width / 72, self.height / 72), dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, self.width), ylim=(0, self.height))
        axes.set_axis_off()
        for source, target in self.arrows:
            self._arrow(axes, source, target)
        for number in range(len(self.names)):
            self._phase(axes, number)
        buffer = io.StringIO()
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})  # type: ignore[no-untyped-call]
        return self._strip(buffer.getvalue())

    def _phase(self, axes: Axes, number: int) -> None:
        from matplotlib.patches import FancyBboxPatch

        bottom = self._middle(number) - HEIGHT / 2
        style = f"round,pad=0,rounding_size={HEIGHT / 2 - 0.01}"
        box = FancyBboxPatch((self.x, bottom), self.box, HEIGHT, boxstyle=style)
        box.set_gid(f"phase-{number}")
        axes.add_patch(box)

    def _arrow(self, axes: Axes, source: int, target: int) -> None:
        from matplotlib.patches import PathPatch, Polygon

        points = self._route(source, target)
        line = PathPatch(_rounded(points), fill=False)
        line.set_gid(f"arrow-{source}-{target}")
        axes.add_patch(line)
        (x0, y0), (x, y) = points[-2:]
        along = ((x > x0) - (x < x0), (y > y0) - (y < y0))
        back = (x - HEAD * along[0], y - HEAD * along[1])
        side = (0.5 * HEAD * along[1], 0.5 * HEAD * along[0])
        corners = [(x, y), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
        head = Polygon(corners, closed=True)
        head.set_gid(f"head-{source}-{target}")
        axes.add_patch(head)

    def _route(self, source: int, target: int) -> list[tuple[float, float]]:
        """The corners of an arrow: out of its source below the middle, into its target above it, so that they part."""
        if target == source + 1:
            middle = self.x + self.box / 2
            return [(middle, self._middle(source) - HEIGHT / 2), (middle, self._middle(target) + HEIGHT / 2 + 1)]
        if target > source:
            edge, lane = self.x + self.box, self.x + self.box + 10 + LANE * self.right[target]
            out, gap = self._middle(source) - 4, 1
        else:
            edge, lane = self.x, self.x - 10 - LANE * self.left[target]
            out, gap = self._middle(source) + 4, -1
        into = self._middle(target) + (4 if target > source else -4)
        return [(edge, out), (lane, out), (lane, into), (edge + gap, into)]

    def _strip(self, svg: str) -> str:
        """Our shapes out of matplotlib's document, with classes in place of colours."""
        box = {
            "viewBox": f"0 0 {self.width:g} {self.height:g}",
            "width": f"{self.width:g}",
            "height": f"{self.height:g}",
        }
        root = ElementTree.Element(
            "svg", {"xmlns": _SVG.strip("{}"), "class": "agentnb-svg", "aria-hidden": "true"} | box
        )
        ElementTree.SubElement(root, "title").text = "State diagram"
        ElementTree.SubElement(root, "desc").text = self._description()
        for group in ElementTree.fromstring(svg).iter(f"{_SVG}g"):
            name = group.get("id", "")
            kind = name.partition("-")[0]
            if kind in ("phase", "arrow", "head"):
                kept = ElementTree.SubElement(root, "g", {"data-gid": name, "class": f"agentnb-{kind}"})
                for shape in group.iter(f"{_SVG}path"):
                    ElementTree.SubElement(kept, "path", {"d": " ".join(shape.get("d", "").split())})
        for number, name in enumerate(self.names):
            kept = ElementTree.SubElement(root, "g", {"data-gid": f"label-{number}", "class": "agentnb-label"})
            place = {"x": f"{self.x + self.box / 2:g}", "y": f"{self.height - self._middle(number) + 3.5:g}"}
            ElementTree.SubElement(kept, "text", place).text = _shown(name)
        return ElementTree.tostring(root, encoding="unicode")

    def _description(self) -> str:
        ways = dict.fromkeys(self.names, "")
        for source, target in self.arrows:
            ways[self.names[source]] += f", {_shown(self.names[target])}"
        told = (f"{_shown(name)} leads to {way[2:] or 'nothing'}" for name, way in ways.items())
        return "; ".join(told) + "."


def _shown(name: str) -> str:
    return one_line(visible(name), NAME)


def _lanes(arrows: Sequence[tuple[int, int]]) -> dict[int, int]:
    """A lane for each target; two that stand beside one another never share one, and short ones are inside."""
    stops = {target: [target, *(a for a, b in arrows if b == target)] for _, target in arrows}
    spans = {target: (min(numbers), max(numbers)) for target, numbers in stops.items()}
    lanes: dict[int, int] = {}
    for target, (top, bottom) in sorted(spans.items(), key=lambda item: item[1][1] - item[1][0]):
        taken = {lane for other, lane in lanes.items() if spans[other][0] <= bottom and top <= spans[other][1]}
        lanes[target] = next(lane for lane in count() if lane not in taken)
    return lanes


def _rounded(points: Sequence[tuple[float, float]]) -> Any:
    """A path through the points with its corners rounded."""
    from matplotlib.path import Path

    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        vertices += [_towards(corner, before), corner, _towards(corner, after)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*vertices, points[-1]], [*codes, Path.LINETO])


def _towards(corner: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    length = abs(dx) + abs(dy)  # one of them is 0
    radius = min(RADIUS, length / 2)
    return (corner[0] + dx / length * radius, corner[1] + dy / length * radius) if length else corner


def mark(svg: str, table: Table, phase: str | None, path: Sequence[Sequence[str]]) -> str:
    """The drawing with the current phase and the arrows taken marked, as the live panel does it."""
    index = {name: number for number, (name, _) in enumerate(table)}
    marks = {f"phase-{index.get(phase or '', -1)}": "agentnb-now", f"label-{index.get(phase or '', -1)}": "agentnb-now"}
    for source, target in path:
        if source in index and target in index:
            ends = f"{index[source]}-{index[target]}"
            marks |= {f"arrow-{ends}": "agentnb-taken", f"head-{ends}": "agentnb-taken"}
    ElementTree.register_namespace("", _SVG.strip("{}"))
    root = ElementTree.fromstring(svg)
    for group in root.findall(f"{_SVG}g"):
        name = group.get("data-gid", "")
        if name in marks:
            group.set("class", f"{group.get('class')} {marks[name]}")
    # What has been taken is drawn over what it shares a lane with, and the phases over all.
    root[:] = sorted(root, key=_layer)
    return ElementTree.tostring(root, encoding="unicode")


def _layer(part: ElementTree.Element) -> int:
    name = part.get("class", "")
    return 2 if name.startswith(("agentnb-phase", "agentnb-label")) else int("agentnb-taken" in name)
