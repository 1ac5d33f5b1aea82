"""The pictures of a static panel: the strip, the state diagram and the call graph, each an SVG in an `<img>`.

JupyterLab removes inline SVG and style sheets from HTML that it does not trust, but keeps a picture in a `data:` URL.
Such a picture inherits nothing from the page, so its colours are mid-tones that can be seen on white and on black, and
its text stands on a ground of its own. A picture that scales with the page has no text.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise
from typing import Literal

from agentnb.core.graph import GraphStatus
from agentnb.widgets.drawings.diagram import NAME, Table
from agentnb.widgets.drawings.graph import Dress, Shape, fitted
from agentnb.widgets.drawings.layout import HEIGHT, PHASE, WIDTH, Point, lay_out_column, lay_out_graph
from agentnb.widgets.text import duration, one_line, visible
from agentnb.widgets.views.strip import Bar, Lane, MarkKind, Strip

LINE, GROUND, NOW = "#838b96", "#59626e", "#1c6fc9"
MODEL, CALL, PERSON, ERROR = "#8a66e0", "#12908a", "#b8760c", "#d9534a"
"""Marks: at least 3.4:1 on white and on #111."""

_COLOURS: Mapping[Lane, str] = {"loops": LINE, "model": MODEL, "calls": CALL, "you": PERSON}
_GRAPH: Mapping[GraphStatus | Literal["earlier"], str] = {
    "running": NOW,
    "waiting": PERSON,
    "confirming": PERSON,
    "failed": ERROR,
    "rejected": ERROR,
    "completed": CALL,
}

DEEP, TOP, BAR = 14.0, 4.0, 9.0
"""Of the strip: the height of a lane, the first bar in it, and the height of a bar."""
LEAST = 3.0
"""The width of a bar at least."""
NEAR = 6.0
"""The distance of two lines of the ruler at least."""
HATCH = 7.0

LETTER, LEAST_PHASE = 7.1, 72.0
"""The width of a letter, and the least width of a phase."""


def image(svg: str, alt: str, width: float, style: str, more: str = "") -> str:
    """Return a picture as an element, with its description in words. more: further attributes."""
    encoded = b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(alt)}" width="{width:.0f}" style="{style}"{more} src="data:image/svg+xml;base64,{encoded}">'
    )


def _svg(width: float, height: float, parts: Iterable[str], more: str = "") -> str:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}{more}>{"".join(parts)}</svg>'


def _path(shape: str, look: str) -> str:
    return f'<path {look} d="{shape}"/>' if shape else ""


def _n(number: float) -> str:
    """Return a coordinate, as short as it can be written."""
    return f"{number:.1f}".removesuffix(".0")


def share_picture(share: float, low: float, high: float, width: float) -> str:
    """Return a share as SVG: a bar from 0 to 100 %, with a line for its interval."""
    x, y = [_n(1 + of * (width - 2)) for of in (low, high)]
    parts = [
        f'<path fill="none" stroke="{LINE}" stroke-width="1" d="M1 13.5H{_n(width - 1)}"/>',
        f'<path fill="{NOW}" fill-opacity=".6" d="M1 3h{_n(share * (width - 2))}v8h{_n(-share * (width - 2))}z"/>',
        f'<path fill="none" stroke="{LINE}" stroke-width="1.5" d="M{x} 7H{y}M{x} 4v6M{y} 4v6"/>',
    ]
    return _svg(width, 15, parts)


# -- the strip -------------------------------------------------------------------------------------------------------


