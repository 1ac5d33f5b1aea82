"""Whether somebody is at this kernel.

A front end with a person says with each cell that it can be asked for input (`allow_stdin`): JupyterLab, Notebook, VS
Code and the consoles do. What executes a notebook by itself, nbclient and so papermill, nbconvert and `jupyter
execute`, says that it cannot. So nobody is there as long as every cell has come without; one cell that can be asked is
enough for the kernel's whole life, because the tab that sent it may be closed and come back. Where a kernel does not
tell, somebody may be there. Voila executes a notebook in the same way, but for somebody who waits for the page. The
other sign of a person, a page that speaks to a panel, is `agentnb.run.headless`'s.
"""

from __future__ import annotations

import os
from typing import Any


class Presence:
    """What the cells of one kernel have told of who sent them; `shell` is its IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._kernel = shell.kernel
        self._asked: bool | None = None
        self.look()
        shell.events.register("pre_run_cell", self.look)

    def look(self, *_: object) -> None:
        """Take note of who sent the cell that is about to run."""
        if self._asked:
            return
        get_parent = getattr(self._kernel, "get_parent", None)
        message = get_parent("shell") if callable(get_parent) else None
        content = message.get("content") if isinstance(message, dict) else None
        said = content.get("allow_stdin") if isinstance(content, dict) else None
        if isinstance(said, bool):
            self._asked = said

    def absence(self) -> str | None:
        """Why nobody can be asked here, in words; None where somebody may be there."""
        if self._asked is not False or os.environ.get("SERVER_SOFTWARE", "").startswith("voila/"):
            return None
        return "this notebook is executed by a program (its cells cannot ask for input, and no page has opened a panel)"
