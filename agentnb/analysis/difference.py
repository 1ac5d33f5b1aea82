"""The difference of two recordings: their common events, the first difference, and their final states (`diff`).

Events and states are compared by their content (`agentnb.run.past.normalisation`), events in pairs
(`agentnb.run.past.alignment`). A difference is shown as lines of text, or as an HTML table with a column for each
recording. Text from models and tools is escaped in both and never interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from msgspec.structs import replace

from agentnb.analysis.sources import Source, one_source
from agentnb.core.events import Event, RunStart
from agentnb.core.evolve import fold
from agentnb.run.past.alignment import Pair, aligned, common_start
from agentnb.run.past.fork import ancestors_of
from agentnb.run.past.normalisation import CallNames, call_names, normalised_event, normalised_state
from agentnb.widgets.text import as_json, one_line, visible
from agentnb.widgets.views.rows import row

ABSENT = "(absent)"
"""The value of a `StateChange` on the side where the value is absent."""
SHOWN = 60
"""If more pairs than this are shown, no further differences are added."""
CONTEXT = 2
"""The number of equal pairs shown before and after a pair that differs."""
WIDTH = 160
"""The maximum number of characters of an event's summary, and of a value."""
BEFORE = 40
"""The number of characters shown before the first difference of two texts, if their starts are cut off."""


