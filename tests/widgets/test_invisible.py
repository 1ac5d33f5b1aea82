"""Invisible characters are shown as signs, and the characters of writing are unchanged.

The rule exists twice: in Python for static pages, terminals and tables, in JavaScript for the live panel.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from agentnb import SessionLoop, tool
from agentnb.testing import ScriptedLLM, call
from agentnb.widgets import static_html
from agentnb.widgets.text import visible

HIDDEN = {
    "zero width space": "a\u200bb",
    "joiner between Latin letters": "a\u200db",
    "non-joiner between Latin letters": "a\u200cb",
    "two joiners between emoji": "👩\u200d\u200d👩",
    "soft hyphen": "a\u00adb",
    "right-to-left override": "a\u202eb",
    "byte order mark": "a\ufeffb",
    "combining grapheme joiner": "a\u034fb",
    "Hangul filler": "rm \u3164-rf",
    "Hangul choseong filler": "a\u115fb",
    "half-width filler": "a\uffa0b",
    "Khmer inherent vowel": "a\u17b4b",
    "Khitan filler": "a\U00016fe4b",
    "Braille blank": "a\u2800b",
    "no-break space": "a\u00a0b",
    "em space": "a\u2003b",
    "ideographic space between Latin letters": "a\u3000b",
    "Mongolian variation selector": "a\u180bb",
    "emoji selector after a letter": "a\ufe0fb",
    "emoji selector after a digit": "1\ufe0f",
    "second emoji selector": "❤\ufe0f\ufe0f",
    "variation selector": "a\ufe01b",
    "ideographic variation selector": "字\U000e0101",
    "tag character": "a\U000e0041b",
    "musical format control": "a\U0001d173b",
    "shorthand format control": "a\U0001bca0b",
    "hieroglyph format control": "a\U00013430b",
    "noncharacter": "a\ufdd0b",
    "escape": "a\x1b[2Kb",
    "unassigned, but to be ignored": "a\U000e0fffb",
}
MEANT = {
    "emoji with its selector": "❤\ufe0f",
    "family of joined emoji": "👨\u200d👩\u200d👧",
    "joined emoji with a skin tone": "👩🏽\u200d💻",
    "joined emoji with a selector": "🏳\ufe0f\u200d🌈",
    "keycap": "1\ufe0f\u20e3",
    "Persian word with a non-joiner": "می\u200cخواهم",  # noqa: RUF001
    "Hindi word with a joiner": "क्\u200dष",
    "Japanese text with its space": "日本\u3000語",
    "paragraph that begins with an ideographic space": "\u3000日本語",
    "tab and line end": "a\tb\nc",
    "accents as combining marks": "e\u0301",
    "umlauts, Greek and Cyrillic": "Größe Ωμέγα Привет",
}


@tool(approve=True)
async def shell(command: str) -> str:
    return "done"


async def shown(text: str) -> str:
    """Return the static page of a run with a pending call that has this text as an argument."""
    run = SessionLoop(ScriptedLLM([[call("shell", {"command": text}, id="c1")]]), [shell]).start("go")
    await run.step("turn")
    page = html.unescape(static_html(run))
    run.cancel()
    return page


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
async def test_a_question_shows_a_sign_for_an_invisible_character(text: str) -> None:
    assert text not in await shown(text)


@pytest.mark.parametrize("text", [text for text in MEANT.values() if "\t" not in text])
async def test_a_question_shows_written_text_unchanged(text: str) -> None:
    assert text in await shown(text)


def test_every_character_without_a_glyph_is_replaced() -> None:
    """Every format control, separator and control of this Python's Unicode, between two Latin letters."""
    silent = {"Cc", "Zs", "Zl", "Zp"}
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    left = [c for c in characters if unicodedata.category(c) in silent and visible(f"a{c}b") == f"a{c}b"]
    assert left == ["\t", "\n", " "]


def test_the_sign_shows_the_code_of_the_character() -> None:
    assert visible("a\u202eb \x1b \x7f") == "a⟦U+202E⟧b ␛ ␡"


def test_the_javascript_uses_the_same_rule() -> None:
    texts = [*HIDDEN.values(), *MEANT.values(), "a\r\nb", "\x00", "a\u200d", "\ufe0f"]
    texts += [f"a{chr(code)}b" for code in range(0x20, 0x3100)]
    page = Path(__file__).parents[2] / "agentnb" / "widgets" / "page" / "text.js"
    script = """
        import { readFileSync } from "node:fs";
        const source = readFileSync(process.argv[1], "utf8");
        const { visible } = await import("data:text/javascript," + encodeURIComponent(source));
        const texts = JSON.parse(readFileSync(0, "utf8"));
        process.stdout.write(JSON.stringify(texts.map(visible)));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script, str(page)],
        input=json.dumps(texts), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [visible(text) for text in texts]
