"""A browser for a module's tests, and pages with panels on them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.evidence import evidence, listen
from tests.widgets.pages import PanelPage, RecordedPanel, launch

expect.set_options(timeout=30_000)  # milliseconds after which an expected change is missing


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = launch(playwright)
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1000, "height": 1000})
    context.set_default_timeout(30_000)
    made = context.new_page()
    listen(made)
    yield made
    context.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the contents of the page to the report of a failing test."""
    report = yield
    if report.failed and report.when == "call" and isinstance(page := item.funcargs.get("page"), Page):
        report.sections += evidence(item.nodeid, [page])
    return report


@pytest.fixture
def show(page: Page) -> Iterator[Callable[[Any], PanelPage]]:
    shown: list[PanelPage] = []

    def make(run: Any) -> PanelPage:
        shown.append(PanelPage(page, RecordedPanel(run)))
        return shown[-1]

    yield make
    for panel_page in shown:
        panel_page.close()
