"""The page's side of the panel as one module and one style sheet.

A widget's front end takes a single module, and a file of all of it would be too long to read. The files in `page/` are
ES modules that import from each other and nothing else; here they are put one after the other in the order they need
each other, without their imports and exports.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parent / "page"
MODULES = (
    *("text", "store", "form", "breakpoints", "queue", "controls", "call", "decisions", "approvals"),
    *("details", "row", "events", "diagram", "graph", "panel"),
)

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)


@cache
def module() -> str:
    """The panel's JavaScript."""
    sources = ((PAGE / f"{name}.js").read_text(encoding="utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in sources)


@cache
def style_sheet(*, live: bool = True) -> str:
    """The panel's CSS; for a frozen one without that of the parts a person acts with."""
    names = ("panel.css", "acting.css") if live else ("panel.css",)
    return "\n".join((PAGE / name).read_text(encoding="utf-8") for name in names)
