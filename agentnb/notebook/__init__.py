"""agentnb in a kernel: where runs live, how cells wait for them, and the magics.

`install` is called by `import agentnb` when it finds itself in a kernel. It puts the kernel's way of waiting in place
and tells the gate which comms are ours; it patches nothing. `%load_ext agentnb` adds the magics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentnb.core.lazy import when_asked_for
from agentnb.notebook.kernel import current_shell, in_kernel
from agentnb.notebook.nested import allow_nested_asyncio

if TYPE_CHECKING:
    from agentnb.notebook.attaching import attach
    from agentnb.notebook.commands import pause, replay, restore, resume, snapshot, step
    from agentnb.notebook.table import runs

__all__ = [
    "allow_nested_asyncio",
    "attach",
    "describe_gate",
    "in_kernel",
    "install",
    "load_magics",
    "pause",
    "replay",
    "restore",
    "resume",
    "runs",
    "snapshot",
    "step",
    "unload_magics",
]

_WHERE = {
    "attaching": ["attach"],
    "commands": ["pause", "replay", "restore", "resume", "snapshot", "step"],
    "table": ["runs"],
}
"""What the magics do, as functions; imported when asked for, because `import agentnb` needs none of it."""

__getattr__, __dir__ = when_asked_for(__name__, _WHERE)

_installed = False


def install() -> None:
    """Let runs live on agentnb's own thread and cells wait through the gate; twice is once."""
    global _installed
    if _installed:
        return
    from agentnb.core.threads import forgotten_in_a_fork
    from agentnb.notebook.environment import KernelEnvironment
    from agentnb.notebook.gate import comm_gate
    from agentnb.notebook.mistakes import show_mistakes_in_one_screen
    from agentnb.notebook.presence import Presence
    from agentnb.run.host import PlainPython, use_environment
    from agentnb.widgets import comms

    gate = comm_gate()
    use_environment(KernelEnvironment(gate, Presence(current_shell()) if in_kernel() else None))
    forgotten_in_a_fork(lambda: use_environment(PlainPython()))  # the kernel's sockets are not the fork's to read
    comms.listen(gate.register, gate.unregister)
    show_mistakes_in_one_screen()
    _installed = True


def describe_gate() -> str:
    """How clicks get in while a cell runs here, in one sentence."""
    from agentnb.notebook.gate import comm_gate

    return comm_gate().describe()


def load_magics(ipython: Any) -> None:
    """Add the magics to an IPython shell; twice is once."""
    from agentnb.notebook.completion import load_completion
    from agentnb.notebook.magics import RunMagics
    from agentnb.notebook.mistakes import show_mistakes_in_one_screen

    ipython.register_magics(RunMagics(ipython))
    load_completion(ipython)
    show_mistakes_in_one_screen()


def unload_magics(ipython: Any) -> None:
    """Take the magics out again."""
    from agentnb.notebook.completion import unload_completion
    from agentnb.notebook.magics import NAMES

    for name in NAMES:
        ipython.magics_manager.magics["line"].pop(name, None)
    unload_completion(ipython)
