"""The rendering of a difference: as lines of text, and as an HTML table with a column for each recording.

Text from models and tools is escaped in both and never interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from agentnb.analysis.alignment import in_common, said
from agentnb.analysis.places import Places, places
from agentnb.core.events import Event
from agentnb.widgets.text import as_json, one_line, visible
from agentnb.widgets.views.rows import row

if TYPE_CHECKING:
    from agentnb.analysis.alignment import Pair
    from agentnb.analysis.difference import Change, Difference

SHOWN = 60
"""The number of pairs that are shown, after which no further differences are added."""
CONTEXT = 2
"""The number of equal pairs shown before and after a pair that differs."""
WIDTH = 160
"""The maximum number of characters of an event's summary, and of a value."""
BEFORE = 40
"""The number of characters shown before the first difference of two texts, if their starts are cut off."""
_BothPlaces = tuple[Places, Places]


def as_text(difference: Difference) -> str:
    """Return the differences as text: a line for each, with `-` for the left recording and `+` for the right one."""
    left, right = (one_line(visible(name)) for name in (difference.left, difference.right))
    if not difference:
        return f"{left} and {right} say the same in all their {len(difference.events)} events."
    lines = [f"{left} and {right}: the same in {difference.common} events, then"]
    at = _places(difference)
    for pair in _shown(difference.events):
        lines += [f"  {sign} {told}" for sign, told in _signed(pair, at)] if pair is not None else ["    ..."]
    lines += [f"  {visible(change.where)}: {' | '.join(_values(change))}" for change in difference.state]
    return "\n".join(lines)


def as_table(difference: Difference) -> str:
    """Return the differences as an HTML table. Text from models and tools is escaped."""
    if not difference:
        return f"<p>{escape(visible(str(difference)))}</p>"
    at = _places(difference)
    rows = [_row(_shown_pair(pair, at)) for pair in _shown(difference.events)]
    for change in difference.state:
        left, right = (f"{change.where}: {value}" for value in _values(change))
        rows.append(_row((("left", left), ("right", right))))
    heads = "".join(f'<th style="{_CELL}">{escape(visible(name))}</th>' for name in (difference.left, difference.right))
    caption = f"The same in {difference.common:,} events; then, on the left and on the right:"
    return (
        f'<table style="width: 100%; table-layout: fixed;"><caption style="text-align: left;">{caption}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


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


def _signed(pair: Pair, at: _BothPlaces) -> list[tuple[str, str]]:
    left, right = _told(pair, at)
    if pair.how == "same":
        return [(" ", left)]
    return [(sign, told) for sign, told in (("-", left), ("+", right)) if told]


def _places(difference: Difference) -> _BothPlaces:
    pairs = difference.events
    return places(p.left for p in pairs if p.left is not None), places(p.right for p in pairs if p.right is not None)


def _told(pair: Pair, at: _BothPlaces) -> tuple[str, str]:
    """Return a line for each of the two events. If the summaries are equal, the lines show the difference instead."""
    left, right = (_summary(event) for event in pair[1:])
    if pair.how == "changed" and pair.left is not None and pair.right is not None and left == right:
        left, right = _apart(visible(said(pair.left, at[0])), visible(said(pair.right, at[1])))
    return _line(pair.left, left), _line(pair.right, right)


def _summary(event: Event | None) -> str:
    return one_line(visible(row(event)["summary"]), WIDTH) if event is not None else ""


def _line(event: Event | None, words: str) -> str:
    if event is None:
        return ""
    where = f" in {event.path}" if event.path else ""
    return visible(f"{event.seq} {event.type}{where} {words}")


def _values(change: Change) -> tuple[str, str]:
    left, right = (value if isinstance(value, str) else as_json(value).decode() for value in change[1:])
    return _apart(visible(left), visible(right))


def _apart(left: str, right: str) -> tuple[str, str]:
    """Return the starts of both texts, or, if these are equal, the parts from shortly before the first difference."""
    begun = one_line(left, WIDTH), one_line(right, WIDTH)
    if begun[0] != begun[1]:
        return begun
    begin = max(0, in_common(left, right) - BEFORE)
    return f"…{one_line(left[begin:], WIDTH)}", f"…{one_line(right[begin:], WIDTH)}"


_COLOURS = {"left": "rgba(200, 85, 61, 0.16)", "right": "rgba(91, 145, 121, 0.20)", "same": "transparent"}
_CELL = "text-align: left; vertical-align: top; padding: 2px 8px; overflow-wrap: anywhere; width: 50%;"
_SIGNS = {"left": "\N{MINUS SIGN} ", "right": "+ ", "same": ""}
"""The signs of the sides, for readers who cannot distinguish the colours."""


def _shown_pair(pair: Pair | None, at: _BothPlaces) -> Sequence[tuple[str, str]]:
    if pair is None:
        return (("same", "\N{HORIZONTAL ELLIPSIS}"),) * 2
    return [
        ("same" if pair.how == "same" else side, told)
        for side, told in zip(("left", "right"), _told(pair, at), strict=True)
    ]


def _row(cells: Sequence[tuple[str, str]]) -> str:
    drawn = []
    for side, text in cells:
        colour = _COLOURS[side if text else "same"]
        drawn.append(f'<td style="{_CELL} background: {colour};">{escape(_SIGNS[side] + text) if text else ""}</td>')
    return f"<tr>{''.join(drawn)}</tr>"
