"""The page's side of the panel as one module and one style sheet.

A widget's front end takes a single module, and a file of all of it would be too long to read. The files in `page/` are
ES modules that import from each other and nothing else; here they are put one after the other in the order they need
each other, without their imports and exports. Their types are JSDoc comments, which are left out as well.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parent / "page"
MODULES = (
    *("text", "focus", "keys", "spans", "typed", "player", "store", "form", "breakpoints", "queue", "head", "controls"),
    *("position", "call", "decisions", "approvals"),
    *("details", "list", "row", "filter", "events", "timeline", "messages", "live", "usage", "tabs"),
    *("diagram", "graph", "panel"),
)
STYLES = ("panel", "views", "acting")
FROZEN_STYLES = ("panel", "frozen")

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_JSDOC = re.compile(r"/\*\*.*?\*/ ?", re.DOTALL)
_SPACE = re.compile(r"\s*\n\s*")
# What only a live panel has: what is pressed, typed into, scrolled through or on its way.
_LIVE = re.compile(
    r"-(panel|button|select|input|field|form|talk|joined|waiting|control|link|filter|line|details|live|spacer|row|busy|place)\b"
    r"|:focus"
)
_ROOT = re.compile(r"\.agentnb(?![\w-])")
_COMMA = re.compile(r",(?![^(]*\))")  # between selectors, not in the brackets of one
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)


@cache
def module() -> str:
    """The panel's JavaScript."""
    sources = ((PAGE / f"{name}.js").read_text(encoding="utf-8") for name in MODULES)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _JSDOC.sub("", source))) for source in sources)


_UNPACK = """\
const text = (packed) => {
  const bytes = new Blob([Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0))]).stream();
  return new Response(bytes.pipeThrough(new DecompressionStream("deflate"))).text();
};
const source = new Blob([await text(%(module)s)], { type: "text/javascript" });
const url = URL.createObjectURL(source);
const panel = (await import(url)).default;
URL.revokeObjectURL(url);
const css = await text(%(style)s);
const dress = (root) => {
  if (root.querySelector("style[data-agentnb-style]")) return;
  const style = document.createElement("style");
  style.dataset.agentnbStyle = "";
  style.textContent = css;
  root.prepend(style);
};
export default {
  initialize: panel.initialize,
  render: (given) => {
    dress(given.el);
    return panel.render(given);
  },
};
"""


@cache
def packed_module() -> str:
    """The panel's JavaScript and CSS as one small module."""
    return _UNPACK % {"module": _packed(_shortened(module())), "style": _packed(_COMMENT.sub("", style_sheet()))}


def _packed(text: str) -> str:
    return json.dumps(b64encode(zlib.compress(text.encode(), 9)).decode())


def _shortened(source: str) -> str:
    """JavaScript without indentation, empty lines and lines that are comments; no string goes over several lines."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@cache
def style_sheet() -> str:
    """The live panel's CSS."""
    return _styles(STYLES)


@cache
def frozen_style_sheet() -> str:
    """The CSS that a saved notebook carries for each run: what a frozen panel needs, without comments.

    It is for frozen panels only. A live one on the same page has a style sheet of its own, which stands before those
    in the outputs; rules that fitted both would come last and win, without what only the live one's sheet says.
    """
    lines = _SPACE.sub("\n", _COMMENT.sub("", _styles(FROZEN_STYLES))).splitlines()
    return "\n".join(_for_frozen(line) for line in lines if _is_for_frozen(line))


def _is_for_frozen(line: str) -> bool:
    """Whether a line is no whole rule, or one that something in a frozen panel may need."""
    selectors, brace, _ = line.partition("{")
    return not brace or not line.endswith("}") or not all(map(_LIVE.search, _COMMA.split(selectors)))


def _for_frozen(line: str) -> str:
    """A line with its selectors, where it has any, fitting nothing but frozen panels."""
    selectors, brace, rule = line.partition("{")
    if not brace or line.startswith("@"):
        return line
    rooted = (_ROOT.sub(".agentnb-static", selector) for selector in _COMMA.split(selectors))
    return (
        ",".join(one if ".agentnb-static" in one else f":where(.agentnb-static) {one.lstrip()}" for one in rooted)
        + brace
        + rule
    )


def _styles(names: Sequence[str]) -> str:
    return "\n".join((PAGE / f"{name}.css").read_text(encoding="utf-8") for name in names)
