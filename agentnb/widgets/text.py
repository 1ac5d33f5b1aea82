"""Text that a model or a tool has said, made fit to be shown.

Three things in a text can deceive whoever reads it, or break what carries it, and none of them is markup: terminal
escapes, characters that are invisible or that turn the direction of the text around (a file name that reads backwards,
an order hidden in tag characters), and lone surrogates, which are no Unicode at all and stop every encoder. The first
two are shown as visible signs, `␛` or `⟦U+202E⟧`; the third become U+FFFD. The page has the same rule (`page/text.js`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from agentnb.core.unicode import mended, mended_inside

# C0 and C1 controls except tab and newline; marks, embeddings and isolates of the bidirectional algorithm (UAX 9);
# other characters without a glyph; line separators; the tag characters, which can carry a whole hidden text. The
# joiners U+200C and U+200D stay: scripts and emoji are written with them.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e007f]"
)
BAR = "│"
"""Stands before each line of a text of several."""
WIDTH = 88
"""Characters of a line of JSON that is read; a single value may be longer."""


def visible(text: str) -> str:
    """`text` with everything invisible in it shown as a sign, except tab and newline."""
    return _HIDDEN.sub(_sign, mended(text.replace("\r\n", "\n")))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟦U+{code:04X}⟧"


def one_line(text: str, room: int = 160) -> str:
    """The beginning of `text` on one line, at most `room` characters."""
    line = " ".join(text[: 2 * room].split())
    return line if len(line) <= room and len(text) <= 2 * room else line[: room - 1] + "…"


def brief(value: Any, room: int = 160) -> str:
    """A small JSON value on one line, at most `room` characters."""
    if value is None or isinstance(value, str):
        return one_line(value or "", room)
    return one_line(as_json(value).decode(), room)


def as_json(value: Any) -> bytes:
    """A value as compact JSON that every parser takes."""
    try:
        return to_json(value, inf_nan_mode="strings")  # JSON.parse knows no NaN
    except PydanticSerializationError:  # a lone surrogate somewhere
        return to_json(mended_inside(value), inf_nan_mode="strings")


def pretty(value: Any) -> str:
    """A JSON value as indented text, valid Unicode, numbers exact."""
    return mended(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def for_reading(value: Any) -> str:
    """A JSON value for a person: a part of it on each line, but short parts and numbers side by side.

    A text of several lines stands below its place, each line behind a bar, so that nothing it says looks like another
    value. Where there is none, this is JSON.
    """
    return "".join(_laid_out(value, ""))


def _laid_out(value: Any, indent: str) -> tuple[str, str]:
    """What stands in the place of a value, and the lines below it."""
    if isinstance(value, str) and "\n" in value:
        lines = mended(value).split("\n")
        below = (f"{BAR} {line}" if line else BAR for line in lines)
        return f"{len(lines):,} lines", "".join(f"\n{indent}  {line}" for line in below)
    if not (isinstance(value, (Mapping, list, tuple)) and value):
        return pretty(value), ""
    if indent and len(value) <= WIDTH and len(line := on_a_line(value)) <= WIDTH - len(indent) and "\\n" not in line:
        return line, ""
    if isinstance(value, Mapping):
        named = ((f"{pretty(str(key))}: ", item) for key, item in value.items())
        return _listed("{", named, indent, "}"), ""
    if all(isinstance(item, (int, float)) for item in value):
        numbers = wrap(on_a_line(value)[1:-1], WIDTH - len(indent) - 2, break_on_hyphens=False)
        return "\n".join(["[", *(f"{indent}  {line}" for line in numbers), f"{indent}]"]), ""
    return _listed("[", (("", item) for item in value), indent, "]"), ""


def on_a_line(value: Any) -> str:
    """A JSON value as text without a line break, valid Unicode, numbers exact."""
    return mended(json.dumps(value, ensure_ascii=False, default=str))


def _listed(opening: str, items: Iterable[tuple[str, Any]], indent: str, closing: str) -> str:
    inner = f"{indent}  "
    made = [(name, *_laid_out(item, inner)) for name, item in items]
    commas = [","] * (len(made) - 1) + [""]
    told = (f"{inner}{name}{place}{comma}{below}" for (name, place, below), comma in zip(made, commas, strict=True))
    return "\n".join([opening, *told, f"{indent}{closing}"])
