"""A notebook open in JupyterLab, driven as a person drives it.

Code cells are counted from 0. Only `wait_cell` and `run` wait for the end of a cell, because the tests are about cells
that run.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from playwright import sync_api as playwright

    from tests.browser.browser import Chromium
    from tests.browser.server import JupyterServer

P = ParamSpec("P")
T = TypeVar("T")

READY = 90.0  # seconds for the page and its kernel; 12 were usual
PATIENCE = 60.0
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"

# Functions in the page for the methods below. `jupyterapp` exists because of --expose-app-in-browser.
SCRIPT = """
window.lab = {
  get panel() { return window.jupyterapp.shell.currentWidget; },
  get kernel() { return lab.panel.context.sessionContext.session?.kernel; },
  get cells() { return lab.panel.content.widgets.filter(cell => cell.model.type === "code"); },
  prompt: i => lab.cells[i].node.querySelector(".jp-InputPrompt").textContent,
  // Before it is run again a cell shows the number of its last run: mark it first, then wait for the mark to go.
  mark: cells => cells.forEach(cell => cell.setPrompt("*")),
  run(i) {
    const notebook = lab.panel.content;
    notebook.deselectAll();
    notebook.activeCellIndex = notebook.widgets.indexOf(lab.cells[i]);
    lab.mark([lab.cells[i]]);
    window.jupyterapp.commands.execute("notebook:run-cell");
  },
  runAll() { lab.mark(lab.cells); window.jupyterapp.commands.execute("notebook:run-all-cells"); },
  async pid() {
    const expression = "__import__('os').getpid()";
    const future = lab.kernel.requestExecute({code: "", silent: true, user_expressions: {pid: expression}});
    return parseInt((await future.done).content.user_expressions.pid.data["text/plain"]);
  },
};
"""
IS_OPEN = "() => window.jupyterapp?.shell?.currentWidget?.context?.isReady === true"
IS_READY = "() => lab.panel.context.sessionContext.isReady && lab.kernel?.status === 'idle' && lab.cells.length > 0"


def _in_browser(method: Callable[Concatenate[Notebook, P], T]) -> Callable[Concatenate[Notebook, P], T]:
    """Perform the method on the browser's thread."""

    def performed(self: Notebook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.browser.do(method, self, *args, **kwargs)

    return update_wrapper(performed, method)


def notebook_content(kernel: str, cells: Sequence[str]) -> dict[str, Any]:
    """Make a notebook of format 4.5 with these code cells."""
    metadata = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    blank: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    code_cells = [blank | {"id": f"cell-{number}", "source": source} for number, source in enumerate(cells)]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": code_cells}


class Notebook:
    """A notebook in its own page, with its kernel; made by `open` of the fixture `notebooks`."""

    def __init__(self, browser: Chromium, server: JupyterServer, path: Path) -> None:
        self.browser = browser
        self.server = server
        self.path = path
        self.console: list[str] = []
        self._page: playwright.Page
        self._pid: int | None = None
        self._shares_kernel = False

    @classmethod
    def open(cls, browser: Chromium, server: JupyterServer, *, kernel: str, cells: Sequence[str]) -> Self:
        """Write a notebook with these code cells and open it. Return when its kernel is idle; no cell has run."""
        path = server.root / f"{uuid.uuid4().hex[:8]}.ipynb"
        path.write_text(json.dumps(notebook_content(kernel, cells)))
        return cls.open_file(browser, server, path)

    @classmethod
    def open_file(cls, browser: Chromium, server: JupyterServer, path: Path) -> Self:
        """Open a notebook that is already in the server's folder."""
        notebook = cls(browser, server, path)
        notebook._open()
        return notebook

    @classmethod
    def open_tab(cls, other: Notebook) -> Notebook:
        """Open another page on an open notebook; its kernel may be busy, and stays when this page is closed."""
        tab = cls(other.browser, other.server, other.path)
        tab._shares_kernel = True
        tab._open()
        return tab

    # -- running ------------------------------------------------------------------------------------------------------

    @_in_browser
    def run_cell(self, i: int) -> None:
        """Start a cell; does not wait for it."""
        self._page.evaluate("i => lab.run(i)", i)

    @_in_browser
    def run_all(self) -> None:
        """Start all cells; does not wait for them."""
        self._page.evaluate("() => lab.runAll()")

    @_in_browser
    def wait_cell(self, i: int, timeout: float = PATIENCE) -> None:
        """Wait until the cell's prompt is no longer `[*]`: it has ended, or it was dropped from the queue."""
        self._page.wait_for_function("i => !lab.prompt(i).includes('*')", arg=i, timeout=timeout * 1000)

    def run(self, i: int, timeout: float = PATIENCE) -> str:
        """Run a cell to its end; gives its outputs."""
        self.run_cell(i)
        self.wait_cell(i, timeout)
        return self.outputs(i)

    @_in_browser
    def is_running(self, i: int) -> bool:
        """Whether the cell runs or waits for its turn."""
        return "*" in self._page.evaluate("i => lab.prompt(i)", i)

    @_in_browser
    def set_cell(self, i: int, source: str) -> None:
        """Replace the source of a cell."""
        self._page.evaluate("([i, source]) => lab.cells[i].model.sharedModel.setSource(source)", [i, source])

    # -- looking ------------------------------------------------------------------------------------------------------

    @_in_browser
    def outputs(self, i: int) -> str:
        """Give the text that the cell's outputs show, widgets included."""
        return str(self._page.evaluate("i => lab.cells[i].outputArea.node.innerText", i))

    @_in_browser
    def wait_output(self, i: int, text: str, timeout: float = PATIENCE) -> None:
        """Wait until the cell's outputs show the text."""
        contains = "([i, text]) => lab.cells[i].outputArea.node.innerText.includes(text)"
        self._page.wait_for_function(contains, arg=[i, text], timeout=timeout * 1000)

    @_in_browser
    def wait_status(self, i: int, status: str, timeout: float = PATIENCE) -> None:
        """Wait until a panel in the cell's outputs has this status in its header."""
        shows = """([i, status]) => [...lab.cells[i].outputArea.node.querySelectorAll(".agentnb-state-word")]
            .some((word) => word.innerText.trim() === status)"""
        self._page.wait_for_function(shows, arg=[i, status], timeout=timeout * 1000)

    @_in_browser
    def text_of(self, role: Any, name: str | None = None) -> str:
        """Give the visible text of the one element with this role and accessible name."""
        return self._one(role, name).inner_text()

    @_in_browser
    def screenshot(self, path: str | Path) -> None:
        """Write a picture of the page."""
        self._page.screenshot(path=path)

    @_in_browser
    def theme(self, name: Literal["dark", "light"]) -> None:
        """Change JupyterLab's theme and wait until it is there."""
        theme = f"JupyterLab {name.capitalize()}"
        change = "theme => { window.jupyterapp.commands.execute('apputils:change-theme', {theme}); }"
        self._page.evaluate(change, theme)
        self._page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)

    # -- acting -------------------------------------------------------------------------------------------------------

    @_in_browser
    def click(self, name: str, role: Any = "button", timeout: float = PATIENCE) -> None:
        """Click the one element with this role and accessible name in the notebook."""
        button = self._one(role, name)
        button.scroll_into_view_if_needed()  # a question is read before it is decided
        button.click(timeout=timeout * 1000)

    @_in_browser
    def fill(self, name: str, text: str, role: Any = "textbox") -> None:
        """Type a text into the field with this accessible name, in place of its current text."""
        self._one(role, name).fill(text)

    @_in_browser
    def press(self, name: str, key: str, role: Any = "button") -> None:
        """Give the focus to an element and press a key there."""
        self._one(role, name).press(key)

    @_in_browser
    def stop(self) -> None:
        """Click Stop in the notebook's toolbar."""
        self._page.locator(f'{PANEL} [data-command="notebook:interrupt-kernel"]').first.click()

    @_in_browser
    def save(self) -> None:
        """Save the notebook and wait until it is saved."""
        self._page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    @_in_browser
    def reload(self) -> None:
        """Reload the page; the kernel continues. Return when the notebook is shown, with an idle or a busy kernel."""
        self._page.reload()
        self._await_open()

    def do(self, action: Callable[[playwright.Page], T]) -> T:
        """Call `action` with the page, on the thread of the browser."""
        return self.browser.do(lambda: action(self._page))

    # -- the kernel ---------------------------------------------------------------------------------------------------

    @property
    def kernel_pid(self) -> int:
        """The process id of the kernel, known since it was last idle."""
        assert self._pid is not None
        return self._pid

    def kill_kernel(self) -> None:
        """Kill the kernel's process; the server starts another one, see `await_new_kernel`."""
        os.kill(self.kernel_pid, signal.SIGKILL)

    @_in_browser
    def await_new_kernel(self) -> None:
        """Wait until the server has replaced a kernel that died, which it looks for every three seconds."""
        self._page.locator(".jp-Dialog .jp-mod-accept").click(timeout=READY * 1000)  # "Kernel Restarting"
        self._await_kernel()

    @_in_browser
    def restart_kernel(self) -> None:
        """Restart the kernel and wait until the new one is idle."""
        self._page.evaluate("() => lab.panel.context.sessionContext.session.kernel.restart()")
        self._await_kernel()

    @_in_browser
    def close(self) -> None:
        """Shut the kernel down and close the page."""
        if not self._shares_kernel:
            self._page.evaluate("() => lab.panel.context.sessionContext.shutdown()")
        self._page.close()

    def _one(self, role: Any, name: str | None) -> playwright.Locator:
        return self._page.locator(f"{PANEL} .jp-Notebook").get_by_role(role, name=name, exact=True)

    @_in_browser
    def _open(self) -> None:
        self._page = self.browser.new_page()
        self._page.add_init_script(SCRIPT)
        self._page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        file = self.path.relative_to(self.server.root).as_posix()
        self._page.goto(f"{self.server.url}/lab/workspaces/{uuid.uuid4().hex}/tree/{file}?reset")
        self._await_open()
        if not self._shares_kernel:
            self._await_kernel()

    def _await_open(self) -> None:
        self._page.wait_for_function(IS_OPEN, timeout=READY * 1000)

    def _await_kernel(self) -> None:
        self._page.wait_for_function(IS_READY, timeout=READY * 1000)
        self._pid = self._page.evaluate("() => lab.pid()")
