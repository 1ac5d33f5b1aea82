"""The panel looks as in the committed pictures; `pictures.py` describes the comparison."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.widgets.pictures import FOLDER, RunsOver, differences, launch_still, photographer, take
from tests.widgets.scenes import SCENES

pytestmark = pytest.mark.browser

BROKEN = {
    "a part is missing": ".agentnb-diagram { display: none; }",
    "a button is missing": ".agentnb-actions > .agentnb-button { display: none !important; }",
    "a kind of row has lost its colour": ".agentnb { --call-bar: var(--dim) !important; }",
    "the accent is another": ".agentnb { --accent: #b3261e !important; }",
    "the drawing has lost where the run is": ".agentnb-phase.agentnb-now { all: unset !important; }",
    "rows are on top of each other": ".agentnb-trace-row { transform: none !important; }",
    "nothing is dark": "@media (prefers-color-scheme: dark) { .agentnb { --ground: #fff !important; } }",
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


def compared(browser: Browser, state: str, style: str = "") -> Generator[tuple[str, bytes, list[str]]]:
    """Yield each picture of the state that differs from the committed one, with the difference."""
    with closing(photographer(browser)) as context, closing(take(context, state, style)) as taken:
        for name, png in taken:
            expected, got = (Image.open(io.BytesIO(data)) for data in ((FOLDER / name).read_bytes(), png))
            if words := differences(expected, got):
                yield name, png, words


@pytest.mark.parametrize("state", SCENES)
def test_the_panel_looks_as_in_its_pictures(browser: Browser, state: str, tmp_path: Path) -> None:
    found = {}
    for name, png, words in compared(browser, state):
        (tmp_path / name).write_bytes(png)
        found[name] = [*words, f"it is in {tmp_path / name}; `python -m tests.widgets.pictures {state}` takes it anew"]
    assert found == {}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_panel_differs_from_its_pictures(browser: Browser, what: str) -> None:
    with closing(compared(browser, "completed", BROKEN[what])) as found:
        assert next(found, None) is not None


def test_content_that_overflows_the_page_is_refused(browser: Browser) -> None:
    with pytest.raises(RunsOver):
        list(compared(browser, "running", "body { width: 1200px; }"))


@pytest.mark.parametrize("letters", OTHER_LETTERS)
def test_a_different_rendering_of_letters_is_accepted(browser: Browser, letters: str) -> None:
    assert [words for *_, words in compared(browser, "waiting-many", OTHER_LETTERS[letters])] == []


def test_all_pictures_exist_and_are_small() -> None:
    taken = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    of_states = {
        name for name in taken if not name.startswith("journey-")
    }  # those are of tests/browser/test_journey.py
    assert of_states == {f"{state}-{theme}-{width}.png" for state in SCENES
                         for theme in ("light", "dark") for width in (1000, 480)}  # fmt: skip
    assert sum(taken.values()) < 1_700_000
