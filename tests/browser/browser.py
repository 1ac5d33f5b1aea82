"""Chromium on a separate thread.

Playwright's synchronous interface keeps an event loop marked as running on the thread it was started on, and every
`async` test of the session would then fail with "cannot be called from a running event loop". On a separate thread it
does not interfere, and tests may be functions or coroutines.
"""

from __future__ import annotations

import tempfile
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
    """One browser process; every access to its pages uses `do`.

    Its pages share a profile on disk, as those of a person do: a profile in memory keeps no compiled scripts, and each
    page would compile all of JupyterLab again, which took a quarter of the time of opening it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        self._ident: int | None = None
        self._profile = tempfile.TemporaryDirectory(prefix="agentnb-browser-", ignore_cleanup_errors=True)
        self._playwright: playwright.Playwright
        self._context: playwright.BrowserContext
        self._first: playwright.Page

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
        """Open a page. Call this on the thread of the browser."""
        page = self._context.new_page()
        page.on("dialog", lambda dialog: dialog.accept())  # leaving a page with unsaved changes
        listen(page)
        return page

    def evidence(self, test: str) -> list[tuple[str, str]]:
        """Return the contents and console messages of its pages, as sections of a report."""
        return self.do(lambda: evidence(test, [page for page in self._context.pages if page != self._first]))

    def _start(self, path: str) -> None:
        self._ident = threading.get_ident()
        self._playwright = playwright.sync_playwright().start()
        self._context = self._playwright.chromium.launch_persistent_context(
            self._profile.name, executable_path=path, args=FLAGS, viewport={"width": 1280, "height": 1000}
        )
        self._context.set_default_timeout(60_000)  # milliseconds
        self._first = self._context.pages[0]  # keeps the browser open between two tests

    def _stop(self) -> None:
        self._context.close()
        self._playwright.stop()
        self._profile.cleanup()
