"""Kernel integration: the thread of the runs, cells that wait for runs, and the magics.

`import agentnb` calls `install` in a kernel and in IPython. `install` sets the environment in which cells wait for
runs, registers agentnb's comms at the gate, and lets IPython show agentnb's errors in a short form. `%load_ext agentnb`
adds the magics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentnb.core.lazy import lazy_exports
from agentnb.notebook.kernel import current_shell, in_kernel
from agentnb.notebook.nested import allow_nested_asyncio

if TYPE_CHECKING:
    from agentnb.notebook.attaching import attach
    from agentnb.notebook.commands import pause, replay, restore, resume, snapshot, step
    from agentnb.notebook.runs_table import runs

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
    "runs_table": ["runs"],
}
"""The public names of each module, imported at first use, because `import agentnb` needs none of them."""

__getattr__, __dir__ = lazy_exports(__name__, _WHERE)

_installed = False


def install() -> None:
    """Let runs use agentnb's own thread, and let cells wait for runs through the gate. Further calls have no effect."""
    global _installed
    if _installed:
        return
    from agentnb.notebook.attended import Attended
    from agentnb.notebook.comm_gate import comm_gate
    from agentnb.notebook.environment import KernelEnvironment
    from agentnb.notebook.tracebacks import shorten_tracebacks
    from agentnb.run.environment import PlainPython, use_environment
    from agentnb.threads import reset_in_forks
    from agentnb.widgets import comms

    gate = comm_gate()
    use_environment(KernelEnvironment(gate, Attended(current_shell()) if in_kernel() else None))
    reset_in_forks(lambda: use_environment(PlainPython()))  # a forked process must not read the kernel's sockets
    comms.listen(gate.register, gate.unregister)
    shorten_tracebacks()
    _installed = True


def describe_gate() -> str:
    """Return one sentence that says when clicks are handled in this kernel while a cell runs."""
    from agentnb.notebook.comm_gate import comm_gate

    return comm_gate().describe()


def load_magics(ipython: Any) -> None:
    """Add the magics to an IPython shell. Further calls have no effect."""
    from agentnb.notebook.magics import RunMagics, load_completion
    from agentnb.notebook.tracebacks import shorten_tracebacks

    ipython.register_magics(RunMagics(ipython))
    load_completion(ipython)
    shorten_tracebacks()


def unload_magics(ipython: Any) -> None:
    """Remove the magics from an IPython shell."""
    from agentnb.notebook.magics import NAMES, unload_completion

    for name in NAMES:
        ipython.magics_manager.magics["line"].pop(name, None)
    unload_completion(ipython)
