"""The static panel as it has to be to survive what others do to the HTML of a saved notebook.

An exporter puts it into a Markdown file, where a blank line ends a block of HTML: what a model says after one would be
Markdown, and its images would be fetched (CommonMark 0.31, 4.6, condition 6). So the panel is one line, in which a line
break is a character reference. Site generators evaluate `{{ }}` and `{% %}` in such a file wherever they stand; these
are taken apart in the same way. Pages with MathJax read dollar signs as mathematics, in whatever has not one of two
classes. And the style sheet stands last, because viewers that do not take it show it as text.
"""

from __future__ import annotations

import re
from functools import cache

CLASSES = "mathjax_ignore tex2jax_ignore"
"""What MathJax leaves alone: the first is version 3's name (JupyterLab), the second version 2's (nbconvert)."""

_TEMPLATE = re.compile(r"\{(?=[{%#])|(?<=[}%#])\}")


def portable(parts: str, style: str) -> str:
    """The whole panel, on one line, of its parts and its style sheet."""
    body = _TEMPLATE.sub(lambda brace: f"&#{ord(brace[0])};", parts.replace("\n", "&#10;"))
    return f'<div class="agentnb agentnb-static {CLASSES}">{body}<style>{_compact(style)}</style></div>'


@cache
def _compact(style: str) -> str:
    without_comments = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
    return " ".join(without_comments.split())
