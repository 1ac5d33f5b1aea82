"""Which kernel or shell this process is, if it is one.

Asked through `sys.modules`, so that nothing of Jupyter is imported where there is none: in a plain interpreter
IPython is not loaded; in a terminal it is, but its shell has no kernel.
"""

from __future__ import annotations

import sys
from typing import Any


def current_shell() -> Any | None:
    """Give the IPython shell of this process, in a kernel or in a terminal; None where there is none."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython() if callable(get_ipython) else None


def current_kernel() -> Any | None:
    """Give the running ipykernel of this process, or one that behaves like it; None anywhere else."""
    return getattr(current_shell(), "kernel", None)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel. Imports neither IPython nor ipykernel."""
    return current_kernel() is not None


def in_terminal() -> bool:
    """Whether this process is IPython in a terminal. Imports nothing of it."""
    return current_shell() is not None and not in_kernel()
