"""Attended: detects if a person may be using this kernel.

A front end with a person declares with each cell that it accepts requests for input (`allow_stdin`): JupyterLab,
Notebook, VS Code and the consoles do. Programs that execute notebooks (nbclient, and so papermill, nbconvert and
`jupyter execute`) declare that they do not. agentnb concludes that no person is present if a cell has declared this and
no cell has accepted input. One cell that accepts input is sufficient for the lifetime of the kernel, because its tab
may be closed and reopened. If the kernel does not report the declaration, a person may be present. Under Voila a person
may be present too: it executes a notebook as these programs do, but for a person who waits for the page.

There is another sign of a person: a page that sends messages to a panel. `agentnb.run.headless` handles it.
"""

from __future__ import annotations

import os
from typing import Any


class Attended:
    """The declarations of the cells of one kernel; `shell` is its IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._kernel = shell.kernel
        self._accepts_input: bool | None = None  # None until a cell has declared it
        self.read_declaration()
        shell.events.register("pre_run_cell", self.read_declaration)

    def read_declaration(self, *_: object) -> None:
        """Record whether the sender of the cell that is about to run accepts requests for input."""
        if self._accepts_input:
            return
        get_parent = getattr(self._kernel, "get_parent", None)
        message = get_parent("shell") if callable(get_parent) else None
        content = message.get("content") if isinstance(message, dict) else None
        declared = content.get("allow_stdin") if isinstance(content, dict) else None
        if isinstance(declared, bool):
            self._accepts_input = declared

    def absence(self) -> str | None:
        """Return the reason why no person can be asked here, or None if a person may be present."""
        if self._accepts_input is not False or os.environ.get("SERVER_SOFTWARE", "").startswith("voila/"):
            return None
        return "this notebook is executed by a program (its cells cannot ask for input, and no page has opened a panel)"
