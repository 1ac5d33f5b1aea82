"""The bundle: the page's side of the panel as one module and one style sheet.

A widget's front end takes a single module. The files in `page/` are ES modules that import only each other; here they
are joined in the order of `MODULES`, without their imports, exports and JSDoc types.
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
    *("diagram", "graph", "ended", "panel"),
)
STYLES = ("panel", "views", "acting")
STATIC_STYLES = ("panel", "static")

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z]+\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_JSDOC = re.compile(r"/\*\*.*?\*/ ?", re.DOTALL)
_SPACE = re.compile(r"\s*\n\s*")
# Classes of elements that only a live panel has: buttons, inputs, lists, and text that is streaming.
_LIVE = re.compile(
    r"-(panel|button|select|input|field|form|talk|joined|waiting|control|link|filter|line|details|live|spacer|row|busy|place)\b"
    r"|:focus"
)
_ROOT = re.compile(r"\.agentnb(?![\w-])")
_COMMA = re.compile(r",(?![^(]*\))")  # between two selectors, not in the brackets of a selector
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)


@cache
def module() -> str:
    """Return the panel's JavaScript."""
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
  initialize: (given) => panel.initialize({ ...given, dress }),
  render: (given) => {
    dress(given.el);
    return panel.render(given);
  },
};
"""


@cache
def packed_module() -> str:
    """Return the panel's JavaScript and CSS as one small module."""
    return _UNPACK % {"module": _packed(_shortened(module())), "style": _packed(_COMMENT.sub("", style_sheet()))}


def _packed(text: str) -> str:
    return json.dumps(b64encode(zlib.compress(text.encode(), 9)).decode())


def _shortened(source: str) -> str:
    """Remove indentation, empty lines and comment lines from JavaScript that has no strings over several lines."""
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@cache
def style_sheet() -> str:
    """Return the live panel's CSS."""
    return _styles(STYLES)


@cache
def static_style_sheet() -> str:
    """Return the CSS of a static panel, without comments. A saved notebook contains it once for each run.

    It applies to static panels only. A live panel on the same page has its own style sheet, which comes before those
    in the outputs. So a rule that applied to both kinds of panels would override rules of the live panel.
    """
    lines = _SPACE.sub("\n", _COMMENT.sub("", _styles(STATIC_STYLES))).splitlines()
    kept = []
    for line in lines:
        selectors, brace, rule = line.partition("{")
        # Leave out a rule on one line if all of its selectors belong to a live panel.
        if brace and line.endswith("}") and all(map(_LIVE.search, _COMMA.split(selectors))):
            continue
        # Let the selectors of any other rule apply to static panels only.
        if brace and not line.startswith("@"):
            rooted = (_ROOT.sub(".agentnb-static", selector) for selector in _COMMA.split(selectors))
            scoped = (one if ".agentnb-static" in one else f":where(.agentnb-static) {one.lstrip()}" for one in rooted)
            line = ",".join(scoped) + brace + rule
        kept.append(line)
    return "\n".join(kept)


def _styles(names: Sequence[str]) -> str:
    return "\n".join((PAGE / f"{name}.css").read_text(encoding="utf-8") for name in names)
