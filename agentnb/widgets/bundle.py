"""The bundle: the page's side of the panel as one module and one style sheet.

A widget's front end takes a single module. The files in `page/` are ES modules that import only each other; here they
are joined in the order of `MODULES`, without their imports, exports and JSDoc types. An exported file has the modules
that need no kernel, and `file.js`.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parent / "page"
MODULES = (
    *("text", "icons", "focus", "keys", "size", "past", "lanes", "spans", "trace_rows", "moment", "typed", "player"),
    *("store", "form", "breakpoints", "queue", "notices"),
    *("head", "menu", "exporting", "sum", "composer", "help", "dock", "controls"),
    *("replay", "range", "strip", "values", "asking", "call", "decisions", "approvals"),
    *("data", "recorded", "subject", "sections", "here", "detail"),
    *("list", "row", "filter", "events", "trace_line", "streams", "trace"),
    *("markdown", "messages", "live", "usage", "tabs"),
    *("cells", "whatif", "branches", "compare", "inside"),
    *("miniature", "study_store", "study_grid", "study_arms", "study_steps", "study"),
    *("phase", "diagram", "graph", "find", "ready", "ended", "sight", "bar", "panel"),
)
STYLES = (
    *("tokens", "strip", "events", "trace", "diagram", "views", "markdown", "acting", "question"),
    *("branching", "detail", "frame", "bar", "study"),
)

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[a-z_]+\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_JSDOC = re.compile(r"/\*\*.*?\*/ ?", re.DOTALL)
_LINE_COMMENT = re.compile(r" // [^\"'`]*$")  # without quotes, so that it is not in a string
_EXPORT = re.compile(r"^export (?!default )", re.MULTILINE)


NEED_A_KERNEL = frozenset(
    [
        *("form", "breakpoints", "composer", "exporting", "controls", "asking", "call", "decisions", "approvals"),
        *("dock", "sight", "bar", "live", "ready", "cells", "whatif", "branches", "compare", "inside", "ended", "size"),
        *("miniature", "study_store", "study_grid", "study_arms", "study_steps", "study"),
    ]
)
"""The modules whose parts an exported file does not have, because only a kernel can answer them."""


@cache
def module() -> str:
    """Return the panel's JavaScript."""
    return _joined(MODULES)


@cache
def file_module() -> str:
    """Return the JavaScript of an exported file. It shows the file's data as soon as it runs."""
    source = _shortened(_joined((*(name for name in MODULES if name not in NEED_A_KERNEL), "file")))
    return "\n".join(map(_without_blanks, source.splitlines()))


_TEXT = re.compile(r'("(?:[^"\\]|\\.)*")')
_BLANK = re.compile(r" ?([=(){}\[\],;:?<>&|*!]) ?")


def _without_blanks(line: str) -> str:
    """Return a line of JavaScript without the blanks that mean nothing.

    A line that has a comment, a regular expression, or a text that is not in double quotes, is returned as it is.
    """
    parts = _TEXT.split(line)
    if any(re.search(r"[\"'`/]", part) for part in parts[::2]):
        return line
    return "".join(part if number % 2 else _BLANK.sub(r"\1", part) for number, part in enumerate(parts))


def _joined(names: Iterable[str]) -> str:
    sources = ((PAGE / f"{name}.js").read_text(encoding="utf-8") for name in names)
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
    return _UNPACK % {"module": _packed(_shortened(module())), "style": _packed(compact_style_sheet())}


def _packed(text: str) -> str:
    return json.dumps(b64encode(zlib.compress(text.encode(), 9)).decode())


def _shortened(source: str) -> str:
    """Remove indentation, empty lines and comments from JavaScript that has no strings over several lines."""
    lines = (_LINE_COMMENT.sub("", line.strip()) for line in source.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@cache
def compact_style_sheet() -> str:
    """Return the panel's CSS without comments."""
    return _COMMENT.sub("", style_sheet())


@cache
def file_style_sheet() -> str:
    """Return the CSS of an exported file: without the rules of elements that it does not have."""
    drawings = (path.read_text(encoding="utf-8") for path in sorted((PAGE.parent / "drawings").glob("*.py")))
    source = "\n".join((file_module(), *drawings))
    begun = set(re.findall(r"(agentnb-[a-z-]+-)\$\{", source))
    known = set(re.findall(r"agentnb-[a-z-]+", source))

    def is_known(name: str) -> bool:
        return name in known or any(name.startswith(prefix) for prefix in begun)

    def kept(rule: re.Match[str]) -> str:
        selectors = _outside(rule[1]).split(",")
        some = any(all(map(is_known, re.findall(r"\.(agentnb-[a-z-]+)", selector))) for selector in selectors)
        return rule[0] if some or rule[1].lstrip().startswith("@") else ""

    text = _EMPTY.sub("", _RULE.sub(kept, compact_style_sheet()))
    return re.sub(r" ?([{};,]) ?", r"\1", re.sub(r"\s+", " ", text)).replace(";}", "}").replace(": ", ":")


_RULE = re.compile(r"([^{}]+)\{[^{}]*\}")
_EMPTY = re.compile(r"@(?:container|media)[^{}]*\{\s*\}")


def _outside(selector: str) -> str:
    """Return a selector without what is in parentheses."""
    while (shorter := re.sub(r"\([^()]*\)", "", selector)) != selector:
        selector = shorter
    return selector


@cache
def style_sheet() -> str:
    """Return the panel's CSS."""
    return "\n".join((PAGE / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
