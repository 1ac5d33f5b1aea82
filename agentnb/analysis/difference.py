"""The difference of two recordings: their common events, the first difference, and their final states (`diff`).

Events and states are compared by their content. Times, run ids and call ids are ignored (`agentnb.analysis.alignment`,
`agentnb.analysis.places`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentnb.analysis.alignment import UNSAID, Pair, aligned, in_common, unsaid
from agentnb.analysis.places import placed, places
from agentnb.analysis.side_by_side import as_table, as_text
from agentnb.analysis.sources import Source, one_source
from agentnb.core.evolve import fold

_LEFT_OUT = frozenset({"run_id", "started", "position", "reply"})
ABSENT = "(absent)"
"""The value of a `Change` on the side where the value is absent."""


class Change(NamedTuple):
    """A value of the state that differs: its path in the state, and the value on each side."""

    where: str
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two recordings. As the last line of a cell it is shown as a table with two columns.

    `left` and `right` are the names of the recordings, `events` all their events in pairs, and `state` the differences
    of their final states. A difference is true if there is one.
    """

    left: str
    right: str
    events: list[Pair] = field(repr=False)
    state: list[Change] = field(repr=False)

    @property
    def common(self) -> int:
        """The number of equal pairs before the first difference."""
        return next((number for number, pair in enumerate(self.events) if pair.how != "same"), len(self.events))

    @property
    def first(self) -> Pair | None:
        """The first pair that differs, or None if all pairs are equal."""
        return self.events[self.common] if self.common < len(self.events) else None

    def __bool__(self) -> bool:
        """Return True if the recordings differ."""
        return self.first is not None or bool(self.state)

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_table(self)


def diff(left: Any, right: Any) -> Difference:
    """Compare two recordings: runs, replays, snapshots, or files of these.

    Raises UsageError unless each argument is exactly one recording.
    """
    one, other = one_source(left), one_source(right)
    names = (one.name, other.name) if one.name != other.name else (f"{one.name} (left)", f"{other.name} (right)")
    return Difference(*names, aligned(one.events, other.events), list(_changes(one, other)))


# -- states ----------------------------------------------------------------------------------------------------------


def _changes(left: Source, right: Source) -> Iterator[Change]:
    yield from _between("", *(placed(_plain(fold(of.events).dump()), places(of.events)) for of in (left, right)))


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """Return a dumped state without times, run ids and other stamps; `reply` is left out, as it is also a message."""
    kept = {name: value for name, value in state.items() if name not in _LEFT_OUT}
    kept["children"] = {name: _plain(child) for name, child in state["children"].items()}
    kept["messages"] = [unsaid(message, UNSAID["message"]) for message in state["messages"]]
    kept["rules"] = [unsaid(rule, UNSAID) for rule in state["rules"]]
    for name in ("calls", "own_calls"):
        kept[name] = [{part: _of_fact(value) for part, value in call.items()} for call in state[name]]
    for name in ("failure", "error"):
        kept[name] = unsaid(state[name], UNSAID["error"])
    return kept


def _of_fact(value: Any) -> Any:
    return unsaid(value, UNSAID) if isinstance(value, dict) and "seq" in value and "type" in value else value


def _between(where: str, left: Any, right: Any) -> Iterator[Change]:
    """Yield the smallest values that differ. Of lists of different lengths, yield the rest after their common start.

    where: the path of the values in the state.
    """
    if left == right or (left != left and right != right):  # two NaN are equal here, unlike in Python
        return
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            inside = f"{where}.{key}" if where else str(key)
            yield from _between(inside, left.get(key, ABSENT), right.get(key, ABSENT))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _between(f"{where}[{number}]", one, other)
    elif isinstance(left, list) and isinstance(right, list):
        begin = in_common(left, right)
        yield Change(f"{where}[{begin}:]", left[begin:], right[begin:])
    else:
        yield Change(where, left, right)
