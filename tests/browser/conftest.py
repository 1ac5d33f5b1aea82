"""One JupyterLab and one browser for the session; a notebook for each test that requests one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.browser import Chromium
from tests.browser.notebook import Notebook
from tests.browser.server import JupyterServer
from tests.kernels import RELEASES

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder `browser`."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """Give a running JupyterLab with a kernelspec for every release."""
    with JupyterServer(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    """Return a running Chromium. If there is none, the run fails with the command to type."""
    with Chromium() as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the screen and the logs of the server and its kernels to the report of a failing test."""
    report = yield
    is_open = report.when != "teardown"  # the browser may have been closed
    if report.failed and is_open and isinstance(browser := item.funcargs.get("browser"), Chromium):
        report.sections += browser.evidence(item.nodeid)
    if report.failed and isinstance(server := item.funcargs.get("server"), JupyterServer):
        report.sections.append(("JupyterLab's log, its end", server.log()[-3000:]))
    return report


class Notebooks:
    """Opens notebooks, and closes them at the end of their test."""

    def __init__(self, browser: Chromium, server: JupyterServer) -> None:
        self._browser = browser
        self._server = server
        self._opened: list[Notebook] = []

    def open(self, *, kernel: str = "ipykernel7", cells: Sequence[str]) -> Notebook:
        """Open a new notebook with these code cells."""
        notebook = Notebook.open(self._browser, self._server, kernel=kernel, cells=cells)
        self._opened.append(notebook)
        return notebook

    def open_file(self, path: Path) -> Notebook:
        """Open a notebook that lies in the server's folder."""
        notebook = Notebook.open_file(self._browser, self._server, path)
        self._opened.append(notebook)
        return notebook

    def open_tab(self, notebook: Notebook) -> Notebook:
        """Open an open notebook in another page, with the same kernel, which may be busy."""
        tab = Notebook.open_tab(notebook)
        self._opened.append(tab)
        return tab

    def close(self) -> None:
        """Close all of them."""
        for notebook in self._opened:
            notebook.close()


@pytest.fixture
def notebooks(browser: Chromium, server: JupyterServer) -> Iterator[Notebooks]:
    """Give an opener of notebooks for one test."""
    opener = Notebooks(browser, server)
    yield opener
    opener.close()


@pytest.fixture(scope="module")
def module_notebooks(browser: Chromium, server: JupyterServer) -> Iterator[Notebooks]:
    """Give an opener whose notebooks stay open for a whole module, which saves some ten seconds a test."""
    opener = Notebooks(browser, server)
    yield opener
    opener.close()


@pytest.fixture(scope="module", params=list(RELEASES))
def kernel_name(request: pytest.FixtureRequest) -> str:
    """Give the name of each kernelspec in turn."""
    return str(request.param)
