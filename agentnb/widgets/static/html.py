"""HTML for the static panel: text is escaped and cut to a budget, and the whole survives what others do to it.

All text of a model, a tool or a person becomes HTML here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from agentnb.llms.conversion import part_in_words
from agentnb.widgets.text import BAR, one_line, visible
from agentnb.widgets.views.transcript import pictures_in

TEXT, LINES = 2000, 60
"""Characters and lines of one text at most."""
LINE = 240
"""Characters of a line."""
CLASSES = "agentnb-static mathjax_ignore tex2jax_ignore"
"""By the last two MathJax leaves the text unchanged, in version 3 (JupyterLab) and in version 2 (nbconvert)."""
BLOCK = "margin:2px 0 6px 18px;white-space:pre-wrap;font-size:13px;line-height:18px"

THUMBNAIL = "max-width:240px;max-height:160px;margin:2px 0 6px 18px;vertical-align:top"
NAMED = 10
"""Documents and sounds of one message that are named."""

_TEMPLATE = re.compile(r"\{(?=[{%#])|(?<=[}%#])\}")


class Budget:
    """Adds parts as long as there are bytes left."""

    def __init__(self, room: int) -> None:
        self._left = room

    def spend(self, html: str, instead: str = "") -> str:
        """Return the HTML, or `instead` if there is no room for it."""
        size = len(html) if html.isascii() else len(html.encode())
        if size > self._left:
            return instead
        self._left -= size
        return html


def escaped(text: object) -> str:
    """Return text as HTML, between tags."""
    return escape(visible(str(text)), quote=False)


def quoted(text: object) -> str:
    """Return text as HTML, in the quotes of an attribute."""
    return escape(visible(str(text)))


def line(text: str, room: int = LINE) -> str:
    """Return text as HTML, cut to one line; to half a line if escaping makes it much longer."""
    cut = escaped(one_line(text, room))
    return cut if len(cut) <= 2 * room else escaped(one_line(text, room // 2))


def thumbnails(content: Any, room: Budget) -> str:
    """Return the pictures in the content of a message, or in a result, and the names of its documents and sounds.

    Only pictures that are part of the data are shown; nothing is fetched.
    """
    pictures = pictures_in(content)
    made = [
        room.spend(f'<img alt="Picture {number} of {len(pictures)}" style="{THUMBNAIL}" src="{quoted(address)}">')
        for number, address in enumerate(pictures, 1)
    ]
    left_out = sum(not one for one in made)
    words = [f"{left_out:,} of {count(len(pictures), 'picture')} left out to keep this small"] if left_out else []
    if isinstance(content, (list, tuple)):
        named = [text for block in content if (text := part_in_words(block)) and not text.startswith("[image: image/")]
        words = [*named[:NAMED], *words]
    after = f'<div style="opacity:.72;margin-left:18px">{line(" ".join(words))}</div>' if words else ""
    return f"<div>{''.join(made)}</div>{after}" if any(made) else after


def shortened(text: str) -> str:
    """Return the beginning of a text, with the length of the whole if it is cut."""
    cut = text[:TEXT]
    lines = cut.split("\n")
    if len(lines) > LINES:
        cut = "\n".join(lines[:LINES])
    return cut if len(cut) == len(text) else f"{cut}\n… ({len(text):,} characters in all)"


def block(text: str) -> str:
    """Return a text as a block of HTML, with its lines as they are, cut if it is long."""
    return f'<pre style="{BLOCK}">{escaped(shortened(text))}</pre>'


def hung(text: str) -> str:
    """Return a text as HTML; lines that wrap are indented further, so that no text can look like another line."""
    made = []
    for each in escaped(shortened(text)).split("\n"):
        further = 0.61 * min(24, len(each) - len(each.lstrip(f" {BAR}")) + 2)  # in em: a character is 0.6 em wide
        style = f"display:inline-block;width:100%;padding-left:{further:.2f}em;text-indent:-{further:.2f}em"
        made.append(f'<span style="{style};box-sizing:border-box">{each}</span>')
    return "\n".join(made)


def fold(summary: str, body: str, style: str = "") -> str:
    """Return a part to be unfolded. The summary is HTML."""
    shift = f' style="{style}"' if style else ""
    return f'<details{shift}><summary style="opacity:.72">{summary}</summary>{body}</details>'


def path_of(path: str) -> str:
    """Return the path of a loop as HTML; empty for the outermost loop."""
    return f"<samp>{line(path, 80)}</samp> " if path else ""


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
    """Return the whole panel, on one line, of its parts.

    Exporters put it into a Markdown file, where a blank line ends a block of HTML: the text of a model after it would
    be Markdown, and its images would be fetched (CommonMark 0.31, 4.6, condition 6). So line breaks are character
    references. Site generators evaluate `{{ }}` and `{% %}` anywhere in such a file; these are escaped in the same way.
    MathJax reads dollar signs as mathematics, except in elements of certain classes.
    """
    body = _TEMPLATE.sub(lambda brace: f"&#{ord(brace[0])};", parts.replace("\n", "&#10;"))
    return f'<div class="{CLASSES}" style="{style}">{body}</div>'
