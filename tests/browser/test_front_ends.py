"""The panel in the other front ends that draw widgets: Notebook 7 and Voila, on the server that JupyterLab runs on."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.clicking import AWAIT, BLOCK, SETUP
from tests.browser.notebook import notebook_content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Locator, Page

    from tests.browser.browser import Chromium
    from tests.browser.server import JupyterServer

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PAGE = "approvals_page.ipynb"
START = 90_000  # milliseconds for a page and its kernel
IS_READY = """() => {
    const session = window.jupyterapp?.shell?.currentWidget?.context?.sessionContext;
    return session?.isReady && session.session?.kernel?.status === "idle"; }"""
BEGUN = re.compile(r"\[(\*|\d+)\]")


class Pages:
    """Opens a notebook in one of the front ends; use the returned page on the thread of the browser."""

    def __init__(self, browser: Chromium, server: JupyterServer) -> None:
        self._browser = browser
        self._server = server
        self._opened: list[Page] = []

    def open(self, address: str, cells: Sequence[str]) -> Page:
        name = f"{uuid.uuid4().hex[:8]}.ipynb"
        (self._server.root / name).write_text(json.dumps(notebook_content("ipykernel7", cells)))
        return self.open_file(address, name)

    def open_file(self, address: str, name: str) -> Page:
        page = self._browser.new_page()
        self._opened.append(page)
        page.goto(f"{self._server.url}/{address}/{name}", timeout=START)
        return page

    def close(self) -> None:
        for page in self._opened:
            page.close()


@pytest.fixture
def pages(browser: Chromium, server: JupyterServer) -> Iterator[Pages]:
    opener = Pages(browser, server)
    yield opener
    browser.do(opener.close)


def approve(shown: Page | Locator, number: int) -> None:
    page = getattr(shown, "page", shown)  # what a card has is sought from the card on
    call = shown.locator(".agentnb-call", has=page.locator("dd", has_text=re.compile(f"^{number}$")))
    call.get_by_role("button", name="Approve", exact=True).click(timeout=START)


def run_cell(page: Page, ordinal: int) -> Locator:
    """Run a cell once, as a person does; return the cell when it has started."""
    cell = page.locator(f'.jp-CodeCell[data-windowed-list-index="{ordinal}"]')
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    cell.locator(".jp-InputPrompt", has_text=BEGUN).wait_for(timeout=START)
    return cell


def test_clicks_arrive_in_notebook_7_while_cells_wait(browser: Chromium, pages: Pages) -> None:
    def click_through() -> None:
        show = "run = start(0, 3); run"
        page = pages.open("notebooks", [SETUP, show, AWAIT, show, BLOCK])
        page.wait_for_function(IS_READY, timeout=START)  # an earlier execution request is dropped
        run_cell(page, 0)
        for number in (1, 3):
            panel, waiting = run_cell(page, number), run_cell(page, number + 1)
            for asked in range(3):
                approve(panel, asked)  # in this cell: the panel above may not know yet that its run has ended
            waiting.get_by_text("got done").wait_for(timeout=START)

    browser.do(click_through)


def test_a_page_of_voila_decides_with_the_panel_of_a_run_in_the_background(browser: Chromium, pages: Pages) -> None:
    def click_through() -> str:
        page = pages.open("voila/render", [SETUP, "run = start(0, 3); run.play(); run"])
        for number in range(3):
            approve(page, number)
        page.locator(".agentnb-state-word").filter(has_text="done").wait_for(timeout=START)
        page.wait_for_timeout(2000)  # the static panel, which Voila does not take, must not cost the live one
        return page.inner_text("body")

    assert "Messages" in browser.do(click_through)  # a view of the live panel


def test_the_page_for_voila_shows_no_code_and_applies_decisions(
    browser: Chromium, server: JupyterServer, pages: Pages
) -> None:
    folder = server.root / uuid.uuid4().hex[:8]
    shutil.copytree(NOTEBOOKS, folder, ignore=shutil.ignore_patterns("reports", ".*"))
    notebook = json.loads((folder / PAGE).read_text(encoding="utf-8"))
    notebook["metadata"]["kernelspec"]["name"] = "ipykernel7"
    (folder / PAGE).write_text(json.dumps(notebook))

    def decide() -> str:
        page = pages.open_file("voila/render", f"{folder.name}/{PAGE}")
        page.get_by_text("asks you").wait_for(timeout=START)
        if shots := os.environ.get("AGENTNB_SCREENSHOTS"):
            for width, scheme in ((1200, "light"), (480, "dark")):
                page.set_viewport_size({"width": width, "height": 1100})
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=f"{shots}/voila-{width}.png", full_page=True)
        page.get_by_role("button", name="Edit", exact=True).click()
        page.get_by_label("words").fill("Somebody has read this.")
        page.get_by_role("button", name="Approve", exact=True).click()
        page.locator(".agentnb-state-word").filter(has_text="done").wait_for(timeout=START)
        return page.inner_text("body")

    shown = browser.do(decide)
    assert "May this report be written?" in shown
    assert "import agentnb" not in shown
    assert (folder / "reports" / "nile.md").read_text(encoding="utf-8") == "Somebody has read this."


def test_a_page_of_voila_is_drawn_although_a_cell_waits(browser: Chromium, pages: Pages) -> None:
    """Voila draws a page when all its cells have ended, so a wait that no page can end must end automatically."""

    def look() -> None:
        soon = "import agentnb.notebook.keyboard as keyboard; keyboard.SILENT = 0.5"
        page = pages.open("voila/render", [SETUP, soon, "run = start(0, 1); run", "run.result()"])
        approve(page, 0)
        page.locator(".agentnb-state-word").filter(has_text="done").wait_for(timeout=START)

    browser.do(look)