class StateChange(NamedTuple):
    """A value of the state that differs: its path in the state, and the value on each side."""

    where: str
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two recordings. As the last line of a cell it is shown as a table with two columns.

    `left` and `right` are the names of the recordings, `events` all their events in pairs, and `state` the differences
    of their final states. As a condition, the object is true if the recordings differ.
    """

    left: str
    right: str
    events: list[Pair] = field(repr=False)
    state: list[StateChange] = field(repr=False)

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
        return _as_text(self)

    def _repr_html_(self) -> str:
        return _as_table(self)


def diff(left: Any, right: Any) -> Difference:
    """Compare two recordings: runs, replays, snapshots, or files of these.

    Raises UsageError unless each argument is exactly one recording.
    """
    one, other = one_source(left), one_source(right)
    names = (one.name, other.name) if one.name != other.name else (f"{one.name} (left)", f"{other.name} (right)")
    one, other = _as_shared(one, other), _as_shared(other, one)
    states = [normalised_state(fold(of.events).dump(), call_names(of.events)) for of in (one, other)]
    return Difference(*names, aligned(one.events, other.events), list(_changes("", *states)))


def _as_shared(of: Source, fork: Source) -> Source:
    """Return an imported recording with the configuration of its fork: that of its own loop is not known."""
    start, other = of.events[0], fork.events[0]
    if not isinstance(start, RunStart) or not isinstance(other, RunStart) or "imported" not in start.config:
        return of
    if start.run_id not in (run for run, _ in ancestors_of(other)):
        return of
    return of._replace(events=[replace(start, config=other.config), *of.events[1:]])


def _changes(where: str, left: Any, right: Any) -> Iterator[StateChange]:
    """Yield the smallest values that differ. Of lists of different lengths, yield the rest after their common start.

    where: the path of the values in the state.
    """
    if left == right or (left != left and right != right):  # two NaN are equal here, unlike in Python
        return
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            inside = f"{where}.{key}" if where else str(key)
            yield from _changes(inside, left.get(key, ABSENT), right.get(key, ABSENT))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _changes(f"{where}[{number}]", one, other)
    elif isinstance(left, list) and isinstance(right, list):
        begin = common_start(left, right)
        yield StateChange(f"{where}[{begin}:]", left[begin:], right[begin:])
    else:
        yield StateChange(where, left, right)


# -- text and table ---------------------------------------------------------------------------------------------------

_BothNames = tuple[CallNames, CallNames]

_COLOURS = {"left": "rgba(200, 85, 61, 0.16)", "right": "rgba(91, 145, 121, 0.20)", "same": "transparent"}
_CELL = "text-align: left; vertical-align: top; padding: 2px 8px; overflow-wrap: anywhere; width: 50%;"
_SIGNS = {"left": "\N{MINUS SIGN} ", "right": "+ ", "same": ""}
"""The signs of the sides, for readers who cannot distinguish the colours."""


def _as_text(difference: Difference) -> str:
    """Return the differences as text: a line for each, with `-` for the left recording and `+` for the right one."""
    left_name, right_name = (one_line(visible(name)) for name in (difference.left, difference.right))
    if not difference:
        return f"{left_name} and {right_name} are the same in all {len(difference.events)} events."
    lines = [f"{left_name} and {right_name}: the same in {difference.common} events, then"]
    names = _call_names(difference)
    for pair in _shown(difference.events):
        if pair is None:
            lines.append("    ...")
            continue
        left, right = _pair_lines(pair, names)
        if pair.how == "same":
            lines.append(f"    {left}")
        else:
            lines += [f"  {sign} {line}" for sign, line in (("-", left), ("+", right)) if line]
    lines += [f"  {visible(change.where)}: {' | '.join(_values(change))}" for change in difference.state]
    return "\n".join(lines)


def _as_table(difference: Difference) -> str:
    """Return the differences as an HTML table. Text from models and tools is escaped."""
    if not difference:
        return f"<p>{escape(visible(str(difference)))}</p>"
    names = _call_names(difference)
    rows = []
    for pair in _shown(difference.events):
        if pair is None:
            rows.append(_table_row((("same", "\N{HORIZONTAL ELLIPSIS}"),) * 2))
        else:
            sides = ("same", "same") if pair.how == "same" else ("left", "right")
            rows.append(_table_row(list(zip(sides, _pair_lines(pair, names), strict=True))))
    for change in difference.state:
        left, right = (f"{change.where}: {value}" for value in _values(change))
        rows.append(_table_row((("left", left), ("right", right))))
    heads = "".join(f'<th style="{_CELL}">{escape(visible(name))}</th>' for name in (difference.left, difference.right))
    caption = f"The same in {difference.common:,} events; then, on the left and on the right:"
    return (
        f'<table style="width: 100%; table-layout: fixed;"><caption style="text-align: left;">{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _table_row(cells: Sequence[tuple[str, str]]) -> str:
    """Return a row of the table. Each cell has a side, for its colour and its sign, and a text."""
    drawn = []
    for side, text in cells:
        colour = _COLOURS[side if text else "same"]
        drawn.append(f'<td style="{_CELL} background: {colour};">{escape(_SIGNS[side] + text) if text else ""}</td>')
    return f"<tr>{''.join(drawn)}</tr>"


def _shown(pairs: Sequence[Pair]) -> list[Pair | None]:
    """Return the pairs that differ with a few pairs around them, up to about `SHOWN`. None marks omitted pairs."""
    near: set[int] = set()
    for number in (number for number, pair in enumerate(pairs) if pair.how != "same"):
        near.update(range(max(0, number - CONTEXT), min(len(pairs), number + CONTEXT + 1)))
        if len(near) > SHOWN:
            break
    shown: list[Pair | None] = []
    last = -1
    for number in sorted(near):
        if number > last + 1:
            shown.append(None)
        shown.append(pairs[number])
        last = number
    return shown if last + 1 == len(pairs) or not near else [*shown, None]


def _call_names(difference: Difference) -> _BothNames:
    pairs = difference.events
    return (
        call_names(pair.left for pair in pairs if pair.left is not None),
        call_names(pair.right for pair in pairs if pair.right is not None),
    )


def _pair_lines(pair: Pair, names: _BothNames) -> tuple[str, str]:
    """Return a line for each of the two events. If the summaries are equal, the lines show the difference instead."""
    left, right = (one_line(visible(row(event)["summary"]), WIDTH) if event is not None else "" for event in pair[1:])
    if pair.how == "changed" and pair.left is not None and pair.right is not None and left == right:
        contents = normalised_event(pair.left, names[0]), normalised_event(pair.right, names[1])
        left, right = _apart(visible(contents[0]), visible(contents[1]))
    return _line(pair.left, left), _line(pair.right, right)


def _line(event: Event | None, summary: str) -> str:
    if event is None:
        return ""
    where = f" in {event.path}" if event.path else ""
    return visible(f"{event.seq} {event.type}{where} {summary}")


def _values(change: StateChange) -> tuple[str, str]:
    left, right = (value if isinstance(value, str) else as_json(value).decode() for value in change[1:])
    return _apart(visible(left), visible(right))


def _apart(left: str, right: str) -> tuple[str, str]:
    """Return the starts of both texts, or, if these are equal, the parts from shortly before the first difference."""
    starts = one_line(left, WIDTH), one_line(right, WIDTH)
    if starts[0] != starts[1]:
        return starts
    begin = max(0, common_start(left, right) - BEFORE)
    return f"…{one_line(left[begin:], WIDTH)}", f"…{one_line(right[begin:], WIDTH)}"
