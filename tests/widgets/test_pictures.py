"""The panel looks as in the pictures that are checked in; how two are compared is told in `pictures.py`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.widgets.pictures import FOLDER, RunsOver, differences, launch_still, photographer, take
from tests.widgets.scenes import SCENES

pytestmark = pytest.mark.browser

BROKEN = {
    "a part is missing": ".agentnb-diagram { display: none; }",
    "a button is missing": ".agentnb-bar button:nth-of-type(2) { display: none !important; }",
    "a kind of event has lost its colour": ".agentnb { --a-call: var(--a-dim) !important; }",
    "the accent is another": ".agentnb { --a-accent: #b3261e !important; }",
    "the drawing has lost where the run is": ".agentnb-now path { fill: none !important; }",
    "rows are on top of each other": ".agentnb-row { transform: none !important; }",
    "nothing is dark": "@media (prefers-color-scheme: dark) { .agentnb { --a-ground: #fff !important; } }",
}
# As another Chromium may draw letters: bolder, spaced, unhinted, larger.
OTHER_LETTERS = {
    "bolder": "* { -webkit-text-stroke: 0.3px; }",
    "spaced and unhinted": "* { letter-spacing: 0.04px; text-rendering: geometricPrecision; }",
    "larger": ".agentnb-log { font-size: 12.1px; }",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = launch_still(playwright)
        yield made
        made.close()


def compared(browser: Browser, state: str, folder: Path | None = None, style: str = "") -> dict[str, list[str]]:
    """In what each of the state's pictures differs from the one that is checked in."""
    context = photographer(browser)
    found = {}
    for name, png in take(context, state, style):
        found[name] = differences(*(Image.open(io.BytesIO(data)) for data in ((FOLDER / name).read_bytes(), png)))
        if found[name] and folder is not None:
            (folder / name).write_bytes(png)
            found[name].append(f"it is in {folder / name}; `python -m tests.widgets.pictures {state}` takes it anew")
    context.close()
    return {name: words for name, words in found.items() if words}


@pytest.mark.parametrize("state", SCENES)
def test_the_panel_looks_as_in_its_pictures(browser: Browser, state: str, tmp_path: Path) -> None:
    assert compared(browser, state, tmp_path) == {}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_panel_does_not(browser: Browser, what: str) -> None:
    assert compared(browser, "completed", style=BROKEN[what]) != {}


def test_what_runs_over_the_edge_is_refused(browser: Browser) -> None:
    with pytest.raises(RunsOver):
        compared(browser, "running", style="body { width: 1200px; }")


@pytest.mark.parametrize("letters", OTHER_LETTERS)
def test_letters_that_are_drawn_otherwise_pass(browser: Browser, letters: str) -> None:
    assert compared(browser, "waiting-many", style=OTHER_LETTERS[letters]) == {}


def test_the_pictures_are_all_there_and_small() -> None:
    taken = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert set(taken) == {f"{state}-{theme}-{width}.png" for state in SCENES
                          for theme in ("light", "dark") for width in (1000, 480)}  # fmt: skip
    assert sum(taken.values()) < 1_700_000