def strip_picture(strip: Strip) -> str:
    """Return the strip as SVG: lanes for the loops, the model, the calls and the person, and a line for each turn."""
    tops = {lane: TOP + number * DEEP for number, lane in enumerate(strip.lanes)}
    height = DEEP * len(strip.lanes) + 2
    shapes: dict[str, str] = {}
    loops = 0
    for bar in _joined(strip.bars):
        if not bar.wait:
            look = f'fill="{ERROR if bar.failed else _COLOURS[bar.lane]}"'
            if bar.lane == "loops":  # loops that follow one another can be distinguished
                loops += 1
                look += "" if loops % 2 else ' fill-opacity=".5"'
            shapes[look] = shapes.get(look, "") + _box(bar, tops[bar.lane])
    waits = [_wait(bar, tops["you"]) for bar in _joined(strip.bars) if bar.wait]
    return _svg(
        strip.width,
        height,
        [
            _path(_ruler(strip, height), f'fill="none" stroke="{LINE}" stroke-opacity=".45"'),
            *(_path(boxes, look) for look, boxes in shapes.items()),
            *waits,
            _path(_marks(strip, tops["you"], "message"), f'fill="{PERSON}"'),
            _path(_marks(strip, tops["you"], "decision"), f'fill="none" stroke="{PERSON}" stroke-width="1.5"'),
            _path(_stops(strip, height), f'fill="{GROUND}" stroke="{LINE}"'),
            _path(_pauses(strip), f'fill="none" stroke="{LINE}"'),
        ],
    )


def strip_in_words(strip: Strip) -> str:
    """Return what the strip shows, in a sentence."""
    turns = f"{strip.requests:,} turn{'' if strip.requests == 1 else 's'} in " if strip.requests else ""
    words = f"Timeline: {turns}{duration(strip.seconds)}"
    if strip.waited:
        words += f", of these {duration(strip.waited)} waiting for a person"
    if strip.paused:
        words += f"{' and' if strip.waited else ', of these'} {duration(strip.paused)} paused"
    names = list(dict.fromkeys(bar.name for bar in strip.bars if bar.lane == "loops"))
    if names:
        words += f". Loops: {', '.join(one_line(visible(name), 40) for name in names[:8])}"
        words += f" and {len(names) - 8:,} more" if len(names) > 8 else ""
    return words


def _joined(bars: Sequence[Bar]) -> list[Bar]:
    """Return the bars, with small ones that touch each other as one: a run may have thousands."""
    kept: dict[tuple[Lane, int, bool, bool], list[Bar]] = {}
    for bar in bars:
        same = kept.setdefault((bar.lane, bar.row % 3, bar.failed, bar.wait), [])
        end = max(bar.end, bar.start + LEAST)
        last = same[-1] if same else None
        if last is not None and bar.start < last.end + 1 and end - bar.start < 2 * LEAST:
            same[-1] = replace(last, end=max(last.end, end))
        else:
            same.append(replace(bar, end=end))
    return [bar for same in kept.values() for bar in same]


def _box(bar: Bar, top: float) -> str:
    """Return a bar; calls side by side share the height of the lane."""
    rows = min(3, bar.at_once)
    space = {1: 0.0, 2: 1.0, 3: 0.8}[rows]
    height = (BAR - space * (rows - 1)) / rows
    y = top + (bar.row % rows) * (height + space)
    if bar.lane == "loops":
        y, height = top + 2, BAR - 4
    wide = max(LEAST, bar.end - bar.start - (1 if bar.lane == "loops" else 0))
    return f"M{_n(bar.start)} {_n(y)}h{_n(wide)}v{_n(height)}H{_n(bar.start)}z"


