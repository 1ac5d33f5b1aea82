"""The alignment of two recordings: pairs of corresponding events.

Events are compared by their content (`agentnb.run.past.normalisation`). The alignment has four steps:

1. Pair the common events at the start, and the common events at the end.
2. Between them, pair the events that occur exactly once in each recording, in the same order (Cohen's patience diff).
3. Between two of those pairs, use difflib.
4. In the parts that differ, pair events of the same type in the same loop as changed.

So the first pair that differs is the point at which the recordings diverge, and one additional message in the middle
does not make all later events differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from agentnb.core.events import Event
from agentnb.run.past.normalisation import call_names, normalised_event

How = Literal["same", "changed", "left", "right"]
_MIRRORED: dict[How, How] = {"left": "right", "right": "left"}

WINDOW = 150
"""The maximum number of events that difflib compares together.

With 200 or more items, difflib ignores items that occur often; in a run, nearly all events occur often. And without
this limit, the comparison of a hundred thousand events would take minutes.
"""

_Bounds = tuple[int, int, int, int]
"""The bounds of corresponding parts: start and end on the left, start and end on the right."""


class Pair(NamedTuple):
    """Two corresponding events (equal or changed), or one event that only the left or the right recording has."""

    how: How
    left: Event | None
    right: Event | None


def aligned(left: Sequence[Event], right: Sequence[Event]) -> list[Pair]:
    """Return all events of both recordings in pairs, in order. If the arguments are swapped, the pairs are mirrored."""
    left_lines, right_lines = _lines(left), _lines(right)
    if (len(right_lines), right_lines) < (len(left_lines), left_lines):  # difflib prefers its first argument
        pairs = _aligned(right, left, right_lines, left_lines)
        return [Pair(_MIRRORED.get(pair.how, pair.how), pair.right, pair.left) for pair in pairs]
    return list(_aligned(left, right, left_lines, right_lines))


def common_start(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the common start of two sequences or strings."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))


def _lines(events: Sequence[Event]) -> list[str]:
    """Return the type and the content of each event, by which events are compared."""
    names = call_names(events)
    return [f"{event.type} {normalised_event(event, names)}" for event in events]


def _aligned(
    left: Sequence[Event], right: Sequence[Event], left_lines: Sequence[str], right_lines: Sequence[str]
) -> Iterator[Pair]:
    for a, b, c, d in _parts(left_lines, right_lines):
        if left_lines[a:b] == right_lines[c:d]:
            yield from (Pair("same", *pair) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            yield from _changed(left[a:b], right[c:d])


def _parts(left: Sequence[str], right: Sequence[str]) -> Iterator[_Bounds]:
    """Yield corresponding parts of both recordings, in order.

    The two sides of a part are equal, or they differ and their events still have to be paired.
    """
    # The common events at the start.
    begin = common_start(left, right)
    yield 0, begin, 0, begin

    # Between two anchors, and between the last anchor and the common end, use difflib. Then yield the anchor itself.
    same_end = common_start(left[begin:][::-1], right[begin:][::-1])
    end, right_end = len(left) - same_end, len(right) - same_end
    a, b = begin, begin
    for c, d in [*_anchors(left[begin:end], right[begin:right_end]), (end - begin, right_end - begin)]:
        c, d = begin + c, begin + d
        for at, to, right_at, right_to in _windows(a, c, b, d):
            for _, e, f, g, h in SequenceMatcher(None, left[at:to], right[right_at:right_to]).get_opcodes():
                yield at + e, at + f, right_at + g, right_at + h
        if c < end:
            yield c, c + 1, d, d + 1
        a, b = c + 1, d + 1

    # The common events at the end.
    yield end, len(left), right_end, len(right)


def _windows(a: int, b: int, c: int, d: int) -> Iterator[_Bounds]:
    """Yield consecutive parts of at most `WINDOW` events: from `a` to `b` on the left, `c` to `d` on the right."""
    for start, right_start in zip_longest(range(a, b, WINDOW), range(c, d, WINDOW)):
        at, right_at = b if start is None else start, d if right_start is None else right_start
        yield at, min(at + WINDOW, b), right_at, min(right_at + WINDOW, d)


def _anchors(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions, left and right, of lines that occur exactly once on each side, increasing on both.

    This is the first half of Cohen's patience diff: the longest increasing subsequence of the unique common lines.
    """
    # Pair the lines that occur exactly once on each side, in the order of the left side.
    left_counts, right_counts = Counter(left), Counter(right)
    right_position = {line: number for number, line in enumerate(right) if right_counts[line] == 1}
    unique_left = [(number, line) for number, line in enumerate(left) if left_counts[line] == 1]
    pairs = [(number, right_position[line]) for number, line in unique_left if line in right_position]

    # Find the longest series of pairs whose right positions increase (patience sorting, O(n log n)). For each length,
    # keep the series that ends at the smallest right position: `tail_positions` has that position, `tail_pairs` the
    # index of the last pair. `previous` links each pair to the one before it in its series, or to -1.
    tail_positions: list[int] = []
    tail_pairs: list[int] = []
    previous: list[int] = []
    for index, (_, position) in enumerate(pairs):
        length = bisect_left(tail_positions, position)  # of the longest series that this pair can extend
        previous.append(tail_pairs[length - 1] if length > 0 else -1)
        if length == len(tail_positions):
            tail_positions.append(position)
            tail_pairs.append(index)
        else:
            tail_positions[length] = position
            tail_pairs[length] = index

    # Follow the links back from the end of the longest series.
    anchors: list[tuple[int, int]] = []
    index = tail_pairs[-1] if tail_pairs else -1
    while index >= 0:
        anchors.append(pairs[index])
        index = previous[index]
    anchors.reverse()
    return anchors


def _changed(left: Sequence[Event], right: Sequence[Event]) -> Iterator[Pair]:
    """Pair events of the same type in the same loop as changed; yield all other events as present on one side only."""
    for at, to, right_at, right_to in _windows(0, len(left), 0, len(right)):
        one, other = left[at:to], right[right_at:right_to]
        left_kinds, right_kinds = ([(event.type, event.path) for event in side] for side in (one, other))
        for tag, a, b, c, d in SequenceMatcher(None, left_kinds, right_kinds).get_opcodes():
            if tag == "equal":
                yield from (Pair("changed", *pair) for pair in zip(one[a:b], other[c:d], strict=True))
            else:
                yield from (Pair("left", event, None) for event in one[a:b])
                yield from (Pair("right", None, event) for event in other[c:d])
