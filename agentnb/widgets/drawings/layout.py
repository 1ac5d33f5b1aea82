"""Layouts: the positions of the boxes of a drawing, and the ways of the arrows between them.

`lay_out_graph` is for the call graph. Boxes are in columns. The number of a box's column is the length of the longest
chain of arrows that ends at the box, so the first column has the boxes that depend on no other. An arrow that passes a
column has a narrow place there, which it shares with the other arrows of its source, so no arrow runs behind a box.
Within a column, the boxes are ordered by the mean position of the boxes they are connected to (the barycentre), and
each is as near to it as its neighbours allow. Arrows that close a cycle run below all boxes. Boxes without arrows are
in rows at the bottom. (Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures", 1981.)

`lay_out_column` is for the state diagram. Boxes are in one column in the given order. An arrow to the next box is
straight. An arrow that skips boxes runs in a lane on the right; an arrow that goes back runs in a lane on the left. All
arrows into one box share a lane. So there are at most as many lanes as boxes, lines cross only at right angles, and no
line crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, count, pairwise
from typing import NamedTuple

WIDTH, HEIGHT = 152.0, 38.0
ACROSS, DOWN, THIN, MARGIN = 40.0, 10.0, 6.0, 3.0
BESIDE = 12.0
"""The distance between boxes without arrows."""
ROW = 4
"""The number of these in a row; more if the columns are wider."""
SWEEPS = 4

PHASE = 20.0
"""The height of a box in the column."""

Point = tuple[float, float]
Arrow = tuple[int, int]


class Column(NamedTuple):
    """The sizes of a column: the height of a box, the distance to the next, the width of a lane, and the margin.

    first: the distance of the first lane from the boxes. aside: how far from the middle of a box its arrows are.
    """

    box: float = PHASE
    gap: float = 6.0
    lane: float = 8.0
    edge: float = 3.0
    first: float = 8.0
    aside: float = 3.0


COLUMN = Column()


class Layout(NamedTuple):
    """The positions of boxes and arrows.

    places: the upper left corner of each box. ways: the points of each arrow, from its source to its target; in a graph
    the left middles of the places it passes, in a column its corners. below: the arrows that run below.
    """

    places: list[Point]
    ways: dict[Arrow, list[Point]]
    below: list[Arrow]
    width: float
    height: float


def lay_out_column(boxes: int, arrows: Sequence[Arrow], width: float, sizes: Column = COLUMN) -> Layout:
    """Return the positions of boxes of this width in one column, and of the arrows between them."""
    left = _lanes([(source, target) for source, target in arrows if target < source])
    right = _lanes([(source, target) for source, target in arrows if target > source + 1])
    room = [
        sizes.first + sizes.lane * max(lanes.values()) + sizes.lane - 2 if lanes else 0.0 for lanes in (left, right)
    ]
    x = sizes.edge + room[0]
    places = [(x, sizes.edge + number * (sizes.box + sizes.gap)) for number in range(boxes)]
    ways: dict[Arrow, list[Point]] = {}
    for source, target in arrows:
        top, bottom = places[source][1], places[target][1]
        if target == source + 1:
            ways[source, target] = [(x + width / 2, top + sizes.box), (x + width / 2, bottom - 1)]
            continue
        # Out of the source and into the target at different heights, so that the two do not meet.
        ahead = target > source
        lane = sizes.first + sizes.lane * (right if ahead else left)[target]
        side, lane = (x + width, x + width + lane) if ahead else (x, x - lane)
        aside = sizes.aside if ahead else -sizes.aside
        leaves, enters = top + sizes.box / 2 + aside, bottom + sizes.box / 2 - aside
        ways[source, target] = [(side, leaves), (lane, leaves), (lane, enters), (side + (1 if ahead else -1), enters)]
    height = 2 * sizes.edge + boxes * sizes.box + (boxes - 1) * sizes.gap
    return Layout(places, ways, [], x + width + room[1] + sizes.edge, height)


def _lanes(arrows: Sequence[Arrow]) -> dict[int, int]:
    """Return a lane for each target. Arrows at the same height have different lanes; short ones are near the boxes."""
    stops = {target: [target, *(a for a, b in arrows if b == target)] for _, target in arrows}
    spans = {target: (min(numbers), max(numbers)) for target, numbers in stops.items()}
    lanes: dict[int, int] = {}
    for target, (top, bottom) in sorted(spans.items(), key=lambda item: item[1][1] - item[1][0]):
        taken = {lane for other, lane in lanes.items() if spans[other][0] <= bottom and top <= spans[other][1]}
        lanes[target] = next(lane for lane in count() if lane not in taken)
    return lanes


def lay_out_graph(boxes: int, arrows: Sequence[Arrow]) -> Layout:
    """Return the positions of boxes in columns, and of the arrows between them."""
    arrows = [(source, target) for source, target in dict.fromkeys(arrows) if source != target]
    order, forward = _acyclic(boxes, arrows)
    tied = sorted({end for arrow in arrows for end in arrow})
    columns = _Columns(order, forward, tied)

    # The boxes that have arrows, in columns.
    middles = columns.middles()
    bottom = max((y + HEIGHT / 2 for y in middles.values()), default=0.0)
    lefts = {box: MARGIN + columns.column[box] * (WIDTH + ACROSS) for box in middles}
    ways = {arrow: [(lefts[box], middles[box]) for box in way] for arrow, way in columns.ways.items()}
    places = {box: (lefts[box], middles[box] - HEIGHT / 2) for box in tied}

    # The others, in rows below them.
    right = max((x + WIDTH for x, _ in places.values()), default=0.0)
    row = max(ROW, int((right - MARGIN + BESIDE) // (WIDTH + BESIDE)))
    alone = [box for box in range(boxes) if box not in places]
    below = [arrow for arrow in arrows if arrow not in ways]
    top = bottom + (2 * DOWN if below else DOWN) if tied else MARGIN
    for number, box in enumerate(alone):
        places[box] = (MARGIN + number % row * (WIDTH + BESIDE), top + number // row * (HEIGHT + DOWN))
    width = max((x for x, _ in places.values()), default=0.0) + WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0.0) + HEIGHT + MARGIN + (2 * DOWN if below else 0)
    return Layout([places[box] for box in range(boxes)], ways, below, width, height)


def _acyclic(boxes: int, arrows: Iterable[Arrow]) -> tuple[list[int], list[Arrow]]:
    """Return the boxes, each after all boxes it depends on, and the arrows without those that close a cycle."""
    targets: list[list[int]] = [[] for _ in range(boxes)]
    for source, target in arrows:
        targets[source].append(target)
    done: list[int] = []
    forward: list[Arrow] = []
    seen: set[int] = set()

    def visit(box: int, above: frozenset[int]) -> None:
        seen.add(box)
        for target in targets[box]:
            if target not in above:
                forward.append((box, target))
                if target not in seen:
                    visit(target, above | {target})
        done.append(box)

    for box in range(boxes):
        if box not in seen:
            visit(box, frozenset({box}))
    return done[::-1], forward


class _Columns:
    """The columns of a graph: boxes, and places for arrows that pass. The numbers of places follow those of boxes."""

    def __init__(self, order: Sequence[int], forward: Sequence[Arrow], tied: Sequence[int]) -> None:
        targets: dict[int, list[int]] = {box: [] for box in order}
        for source, target in forward:
            targets[source].append(target)
        self.column = dict.fromkeys(order, 0)
        for box in order:
            for target in targets[box]:
                self.column[target] = max(self.column[target], self.column[box] + 1)
        self.ways: dict[Arrow, list[int]] = {}
        self._boxes = len(order)
        self._before: dict[int, list[int]] = {}
        self._after: dict[int, list[int]] = {}
        for box in tied:
            self._route(box, targets[box])
        depth = max((self.column[box] for box in tied), default=-1) + 1
        self._order: list[list[int]] = [[] for _ in range(depth)]
        for box in (*tied, *range(self._boxes, len(self.column))):
            self._order[self.column[box]].append(box)

    def _route(self, source: int, targets: Sequence[int]) -> None:
        """Find the ways of the arrows from a box. They share the places of the columns that they all pass."""
        way = [source]
        for target in sorted(targets, key=self.column.__getitem__):
            while self.column[way[-1]] < self.column[target] - 1:
                passing = len(self.column)
                self.column[passing] = self.column[way[-1]] + 1
                self._tie(way[-1], passing)
                way.append(passing)
            before = way[: self.column[target] - self.column[source]]
            self._tie(before[-1], target)
            self.ways[source, target] = [*before, target]

    def _tie(self, source: int, target: int) -> None:
        self._after.setdefault(source, []).append(target)
        self._before.setdefault(target, []).append(source)

    def middles(self) -> dict[int, float]:
        """Return the vertical middle of each box and each place in a column."""
        sweeps = [(self._order[1:], self._before), (self._order[-2::-1], self._after)] * SWEEPS
        ranks = {box: rank for column in self._order for rank, box in enumerate(column)}
        for columns, ties in [*sweeps, sweeps[0]]:
            for column in columns:
                column.sort(key=lambda box: _mean(ranks, ties.get(box, (box,))))
                ranks.update({box: rank for rank, box in enumerate(column)})
        middles: dict[int, float] = {}
        for column in self._order:
            middles |= zip(column, accumulate(self._gaps(column), initial=0.0), strict=True)
        for columns, ties in sweeps:
            for column in columns:
                wanted = [_mean(middles, ties.get(box, (box,))) for box in column]
                middles |= zip(column, _spread(wanted, self._gaps(column)), strict=True)
        top = min(((middles[box] - self._height(box) / 2) for box in middles), default=0.0)
        return {box: round(middle - top + MARGIN) for box, middle in middles.items()}

    def _height(self, box: int) -> float:
        return HEIGHT if box < self._boxes else THIN

    def _gaps(self, column: Sequence[int]) -> list[float]:
        return [(self._height(one) + self._height(other)) / 2 + DOWN for one, other in pairwise(column)]


def _mean(values: dict[int, int] | dict[int, float], boxes: Sequence[int]) -> float:
    return sum(values[box] for box in boxes) / len(boxes)


def _spread(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Return values as near to the wanted ones as the gaps allow: the mean of pushing them down and pushing them up."""
    down, up = [*wanted], [*wanted]
    for position, gap in enumerate(gaps, 1):
        down[position] = max(down[position], down[position - 1] + gap)
    for position in range(len(gaps) - 1, -1, -1):
        up[position] = min(up[position], up[position + 1] - gaps[position])
    return [(one + other) / 2 for one, other in zip(down, up, strict=True)]
