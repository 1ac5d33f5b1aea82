"""The alignment of two recordings: pairs of corresponding events.

Events are compared by their content; times, run ids and call ids are ignored. The alignment has four steps:

1. Pair the common events at the start, and the common events at the end.
2. Between them, pair the events that occur exactly once in each recording, in the same order (Cohen's patience diff).
3. Between two of those pairs, use difflib.
4. In the stretches that differ, pair events of the same type in the same loop as changed.

So the first pair that differs is the point at which the recordings diverge, and one additional message in the middle
does not make all later events differ.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic_core import to_json

from agentnb.analysis.places import Places, placed_json, places
from agentnb.core.events import Event, RunStart

How = Literal["same", "changed", "left", "right"]
_MIRRORED: dict[How, How] = {"left": "right", "right": "left"}

WINDOW = 150
"""The maximum number of events that difflib compares together.

With 200 or more items, difflib ignores those that occur often, which in a run are nearly all. To compare a hundred
thousand events would take minutes.
"""

_Item = TypeVar("_Item")
_Span = tuple[int, int, int, int]

_MESSAGE = {
    "_date": True,
    "event": {"id", "timestamp", "invocation_id"},
    # Only the provider can read these, and it makes new ones for each request.
    "reasoning": {"__all__": {"signature", "redacted", "provider"}},
    "order": {"__all__": {"server", "block", "citations"}},
}
_ERROR = {"traceback"}
UNSAID: dict[str, Any] = {
    **dict.fromkeys(("seq", "time", "run_id", "timing", "deadline", "fingerprint", "response_id"), True),
    **dict.fromkeys(("forked_from", "ancestors", "inherited", "seen"), True),
    **dict.fromkeys(("question", "seconds", "shown", "tool_fingerprint", "tools", "approve", "limits"), True),
    "message": _MESSAGE,
    "error": _ERROR,
}
"""The fields of an event that are not compared, in the form of pydantic's `exclude=`.

They are stamped or measured, and new in each run. A fingerprint is computed from other fields or from a tool. A policy
and limits are visible in their decisions.
"""


class Pair(NamedTuple):
    """Two corresponding events (equal or changed), or one event that only the left or the right recording has."""

    how: How
    left: Event | None
    right: Event | None


def aligned(left: Sequence[Event], right: Sequence[Event]) -> list[Pair]:
    """Return all events of both recordings in pairs, in order. Swapped arguments return the pairs mirrored."""
    ours, theirs = _said(left), _said(right)
    if (len(theirs), theirs) < (len(ours), ours):  # difflib prefers its first argument
        pairs = _aligned(right, left, theirs, ours)
        return [Pair(_MIRRORED.get(pair.how, pair.how), pair.right, pair.left) for pair in pairs]
    return list(_aligned(left, right, ours, theirs))


def unsaid(of: Any, names: Any) -> Any:
    """Return plain data without the fields in `names`, which have the form of pydantic's `exclude=`."""
    if isinstance(of, list) and isinstance(names, dict) and "__all__" in names:
        return [unsaid(item, names["__all__"]) for item in of]
    if not isinstance(of, dict):
        return of
    inside = names if isinstance(names, dict) else dict.fromkeys(names, True)
    return {name: unsaid(value, inside.get(name, ())) for name, value in of.items() if inside.get(name) is not True}


def in_common(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Return the length of the common start of two sequences or strings."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def said(event: Event, at: Places) -> str:
    """Return the content of an event as JSON, by which events are compared.

    at: the replacements for the call ids of the event's recording (`places`).
    """
    nothing_queued = isinstance(event, RunStart) and not any(event.queued.values())
    exclude = UNSAID | {"queued": True} if nothing_queued else UNSAID  # empty queues equal no queues
    return placed_json(event, to_json(unsaid(event.to_dict(), exclude)).decode(), at)


def _said(events: Sequence[Event]) -> list[str]:
    at = places(events)
    return [f"{event.type} {said(event, at)}" for event in events]


def _aligned(left: Sequence[Event], right: Sequence[Event], ours: list[str], theirs: list[str]) -> Iterator[Pair]:
    begun = in_common(ours, theirs)
    ended = in_common(ours[begun:][::-1], theirs[begun:][::-1])
    for a, b, c, d in _spans(ours, theirs, (begun, len(ours) - ended, begun, len(theirs) - ended)):
        if ours[a:b] == theirs[c:d]:
            yield from (Pair("same", *pair) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            yield from _side_by_side(left[a:b], right[c:d])


def _spans(ours: list[str], theirs: list[str], middle: _Span) -> Iterator[_Span]:
    """Yield corresponding stretches of both recordings in order, as bounds: left start and end, right start and end.

    middle: the bounds of the events between the common start and the common end.
    """
    begin, end, start, stop = middle
    yield 0, begin, 0, start
    # Between two anchors, and between the last anchor and the common end, use difflib. Then yield the anchor itself.
    a, b = begin, start
    for c, d in [*_anchors(ours[begin:end], theirs[start:stop]), (end - begin, stop - start)]:
        c, d = begin + c, start + d
        for at, to, at_right, to_right in _windows(a, c, b, d):
            for _, *codes in SequenceMatcher(None, ours[at:to], theirs[at_right:to_right]).get_opcodes():
                e, f, g, h = codes
                yield at + e, at + f, at_right + g, at_right + h
        if c < end:
            yield c, c + 1, d, d + 1
        a, b = c + 1, d + 1
    yield end, len(ours), stop, len(theirs)


def _windows(a: int, b: int, c: int, d: int) -> Iterator[_Span]:
    """Yield consecutive stretches of at most `WINDOW` events: from `a` to `b` on the left, `c` to `d` on the right."""
    for one, other in zip_longest(range(a, b, WINDOW), range(c, d, WINDOW)):
        at, at_right = b if one is None else one, d if other is None else other
        yield at, min(at + WINDOW, b), at_right, min(at_right + WINDOW, d)


def _anchors(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Return the longest series of items that occur exactly once in both sequences and in the same order.

    The items are returned as pairs of positions, left and right.
    """
    # Patience sort: `ends` has the smallest last right position of an increasing series of each length, `last` the
    # index in `common` of that series' last item, and `before` the predecessor of each item.
    here, there = _once(ours), _once(theirs)
    common = [(number, there[said]) for said, number in here.items() if said in there]
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, position) in enumerate(common):
        length = bisect_left(ends, position)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1], last[length : length + 1] = [position], [number]
    row: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        row.append(common[number])
        number = before[number]
    return row[::-1]


def _once(said: Sequence[str]) -> dict[str, int]:
    times = Counter(said)
    return {one: number for number, one in enumerate(said) if times[one] == 1}


def _side_by_side(left: Sequence[Event], right: Sequence[Event]) -> Iterator[Pair]:
    """Pair events of the same type in the same loop as changed; yield all other events as present on one side only."""
    for at, to, at_right, to_right in _windows(0, len(left), 0, len(right)):
        one, other = left[at:to], right[at_right:to_right]
        kinds = SequenceMatcher(None, [_kind(event) for event in one], [_kind(event) for event in other])
        for tag, a, b, c, d in kinds.get_opcodes():
            if tag == "equal":
                yield from (Pair("changed", *pair) for pair in zip(one[a:b], other[c:d], strict=True))
            else:
                yield from (Pair("left", event, None) for event in one[a:b])
                yield from (Pair("right", None, event) for event in other[c:d])


def _kind(event: Event) -> tuple[str, str]:
    return event.type, event.path