def _wait(bar: Bar, top: float) -> str:
    """Return a time in which a person was waited for, hatched."""
    x, y, height = bar.start, top - 2, BAR + 4
    wide = max(LEAST, bar.end - bar.start)
    lines = "".join(
        f"M{_n(x + 4 + HATCH * number)} {_n(y + height)}l8-{_n(height)}"
        for number in range(min(120, int((wide - 11) // HATCH) + 1))
    )
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(wide)}" height="{_n(height)}" rx="{_n(min(3.0, wide / 2))}" '
        f'fill="{PERSON}" fill-opacity=".25" stroke="{PERSON}"/>{_path(lines, f"stroke={chr(34)}{PERSON}{chr(34)}")}'
    )


def _ruler(strip: Strip, height: float) -> str:
    """Return a line for each turn, and one for each lane."""
    shape, last = "", -NEAR
    for turn in strip.turns:
        if turn.x >= last + NEAR:
            shape += f"M{_n(turn.x)} 2v{_n(height - 4)}"
            last = turn.x
    for number in range(len(strip.lanes)):
        shape += f"M0 {_n(TOP + number * DEEP + BAR / 2)}h{_n(strip.width)}"
    return shape


def _marks(strip: Strip, top: float, kind: MarkKind) -> str:
    """Return a bubble for each message of a person, or a diamond for each decision."""
    shape, last = "", -LEAST
    for mark in strip.marks:
        if mark.kind == kind and mark.x >= last + LEAST:
            x = min(max(mark.x, 5.0), strip.width - 5)
            if kind == "message":
                shape += f"M{_n(x - 5)} {_n(top - 0.5)}h10v7h-5l-3 3v-3h-2z"
            else:
                shape += f"M{_n(x)} {_n(top - 0.5)}l5 5-5 5-5-5z"
            last = mark.x
    return shape


def _stops(strip: Strip, height: float) -> str:
    """Return a disc for each breakpoint, a ribbon for each snapshot, and an elbow for each fork."""
    shape, last = "", -NEAR
    for mark in strip.marks:
        if mark.kind not in ("message", "decision") and mark.x >= last + NEAR:
            x, last = min(max(mark.x, 4.0), strip.width - 4), mark.x
            if mark.kind == "breakpoint":
                shape += f"M{_n(x - 3.5)} {_n(height - 4)}a3.5 3.5 0 1 1 7 0a3.5 3.5 0 1 1-7 0z"
            elif mark.kind == "snapshot":
                shape += f"M{_n(x - 3)} {_n(height - 9)}h6v9l-3-3-3 3z"
            else:
                shape += f"M{_n(x - 1)} {_n(height - 9)}h2v6h5v2h-7z"
    return shape


def _pauses(strip: Strip) -> str:
    """Return a zigzag for each break of the axis in which nobody was asked."""
    shape, last = "", -NEAR
    for gap in strip.breaks:
        x = (gap.start + gap.end) / 2 + 4
        if not gap.wait and x >= last + NEAR:
            shape += f"M{_n(x)} 2l4 8-4 8 4 8-4 8 3 8"
            last = x
    return shape


# -- the state diagram -----------------------------------------------------------------------------------------------


def phases_picture(table: Table, phase: str, taken: Mapping[tuple[str, str], int]) -> tuple[str, float]:
    """Return a loop's phases as SVG, with the phase now and the transitions that were taken, and the width of it."""
    names = [one_line(visible(name), NAME) for name, _ in table]
    index = {name: number for number, (name, _) in enumerate(table)}
    arrows = [(index[name], index[target]) for name, targets in table for target in targets if name != target]
    width = max([LEAST_PHASE, *(24 + LETTER * len(name) for name in names)])
    layout = lay_out_column(len(names), arrows, width)
    gone = {(index[one], index[other]) for one, other in taken if one in index and other in index}

    # The arrows not taken, the taken ones over them, and the phases over both.
    parts = []
    for is_taken, look in ((False, 'stroke-opacity=".5"'), (True, 'stroke-width="1.8"')):
        ways = [way for ends, way in layout.ways.items() if (ends in gone) == is_taken]
        lines = "".join(_line(way) for way in ways)
        parts.append(_path(lines, f'fill="none" stroke="{LINE}" {look}'))
        parts.append(_path("".join(map(_tip, ways)), f'fill="{LINE}"' + ("" if is_taken else ' opacity=".5"')))
    bold = ' font-weight="600"'
    for number, (x, y) in enumerate(layout.places):
        is_now = number == index.get(phase, -1)
        parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(PHASE)}" rx="10" '
            f'fill="{NOW if is_now else GROUND}"/>'
            f'<text x="{_n(x + width / 2)}" y="{_n(y + 14.5)}"{bold if is_now else ""}>{escape(names[number])}</text>'
        )
    font = ' font-family="sans-serif" font-size="13" text-anchor="middle" fill="#fff"'
    return _svg(layout.width, layout.height, parts, font), layout.width


