"""How a cell waits for a run: what the run layer is given inside a kernel instead of a plain wait.

A run lives on agentnb's own thread and loop (DESIGN 2, promise 8); a cell that wants its result only waits for a
`concurrent.futures.Future`. Waiting is where a kernel differs from any other process: clicks must get in meanwhile,
and Stop must be noticed. Both are the gate's work; this class is the whole of what the run layer sees of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentnb.notebook.gate import CommGate, comm_gate
from agentnb.notebook.kernel import in_kernel
from agentnb.notebook.presence import Presence

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["KernelEnvironment", "in_kernel"]


class KernelEnvironment:
    """Waiting inside a Jupyter kernel.

    `hosted` is True: runs belong on agentnb's own thread, because the main thread is the cell's.
    """

    hosted = True

    def __init__(self, gate: CommGate | None = None, presence: Presence | None = None) -> None:
        self._gate = gate or comm_gate()
        self._presence = presence

    def wait(self, future: Future[Any], timeout: float | None = None) -> None:
        """Block the cell until the future is done.

        `timeout` in seconds, None for ever; TimeoutError when it is over, KeyboardInterrupt on Stop.
        """
        self._gate.wait(future, timeout)

    async def wait_async(self, future: Future[Any]) -> None:
        """Let the cell await until the future is done. Stop cancels the await (CancelledError), never the future."""
        await self._gate.wait_async(future)

    def absence(self) -> str | None:
        """Why nobody can be asked here, in words; None where somebody may be there."""
        return self._presence.absence() if self._presence is not None else None
