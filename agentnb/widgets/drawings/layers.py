"""Where the boxes of a graph stand, and how its arrows run between them.

Boxes stand in columns: each right of everything it depends on, in the column that the longest way to it ends in, so
the first column is what depends on nothing. An arrow that passes columns has a narrow place of its own in each, shared
by all arrows of the same box, and so no arrow runs behind a box. Within a column the order follows that of what the
boxes are tied to (the barycentre), and each is as near to it as its neighbours let it. Arrows that close a circle are
left out of all this, and run below. What is tied to nothing stands in rows at the bottom, in its order.

(Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures", 1981.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

WIDTH, HEIGHT = 152.0, 38.0
ACROSS, DOWN, THIN, MARGIN = 40.0, 10.0, 6.0, 3.0
BESIDE = 12.0
"""Between boxes that are tied to nothing."""
ROW = 4
"""Of these in a row, or more where the columns are wider."""
SWEEPS = 4

Place = tuple[float, float]
Arrow = tuple[int, int]


class Layout(NamedTuple):
    """Where all of it is.

    places: the upper left corner of each box. ways: for each arrow the left middles of all it meets, from its source to
    its target. below: the arrows that run below.
    """

    places: list[Place]
    ways: dict[Arrow, list[Place]]
    below: list[Arrow]
    width: float
    height: float


def lay_out(count: int, arrows: Sequence[Arrow]) -> Layout:
    """Places for `count` boxes and the arrows between them."""
    arrows = [(source, target) for source, target in dict.fromkeys(arrows) if source != target]
    order, forward = _forwards(count, arrows)
    tied = sorted({end for arrow in arrows for end in arrow})
    columns = _Columns(order, forward, tied)
    middles = columns.middles()
    bottom = max((y + HEIGHT / 2 for y in middles.values()), default=0.0)
    lefts = {box: MARGIN + columns.column[box] * (WIDTH + ACROSS) for box in middles}
    ways = {arrow: [(lefts[box], middles[box]) for box in way] for arrow, way in columns.ways.items()}
    places = {box: (lefts[box], middles[box] - HEIGHT / 2) for box in tied}
    right = max((x + WIDTH for x, _ in places.values()), default=0.0)
    row = max(ROW, int((right - MARGIN + BESIDE) // (WIDTH + BESIDE)))
    alone = [box for box in range(count) if box not in places]
    below = [arrow for arrow in arrows if arrow not in ways]
    top = bottom + (2 * DOWN if below else DOWN) if tied else MARGIN
    for number, box in enumerate(alone):
        places[box] = (MARGIN + number % row * (WIDTH + BESIDE), top + number // row * (HEIGHT + DOWN))
    width = max((x for x, _ in places.values()), default=0.0) + WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=0.0) + HEIGHT + MARGIN + (2 * DOWN if below else 0)
    return Layout([places[box] for box in range(count)], ways, below, width, height)


def _forwards(count: int, arrows: Iterable[Arrow]) -> tuple[list[int], list[Arrow]]:
    """The boxes, each behind all it depends on, and the arrows without those that close a circle."""
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in arrows:
        targets[source].append(target)
    done: list[int] = []
    forward: list[Arrow] = []
    begun: set[int] = set()

    def visit(box: int, above: frozenset[int]) -> None:
        begun.add(box)
        for target in targets[box]:
            if target not in above:
                forward.append((box, target))
                if target not in begun:
                    visit(target, above | {target})
        done.append(box)

    for box in range(count):
        if box not in begun:
            visit(box, frozenset({box}))
    return done[::-1], forward


class _Columns:
    """The columns, with a place in each for the arrows that pass it (numbers beyond those of the boxes)."""

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
        self._behind: dict[int, list[int]] = {}
        for box in tied:
            self._route(box, targets[box])
        depth = max((self.column[box] for box in tied), default=-1) + 1
        self._order: list[list[int]] = [[] for _ in range(depth)]
        for box in (*tied, *range(self._boxes, len(self.column))):
            self._order[self.column[box]].append(box)

    def _route(self, source: int, targets: Sequence[int]) -> None:
        """The ways of a box's arrows: as far as they go together they are one."""
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
        self._behind.setdefault(source, []).append(target)
        self._before.setdefault(target, []).append(source)

    def middles(self) -> dict[int, float]:
        """How far down the middle of each box and each passing place is."""
        sweeps = [(self._order[1:], self._before), (self._order[-2::-1], self._behind)] * SWEEPS
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
    """The values as near to those wanted as the gaps let them: half way between pushing down and pushing up."""
    down, up = [*wanted], [*wanted]
    for position, gap in enumerate(gaps, 1):
        down[position] = max(down[position], down[position - 1] + gap)
    for position in range(len(gaps) - 1, -1, -1):
        up[position] = min(up[position], up[position + 1] - gaps[position])
    return [(one + other) / 2 for one, other in zip(down, up, strict=True)]
