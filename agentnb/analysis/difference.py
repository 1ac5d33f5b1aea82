"""What two recordings have in common, where they part, and what that comes to (`diff`).

Events are compared by what they say, and not by when they happened or in which run. Two forks of a run agree up to the
event they depart from; behind it, what says the same is set side by side again (difflib), so that one more message in
the middle does not make everything after it look different.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from agentnb.analysis.side_by_side import as_table, as_text
from agentnb.analysis.sources import Source, one_source
from agentnb.core.events import Event, encode_event
from agentnb.core.evolve import fold

How = Literal["same", "changed", "left", "right"]

_STAMP = {"seq", "time", "run_id", "forked_from"}
_MEASURED = {"timing"}
"""What is measured anew each time: it is no difference."""

_LEFT_OUT = frozenset({"run_id", "started", "position", "reply"})


ABSENT = "(absent)"
"""What a `Change` has on the side that does not have the value."""


class Pair(NamedTuple):
    """Two events side by side: the same, changed, or one that only the left or the right recording has."""

    how: How
    left: Event | None
    right: Event | None


class Change(NamedTuple):
    """A value of the state that is not the same: where it is, and what it is on each side."""

    where: str
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two recordings. As the last line of a cell it is a table, the two side by side.

    `events` are all events in pairs, `first` the first pair that is not the same (None where all are), `common` how
    many are the same before it, `state` what is different where the two stand at their ends.
    """

    left: str
    right: str
    events: list[Pair] = field(repr=False)
    state: list[Change] = field(repr=False)

    @property
    def common(self) -> int:
        """How many events are the same before the first difference."""
        return next((number for number, pair in enumerate(self.events) if pair.how != "same"), len(self.events))

    @property
    def first(self) -> Pair | None:
        """Where they part."""
        return self.events[self.common] if self.common < len(self.events) else None

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return self.first is not None or bool(self.state)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_table(self)


def diff(left: Any, right: Any) -> Difference:
    """Compare two recordings: runs, replays, snapshots, or files of these.

    Raises UsageError where one of them is not a recording.
    """
    one, other = one_source(left), one_source(right)
    names = (one.name, other.name) if one.name != other.name else (f"{one.name} (left)", f"{other.name} (right)")
    return Difference(*names, list(_pairs(one, other)), list(_changes(one, other)))


# -- events ----------------------------------------------------------------------------------------------------------


def _pairs(left: Source, right: Source) -> Iterator[Pair]:
    ours, theirs = _said(left.events), _said(right.events)
    a, b = 0, 0
    for c, d in [*_anchors(ours, theirs), (len(ours), len(theirs))]:
        yield from _gap(left.events, right.events, ours, theirs, (a, c, b, d))
        if c < len(ours):
            yield Pair("same", left.events[c], right.events[d])
        a, b = c + 1, d + 1


def _anchors(ours: Sequence[bytes], theirs: Sequence[bytes]) -> list[tuple[int, int]]:
    """What both have exactly once, and in the same order: the longest such row, as positions on both sides.

    Everything else is compared between two of these (Cohen's patience diff), so that a hundred thousand events take
    seconds: difflib alone takes minutes, because the same few short events occur in every turn.
    """
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


def _once(said: Sequence[bytes]) -> dict[bytes, int]:
    times = Counter(said)
    return {one: number for number, one in enumerate(said) if times[one] == 1}


def _gap(
    left: Sequence[Event],
    right: Sequence[Event],
    ours: Sequence[bytes],
    theirs: Sequence[bytes],
    between: tuple[int, int, int, int],
) -> Iterator[Pair]:
    begin, end, start, stop = between
    for tag, a, b, c, d in SequenceMatcher(None, ours[begin:end], theirs[start:stop]).get_opcodes():
        mine, yours = left[begin + a : begin + b], right[start + c : start + d]
        if tag == "equal":
            yield from (Pair("same", *pair) for pair in zip(mine, yours, strict=True))
        else:
            yield from _side_by_side(mine, yours)


def _said(events: Sequence[Event]) -> list[bytes]:
    return [encode_event(event, without=_STAMP | _MEASURED) for event in events]


def _side_by_side(left: Sequence[Event], right: Sequence[Event]) -> Iterator[Pair]:
    """Events of the same type in the same loop are one that was changed; the others are on one side only."""
    kinds = SequenceMatcher(None, [_kind(event) for event in left], [_kind(event) for event in right])
    for tag, a, b, c, d in kinds.get_opcodes():
        if tag == "equal":
            yield from (Pair("changed", *pair) for pair in zip(left[a:b], right[c:d], strict=True))
        else:
            yield from (Pair("left", event, None) for event in left[a:b])
            yield from (Pair("right", None, event) for event in right[c:d])


def _kind(event: Event) -> tuple[str, str]:
    return event.type, event.path


# -- states ----------------------------------------------------------------------------------------------------------


def _changes(left: Source, right: Source) -> Iterator[Change]:
    yield from _between("", _plain(fold(left.events).dump()), _plain(fold(right.events).dump()))


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A state without when it came about and in which run; the last answer is one of its messages."""
    kept = {name: value for name, value in state.items() if name not in _LEFT_OUT}
    kept["children"] = {name: _plain(child) for name, child in state["children"].items()}
    for name in ("calls", "own_calls"):
        kept[name] = [{part: _without_stamp(value) for part, value in call.items()} for call in state[name]]
    return kept


def _without_stamp(value: Any) -> Any:
    if isinstance(value, dict) and "seq" in value and "type" in value:  # a fact about the call
        return {name: inside for name, inside in value.items() if name not in _STAMP}
    return value


def _between(where: str, left: Any, right: Any) -> Iterator[Change]:
    """The smallest values that differ; of lists that part, what is behind what they have in common."""
    if left == right:
        return
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            inside = f"{where}.{key}" if where else str(key)
            yield from _between(inside, left.get(key, ABSENT), right.get(key, ABSENT))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _between(f"{where}[{number}]", one, other)
    elif isinstance(left, list) and isinstance(right, list):
        pairs = enumerate(zip(left, right, strict=False))
        begin = next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))
        yield Change(f"{where}[{begin}:]", left[begin:], right[begin:])
    else:
        yield Change(where, left, right)
