"""A test that fails on a page says what was on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.evidence import FAILURES, evidence

pytestmark = pytest.mark.browser


def test_a_page_is_shown_with_its_text_its_console_and_its_errors(page: Page, request: pytest.FixtureRequest) -> None:
    page.set_content("<p>three calls wait</p><script>console.warn('no kernel'); throw Error('lost')</script>")
    ((_, words),) = evidence(request.node.nodeid, [page])
    assert all(said in words for said in ("three calls wait", "warning: no kernel", "uncaught: lost"))
    picture = Path(words.splitlines()[0].removeprefix("picture and all of it: "))
    assert picture.parent.parent == FAILURES
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_page_that_shows_nothing_any_more_says_why(page: Page, request: pytest.FixtureRequest) -> None:
    page.close()
    ((_, words),) = evidence(request.node.nodeid, [page])
    assert "not to be had" in words
