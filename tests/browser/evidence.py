"""The screen of a failed test: a picture of each page, its text, and its console messages.

The pictures and whole texts are in tests/.cache/failures, in a folder with the name of the test; their ends are in the
report.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from playwright.sync_api import Error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Page

FAILURES = Path(__file__).parents[1] / ".cache" / "failures"
SHOWN = 3000  # letters of a text
PATIENCE = 10_000  # milliseconds for a page that may hang

_consoles: WeakKeyDictionary[Page, list[str]] = WeakKeyDictionary()


def listen(page: Page) -> None:
    """Keep the console messages of the page from here on, and its uncaught errors."""
    said = _consoles[page] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"uncaught: {error}"))
    page.on("crash", lambda _: said.append("the page has crashed"))


def evidence(test: str, pages: Iterable[Page]) -> list[tuple[str, str]]:
    """Give the sections of a report on these pages, which are open; to be called on the browser's thread."""
    folder = FAILURES / re.sub(r"[^\w.-]+", "_", test)[-150:]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return [_look(page, folder / f"{number}.png") for number, page in enumerate(pages)]


def _look(page: Page, picture: Path) -> tuple[str, str]:
    try:
        page.screenshot(path=picture, timeout=PATIENCE)
        shown = page.inner_text("body", timeout=PATIENCE)
    except Error as error:  # of this page no more is to be had
        shown = f"(not to be had: {error})"
    said = "\n".join(_consoles.get(page, []))
    picture.with_suffix(".txt").write_text(f"{page.url}\n\n{shown}\n\n{said}\n", encoding="utf-8")
    parts = [f"picture and all of it: {picture}", shown[-SHOWN:], "-- console --", said[-SHOWN:]]
    return f"page {page.url}", "\n".join(parts)
