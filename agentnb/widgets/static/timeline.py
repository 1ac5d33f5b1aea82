"""The timeline and the usage of a static panel: a drawing, and a table of text.

The drawing is SVG made from elements, without colours, as the state diagram is; `page/static.css` adds them. Of many
spans the longest are drawn, because ten thousand rows cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nlargest
from math import floor, log10
from typing import Any
from xml.etree import ElementTree

from agentnb.widgets.text import amount, duration, one_line, visible
from agentnb.widgets.views.spans import Span, Spans

LABELS, TRACK, ROW, TOP = 230.0, 500.0, 18.0, 18.0
NAME = 26
"""Characters of a name."""
INDENT, DEEPEST = 10.0, 5
TICKS = 5
TURNS = 30
"""Turns in the table: the last ones."""


def chosen(spans: Spans, room: int) -> tuple[list[Span], int]:
    """Return the `room` spans that took longest, in the order of the timeline, and the number of all spans."""
    rows = list(spans.rows())
    if len(rows) <= room:
        return rows, len(rows)
    kept = {id(span) for span in nlargest(room, rows, key=lambda span: (span.ended or spans.last) - span.opened)}
    return [span for span in rows if id(span) in kept], len(rows)


def drawing(rows: Sequence[Span], spans: Spans) -> str:
    """Return the rows as SVG."""
    width, height = LABELS + TRACK, TOP + ROW * len(rows) + 2
    box = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    classes = {"class": "agentnb-svg agentnb-chart", "aria-hidden": "true"}
    root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg"} | classes | box)
    seconds = max(spans.last - spans.began, 0.001)

    # The ticks of the scale.
    step = _step(seconds / TICKS)
    for number in range(int(seconds / step + 1e-9) + 1):
        tick, x = number * step, LABELS + TRACK * number * step / seconds
        ElementTree.SubElement(root, "path", {"class": "agentnb-grid", "d": f"M{x:.1f} 0v{height:g}"})
        if x < LABELS + TRACK - 40:
            short = f"{tick:.3g} s" if tick >= 0.1 else f"{tick * 1000:.3g} ms"
            place = {"class": "agentnb-scale", "x": f"{x + 3:.1f}", "y": "11"}
            words = f"+{duration(tick) if tick >= 60 else short}" if number else "0"
            ElementTree.SubElement(root, "text", place).text = words

    # The rows: a name, a time, and bars; a call also has a thin line for the whole time that it was open.
    for number, span in enumerate(rows):
        _draw(root, span, TOP + ROW * number, spans, TRACK / seconds)
    return ElementTree.tostring(root, encoding="unicode")


def _step(rough: float) -> float:
    """Return the distance between two ticks: a round number of seconds near `rough`."""
    for step in (60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0):
        if 40 < rough <= step:
            return step
    if rough > 40:
        return 86400.0 * -(-rough // 86400)
    power = 10.0 ** floor(log10(rough))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)


def _draw(root: ElementTree.Element, span: Span, y: float, spans: Spans, scale: float) -> None:
    group = ElementTree.SubElement(root, "g", {"class": f"agentnb-bar-{'failed' if span.failed else span.kind}"})
    end = span.ended if span.ended is not None else spans.last
    took = duration(max(0.0, end - span.opened))
    x = INDENT * min(DEEPEST, span.depth)
    label = {"class": "agentnb-bar-name", "x": f"{x:g}", "y": f"{y + 13:g}"}
    ElementTree.SubElement(group, "text", label).text = one_line(visible(span.name), NAME - min(DEEPEST, span.depth))
    ElementTree.SubElement(group, "text", {"x": f"{LABELS - 8:g}", "y": f"{y + 13:g}"}).text = took

    def place(start: float, until: float) -> tuple[float, float]:
        left = LABELS + max(0.0, start - spans.began) * scale
        return min(left, LABELS + TRACK - 1.5), max(1.5, (until - start) * scale)

    if span.kind == "call":
        left, wide = place(span.opened, end)
        ElementTree.SubElement(group, "path", {"class": "agentnb-bar-open", "d": f"M{left:.1f} {y + 9:g}h{wide:.1f}"})
    for interval in span.intervals:
        left, wide = place(interval.start, spans.last if interval.end is None else interval.end)
        tall = 4 if span.kind == "loop" else 10
        shape = {"d": f"M{left:.1f} {y + 9 - tall / 2:g}h{wide:.1f}v{tall}h-{wide:.1f}z"}
        if interval.kind == "wait":
            shape["class"] = "agentnb-bar-wait"
        ElementTree.SubElement(group, "path", shape)


def table(spans: Spans) -> str:
    """Return the usage by turn, as lines of text."""
    turns = spans.requests[-TURNS:]
    names = list(dict.fromkeys(name for turn in turns for name in turn.usage))
    lines = [["turn", "model", "calls", "in calls", *(name.replace("_", " ") for name in names)]]
    for turn in turns:
        took = duration(turn.ended - turn.opened) if turn.ended is not None else "-"
        spent = [duration(turn.call_time) if turn.call_time else "-"]
        used = [amount(name, turn.usage[name]) if name in turn.usage else "-" for name in names]
        place = one_line(visible(f"{turn.path}: {turn.name}" if turn.path else turn.name), 40)
        lines.append([place, took, str(turn.calls or "-"), *spent, *used])
    wide = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(wide[0]), *map(str.rjust, line[1:], wide[1:])]) for line in lines]
    if left := len(spans.requests) - len(turns):
        text.insert(1, f"({left:,} earlier turns are left out)")
    return "\n".join(text)


def summary(spans: Spans, usage: Mapping[str, Any]) -> str:
    """Return the total time and usage, in a line of text."""
    facts = [f"time {duration(max(0.0, spans.last - spans.began))}"]
    names = {"model": "model", "call": "calls", "wait": "waiting for you"}
    facts += [f"{names[kind]} {duration(spent)}" for kind, spent in spans.spent.items() if spent]
    facts += [f"{name.replace('_', ' ')} {amount(name, value)}" for name, value in usage.items()]
    return " · ".join(facts)
