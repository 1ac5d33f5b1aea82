"""A test that fails on a page reports the contents of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.evidence import FAILURES, evidence

pytestmark = pytest.mark.browser


def test_evidence_of_a_page_has_its_picture_text_console_and_errors(page: Page, request: pytest.FixtureRequest) -> None:
    page.set_content("<p>three calls wait</p><script>console.warn('no kernel'); throw Error('lost')</script>")
    ((_, words),) = evidence(request.node.nodeid, [page])
    assert all(said in words for said in ("three calls wait", "warning: no kernel", "uncaught: lost"))
    picture = Path(words.splitlines()[0].removeprefix("picture and all of it: "))
    assert picture.parent.parent == FAILURES
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_evidence_of_a_closed_page_says_why_it_is_missing(page: Page, request: pytest.FixtureRequest) -> None:
    page.close()
    ((_, words),) = evidence(request.node.nodeid, [page])
    assert "not to be had" in words
