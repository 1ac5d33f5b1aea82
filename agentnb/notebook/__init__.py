"""agentnb in a kernel: where runs live, how cells wait for them, and the magics.

`install` is called by `import agentnb` when it finds itself in a kernel. It puts the kernel's way of waiting in place
and tells the gate which comms are ours; it patches nothing. `%load_ext agentnb` adds the magics.
"""

from __future__ import annotations

from typing import Any

from agentnb.notebook.kernel import current_shell, in_kernel
from agentnb.notebook.nested import allow_nested_asyncio

__all__ = ["allow_nested_asyncio", "describe_gate", "in_kernel", "install", "load_magics", "unload_magics"]

_installed = False


def install() -> None:
    """Let runs live on agentnb's own thread and cells wait through the gate; twice is once."""
    global _installed
    if _installed:
        return
    from agentnb.notebook.environment import KernelEnvironment
    from agentnb.notebook.gate import comm_gate
    from agentnb.notebook.mistakes import show_mistakes_in_one_screen
    from agentnb.notebook.presence import Presence
    from agentnb.run.host import use_environment
    from agentnb.widgets import comms

    gate = comm_gate()
    use_environment(KernelEnvironment(gate, Presence(current_shell())))
    comms.listen(gate.register, gate.unregister)
    show_mistakes_in_one_screen()
    _installed = True


def describe_gate() -> str:
    """How clicks get in while a cell runs here, in one sentence."""
    from agentnb.notebook.gate import comm_gate

    return comm_gate().describe()


def load_magics(ipython: Any) -> None:
    """Add the magics to an IPython shell; twice is once."""
    from agentnb.notebook.magics import RunMagics

    ipython.register_magics(RunMagics(ipython))


def unload_magics(ipython: Any) -> None:
    """Take the magics out again."""
    from agentnb.notebook.magics import NAMES

    for name in NAMES:
        ipython.magics_manager.magics["line"].pop(name, None)
