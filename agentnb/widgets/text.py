"""Text: makes text of a model or a tool safe to show, and writes JSON, times and amounts for a person.

Apart from markup, three kinds of characters can deceive a reader, or break a program that handles the text: terminal
escapes; characters that are invisible or reverse the direction of the text (a file name that reads backwards, a command
hidden in variation selectors); and lone surrogates, which are not valid Unicode and stop every encoder. The first two
are shown as visible signs, `␛` or `⟦U+202E⟧`; the third become U+FFFD. The page has the same rule (`page/text.js`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from textwrap import wrap
from typing import Any

import regex
from pydantic_core import PydanticSerializationError, to_json

from agentnb.core.json import repair_text, repair_texts
from agentnb.core.messages import text_of
from agentnb.llms.conversion import part_in_words

# Characters without a glyph of their own:
#   Unicode's Default_Ignorable_Code_Point: joiners, directional marks, fillers, variation selectors, tags;
#   controls and line separators, other than tab and newline;
#   spaces other than U+0020, the Braille blank, a note without a head, the Khitan filler;
#   format controls of annotations and of hieroglyphs; noncharacters.
_INVISIBLE = (
    r"[\p{Default_Ignorable_Code_Point}\p{Cc}\p{Zs}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}"
    r"\u2800\uFFF9-\uFFFB\U0001D159\U00016FE4\U00013430-\U0001343F--[\t\n\x20]]"
)
# In these contexts, some of them are part of normal text and are not replaced:
#   the joiner between two emoji; the selector of an emoji, after it;
_EMOJI = (
    r"(?<=\p{Extended_Pictographic}\uFE0F?|\p{Emoji_Modifier})\u200D(?=\p{Extended_Pictographic})"
    r"|(?<=[\p{Emoji}--\p{ASCII}])[\uFE0E\uFE0F]|(?<=[0-9\#*])\uFE0F(?=\u20E3)"
)
#   joiners between two letters of a script that is written with them;
_SCRIPTS = (
    r"\p{Arabic}\p{Syriac}\p{Mandaic}\p{Nko}\p{Mongolian}\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}"
    r"\p{Telugu}\p{Kannada}\p{Malayalam}\p{Sinhala}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Balinese}\p{Javanese}"
)
_LETTER = rf"[[{_SCRIPTS}]&&[\p{{L}}\p{{M}}]]"
_JOINED = rf"(?<={_LETTER})[\u200C\u200D](?={_LETTER})"
#   the ideographic space next to a character of its width.
_WIDE = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3001-\u303F\uFF01-\uFF60--\p{Default_Ignorable_Code_Point}]"
_SPACED = rf"(?<={_WIDE})\u3000|\u3000(?={_WIDE})"
_HIDDEN = regex.compile(rf"(?:{_EMOJI}|{_JOINED}|{_SPACED})(*SKIP)(*FAIL)|{_INVISIBLE}", regex.VERSION1)
BAR = "│"
"""The sign before each line of a text of several lines."""
WIDTH = 88
"""The maximum number of characters of a line of JSON for a person; a line with a single value may be longer."""


def visible(text: str) -> str:
    """Return `text` with each invisible character as a sign, except tab and newline."""
    return _HIDDEN.sub(_sign, repair_text(text.replace("\r\n", "\n")))


def _sign(match: regex.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"⟦U+{code:04X}⟧"


def one_line(text: str, room: int = 160) -> str:
    """Return the beginning of `text` on one line, at most `room` characters."""
    line = regex.sub(r"[ \t\r\n]+", " ", text[: 2 * room]).strip(" ")  # other blanks are shown as signs
    return line if len(line) <= room and len(text) <= 2 * room else line[: room - 1] + "…"


def brief(value: Any, room: int = 160) -> str:
    """Return a small JSON value on one line, at most `room` characters."""
    if value is None or isinstance(value, str):
        return one_line(value or "", room)
    return one_line(as_json(value).decode(), room)


def as_json(value: Any) -> bytes:
    """Return a value as compact JSON that every parser accepts."""
    try:
        return to_json(value, inf_nan_mode="strings")  # JSON.parse knows no NaN
    except PydanticSerializationError:  # a lone surrogate somewhere
        return to_json(repair_texts(value), inf_nan_mode="strings")


def pretty(value: Any) -> str:
    """Return a JSON value as indented text in valid Unicode, with exact numbers."""
    return repair_text(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def message_text(content: Any) -> str:
    """Return the text of a message, and after it the name of each picture, document and sound."""
    names = [words for block in content if (words := part_in_words(block))] if isinstance(content, list | tuple) else []
    return "\n".join([*([text] if (text := text_of(content)) else []), *names])


def without_data(value: Any) -> Any:
    """Return a JSON value with each picture, document and sound in words: `[image: image/png, 5,612 bytes]`."""
    if isinstance(value, Mapping):
        words = part_in_words(value)
        return words if words is not None else {name: without_data(one) for name, one in value.items()}
    return [without_data(one) for one in value] if isinstance(value, (list, tuple)) else value


def for_reading(value: Any) -> str:
    """Return a JSON value for a person: one part on each line, but short parts and numbers next to each other.

    A text of several lines is written below its position, and each of its lines begins with a bar, so that it cannot
    look like another value. If there is no such text, the result is JSON.
    """
    return "".join(_laid_out(value, ""))


def _laid_out(value: Any, indent: str) -> tuple[str, str]:
    """Return the text at the position of a value, and the text of the lines below it ("" if there are none)."""
    if isinstance(value, str) and "\n" in value:
        lines = repair_text(value).split("\n")
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
    """Return a JSON value as text without a line break in valid Unicode, with exact numbers."""
    return repair_text(json.dumps(value, ensure_ascii=False, default=str))


def _listed(opening: str, items: Iterable[tuple[str, Any]], indent: str, closing: str) -> str:
    inner = f"{indent}  "
    made = [(name, *_laid_out(item, inner)) for name, item in items]
    commas = [","] * (len(made) - 1) + [""]
    lines = (f"{inner}{name}{place}{comma}{below}" for (name, place, below), comma in zip(made, commas, strict=True))
    return "\n".join([opening, *lines, f"{indent}{closing}"])


def used(usage: Mapping[str, float]) -> list[str]:
    """Return what models have used in words: their tokens, and the cost if it is known."""
    tokens = int(usage.get("input_tokens", 0) + usage.get("output_tokens", 0))
    words = [f"{tokens:,} token{'' if tokens == 1 else 's'}"] if tokens else []
    return [*words, amount("cost", usage["cost"])] if usage.get("cost") else words


def duration(seconds: float) -> str:
    """Return a duration as a person writes it: `350 ms`, `12.3 s`, `2 min 05 s` or `3 h 20 min`."""
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 99.95:
        return f"{seconds:.{2 if seconds < 9.995 else 1}f} s"
    whole = int(seconds + 0.5)  # rounded before it is divided: 119.9 s are two minutes, not one
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def amount(name: str, value: float) -> str:
    """Return an amount of tokens, or of money if the name is `cost`."""
    return f"${value:,.4g}" if name == "cost" else f"{value:,.10g}"
