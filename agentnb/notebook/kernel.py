"""Detection of the kernel or the IPython shell of this process.

It uses `sys.modules`, so that Jupyter is not imported in processes without it. In a plain interpreter IPython is not
loaded; in a terminal it is loaded, but its shell has no kernel.
"""

from __future__ import annotations

import sys
from typing import Any


def current_shell() -> Any | None:
    """Return the IPython shell of this process, in a kernel or in a terminal, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if callable(get_ipython) else None


def current_kernel() -> Any | None:
    """Return the running ipykernel of this process, or a kernel that behaves like it, or None."""
    return getattr(current_shell(), "kernel", None)


def in_kernel() -> bool:
    """Return True if this process is a Jupyter kernel. Imports neither IPython nor ipykernel."""
    return current_kernel() is not None


def in_terminal() -> bool:
    """Return True if this process is IPython in a terminal. Does not import IPython."""
    return current_shell() is not None and not in_kernel()
