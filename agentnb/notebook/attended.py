"""Attended: detects if a person may be using this kernel.

A front end with a person declares with each cell that it accepts requests for input (`allow_stdin`): JupyterLab,
Notebook, VS Code and the consoles do. Programs that execute notebooks (nbclient, and so papermill, nbconvert and
`jupyter execute`) declare that they do not. So no person is present as long as no cell has accepted input. One cell
that accepts it is sufficient for the lifetime of the kernel, because its tab may be closed and reopened. If the kernel
does not report the declaration, a person may be present. Voila executes a notebook in the same way as a program, but
for a person who waits for the page. `agentnb.run.headless` handles the other sign of a person, a page that sends
messages to a panel.
"""

from __future__ import annotations

import os
from typing import Any


class Attended:
    """The declarations of the cells of one kernel; `shell` is its IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._kernel = shell.kernel
        self._accepts_input: bool | None = None  # None as long as no cell has declared it
        self.read_declaration()
        shell.events.register("pre_run_cell", self.read_declaration)

    def read_declaration(self, *_: object) -> None:
        """Record the declaration of the cell that is about to run: whether its sender accepts requests for input."""
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
