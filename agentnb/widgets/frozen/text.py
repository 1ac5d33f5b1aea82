"""Text for the frozen panel: escaped, cut, and as much of it as there is room for.

Everything in a frozen panel that a model, a tool or a person said becomes HTML here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from agentnb.widgets.text import BAR, for_reading, one_line, visible
from agentnb.widgets.views.rows import clip

TEXT = 1500
"""Characters of any one text."""
LINE = 160
"""Characters of the line about an event."""
ROOM = 40_000
"""Characters of detail in all; beyond that there are only the lines."""
TALL, TALL_LINES = 600, 14
"""Characters and lines of a text that is surely seen without scrolling, also in a narrow page."""
TIMELINE_ROOM = 20_000
"""Characters of the timeline and the bill, which come after a conversation that may have taken all of that."""


class Detail:
    """What stands behind a line, and drawings, as long as there is room left."""

    def __init__(self, room: int = ROOM) -> None:
        self._left = room

    def of(self, label: str, value: Any) -> str:
        """A block of text, with a label where there is one."""
        text = value if isinstance(value, str) else for_reading(clip(value, TEXT, 20))
        head = f'<div class="agentnb-label-small">{escaped(label)}</div>' if label else ""
        told = long(text)
        is_tall = len(told) > TALL or told.count("\n") > TALL_LINES
        scrolls = ' tabindex="0"' if is_tall else ""  # a keyboard scrolls what has the focus
        return (
            self.spend(f"{head}<pre{scrolls}>{told}</pre>") or '<p class="agentnb-dim">Left out to keep this small.</p>'
        )

    def spend(self, html: str) -> str:
        """The HTML, or nothing where there is no room for it."""
        if len(html) > self._left:
            return ""
        self._left -= len(html)
        return html


def escaped(text: object) -> str:
    """Text as HTML."""
    return escape(visible(str(text)))


def line(text: str) -> str:
    """Text cut to a line; to half of one where it is all brackets and ampersands, which escaping makes longer."""
    cut = escaped(one_line(text, LINE))
    return cut if len(cut) <= 2 * LINE else escaped(one_line(text, LINE // 2))


def long(text: str) -> str:
    """The beginning of a text as HTML, and how long the whole is."""
    cut = visible(text[:TEXT])
    note = f"\n… ({len(text):,} characters in all)" if len(text) > TEXT else ""
    return escape(cut + note)


def hung(text: str) -> str:
    """The same, each line going on further in where it is wrapped (page/text.js)."""
    lines = ((line, min(24, len(line) - len(line.lstrip(f" {BAR}")) + 2)) for line in long(text).split("\n"))
    return "\n".join(f'<span class="agentnb-hung" style="--in:{further}ch">{line}</span>' for line, further in lines)


def path_of(path: str) -> str:
    """The path of a loop as HTML; nothing for the outermost."""
    return f'<span class="agentnb-path">{line(path)}</span> ' if path else ""


def ends(items: Sequence[Any], first: int, last: int) -> Iterator[tuple[int, Any]]:
    """The first and the last items with their positions; between them None, with how many are left out."""
    left_out = len(items) - first - last
    if left_out <= 0:
        yield from enumerate(items)
        return
    yield from enumerate(items[:first])
    yield left_out, None
    yield from enumerate(items[-last:], len(items) - last)