def phases_in_words(table: Table, phase: str, taken: Mapping[tuple[str, str], int], name: str = "") -> str:
    """Return what the state diagram shows, in sentences."""

    def short(name: str) -> str:
        return one_line(visible(name), NAME)

    whose = f" of {one_line(visible(name), 60)}" if name else ""
    words = f"State diagram{whose}: {', '.join(short(name) for name, _ in table[:30])}. Now: {short(phase)}."
    ways = [
        f"{short(one)} to {short(other)}{f' {times:,} times' if times > 1 else ''}"
        for (one, other), times in list(taken.items())[:30]
    ]
    return words + (f" Taken: {', '.join(ways)}." if ways else "")


def _line(way: Sequence[Point]) -> str:
    """Return a way at right angles, as far as the tip of its arrow."""
    line = f"M{_n(way[0][0])} {_n(way[0][1])}"
    for (x, y), (to_x, to_y) in pairwise(way):
        if way[-1] == (to_x, to_y):  # the tip covers the end
            to_x -= 4 * ((to_x > x) - (to_x < x))
            to_y -= 3 * ((to_y > y) - (to_y < y))
        line += f"H{_n(to_x)}" if to_x != x else f"V{_n(to_y)}"
    return line


def _tip(way: Sequence[Point]) -> str:
    (x, _), (to_x, to_y) = way[-2:]
    if to_x == x:
        return f"M{_n(to_x)} {_n(to_y + 1)}l-3.5-4h7z"
    back = -6 if to_x > x else 6
    return f"M{_n(to_x)} {_n(to_y)}l{back}-3v6z"


# -- the call graph --------------------------------------------------------------------------------------------------


def graph_picture(shape: Shape, dresses: Sequence[Dress]) -> tuple[str, float]:
    """Return the calls of a request as SVG, with arrows from what writes to what reads, and the width of it."""
    boxes, arrows = shape
    layout = lay_out_graph(len(boxes), arrows)
    lines, tips = "", ""
    for way in layout.ways.values():
        x, y = way[0][0] + WIDTH, way[0][1]
        lines += f"M{_n(x)} {_n(y)}"
        for number, (to_x, to_y) in enumerate(way[1:], 1):
            half = (to_x - x) / 2
            lines += f"C{_n(x + half)} {_n(y)} {_n(to_x - half)} {_n(to_y)} {_n(to_x)} {_n(to_y)}"
            x, y = to_x, to_y
            if number < len(way) - 1:
                lines += f"h{_n(WIDTH)}"
                x += WIDTH
        tips += f"M{_n(x)} {_n(y)}l-6-3v6z"
    for source, target in layout.below:
        (x1, y1), (x2, y2) = layout.places[source], layout.places[target]
        x1, y1, x2, y2 = x1 + WIDTH / 2, y1 + HEIGHT, x2 + WIDTH / 2, y2 + HEIGHT
        low = max(y1, y2) + 18
        lines += f"M{_n(x1)} {_n(y1)}C{_n(x1)} {_n(low)} {_n(x2)} {_n(low)} {_n(x2)} {_n(y2 + 6)}"
        tips += f"M{_n(x2)} {_n(y2)}l-3 6h6z"
    parts = [_path(lines, f'fill="none" stroke="{LINE}" stroke-width="1.5"'), _path(tips, f'fill="{LINE}"')]
    for (id, tool), (status, words, _), (x, y) in zip(boxes, dresses, layout.places, strict=True):
        name = fitted(one_line(visible(f"{tool or '(no tool)'} {id}"), 40), 20)
        colour = _GRAPH.get(status, LINE)  # type: ignore[call-overload]
        parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(WIDTH)}" height="{_n(HEIGHT)}" rx="5" fill="{GROUND}"/>'
            f'<path fill="{colour}" stroke="#fff" stroke-width=".5" d="M{_n(x + 3)} {_n(y + 4)}h5v30h-5z"/>'
            f'<text x="{_n(x + 14)}" y="{_n(y + 16)}" font-weight="600">{escape(name)}</text>'
            f'<text x="{_n(x + 14)}" y="{_n(y + 31)}">{escape(visible(words))}</text>'
        )
    font = ' font-family="sans-serif" font-size="12" fill="#fff"'
    return _svg(layout.width, layout.height, parts, font), layout.width
