"""HTML for the static panel: text is escaped and cut to a budget, and the whole survives what others do to it.

All text of a model, a tool or a person becomes HTML here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from typing import Any

from agentnb.widgets.text import BAR, for_reading, one_line, visible
from agentnb.widgets.views.rows import clip

TEXT = 1500
"""Characters of one string at most."""
LINE = 160
"""Characters of the line about an event."""
TALL, TALL_LINES = 600, 14
"""Characters and lines of a text that fits without scrolling, in a narrow page as well."""
CLASSES = "mathjax_ignore tex2jax_ignore"
"""What MathJax leaves unchanged: a class of version 3 (JupyterLab) and one of version 2 (nbconvert)."""

_TEMPLATE = re.compile(r"\{(?=[{%#])|(?<=[}%#])\}")


class Budget:
    """Adds details and drawings as long as there are characters left."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def block(self, label: str, value: Any) -> str:
        """Return a block of text, with a label unless that is empty; without room, a note that it is left out."""
        text = value if isinstance(value, str) else for_reading(clip(value, TEXT, 20))
        head = f'<div class="agentnb-label-small">{escaped(label)}</div>' if label else ""
        body = long(text)
        is_tall = len(body) > TALL or body.count("\n") > TALL_LINES
        scrolls = ' tabindex="0"' if is_tall else ""  # only with the focus can it be scrolled by keyboard
        block = self.spend(f"{head}<pre{scrolls}>{body}</pre>")
        return block or '<p class="agentnb-dim">Left out to keep this small.</p>'

    def spend(self, html: str) -> str:
        """Return the HTML, or an empty string if there is no room for it."""
        if len(html) > self._left:
            return ""
        self._left -= len(html)
        return html


def escaped(text: object) -> str:
    """Return text as HTML."""
    return escape(visible(str(text)))


def line(text: str) -> str:
    """Return text as HTML, cut to one line; to half a line if escaping makes it much longer."""
    cut = escaped(one_line(text, LINE))
    return cut if len(cut) <= 2 * LINE else escaped(one_line(text, LINE // 2))


def long(text: str) -> str:
    """Return the beginning of a text as HTML, with the length of the whole if it is cut."""
    cut = visible(text[:TEXT])
    note = f"\n… ({len(text):,} characters in all)" if len(text) > TEXT else ""
    return escape(cut + note)


def hung(text: str) -> str:
    """Return the beginning of a text as HTML; wrapped lines are indented further (as in page/text.js)."""
    lines = ((line, min(24, len(line) - len(line.lstrip(f" {BAR}")) + 2)) for line in long(text).split("\n"))
    return "\n".join(f'<span class="agentnb-hung" style="--in:{further}ch">{line}</span>' for line, further in lines)


def path_of(path: str) -> str:
    """Return the path of a loop as HTML; empty for the outermost loop."""
    return f'<span class="agentnb-path">{line(path)}</span> ' if path else ""


def count(amount: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def ends(items: Sequence[Any], first: int, last: int) -> Iterator[tuple[int, Any]]:
    """Iterate over the first and last items with their positions; between them, how many are left out, and None."""
    left_out = len(items) - first - last
    if left_out <= 0:
        yield from enumerate(items)
        return
    yield from enumerate(items[:first])
    yield left_out, None
    yield from enumerate(items[-last:], len(items) - last)


def portable(parts: str, style: str) -> str:
    """Return the whole panel, on one line, of its parts and its style sheet.

    Exporters put it into a Markdown file, where a blank line ends a block of HTML: the text of a model after it would
    be Markdown, and its images would be fetched (CommonMark 0.31, 4.6, condition 6). So line breaks are character
    references. Site generators evaluate `{{ }}` and `{% %}` anywhere in such a file; these are escaped in the same way.
    MathJax reads dollar signs as mathematics, except in elements of certain classes. The style sheet comes last,
    because viewers that do not accept it show it as text.
    """
    body = _TEMPLATE.sub(lambda brace: f"&#{ord(brace[0])};", parts.replace("\n", "&#10;"))
    return f'<div class="agentnb agentnb-static {CLASSES}">{body}<style>{_compact(style)}</style></div>'


@cache
def _compact(style: str) -> str:
    without_comments = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    return " ".join(without_comments.split())
