"""Chromium on a separate thread.

Playwright's synchronous interface keeps an event loop marked as running on the thread it was started on, and every
`async` test of the session would then fail with "cannot be called from a running event loop". On a separate thread it
does not interfere, and tests may be functions or coroutines.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from playwright import sync_api as playwright

from tests.browser.chromium import FLAGS, find_chromium
from tests.browser.evidence import evidence, listen

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class Chromium:
    """One browser process; every access to its pages uses `do`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._ident: int | None = None
        self._playwright: playwright.Playwright
        self._browser: playwright.Browser

    def __enter__(self) -> Self:
        path = find_chromium()
        self.do(self._start, path)
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop)
        self._thread.shutdown()

    def do(self, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Perform the action on the browser's thread and give its result."""
        if threading.get_ident() == self._ident:
            return action(*args, **kwargs)
        return self._thread.submit(action, *args, **kwargs).result()

    def new_page(self) -> playwright.Page:
        """Open a page with its own cookies and storage. Call this on the thread of the browser."""
        context = self._browser.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(60_000)  # milliseconds
        page = context.new_page()
        page.on("dialog", lambda dialog: dialog.accept())  # leaving a page with unsaved changes
        listen(page)
        return page

    def evidence(self, test: str) -> list[tuple[str, str]]:
        """Return the contents and console messages of its pages, as sections of a report."""
        return self.do(lambda: evidence(test, [page for context in self._browser.contexts for page in context.pages]))

    def _start(self, path: str) -> None:
        self._ident = threading.get_ident()
        self._playwright = playwright.sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=path, args=FLAGS)

    def _stop(self) -> None:
        self._browser.close()
        self._playwright.stop()
