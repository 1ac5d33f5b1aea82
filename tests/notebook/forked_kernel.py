"""Many kernels, forked from a process that has already imported the modules of a kernel, which takes seconds.

A forked kernel is a separate process and as real as any other; only its modules were imported before.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, Self

from tests.notebook.live_kernel import PATIENCE, LiveKernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.warm import Warm


class ForkedKernel(LiveKernel):
    """A kernel of the newest release, forked by a warm server of this module; it ends with SIGKILL."""

    def __init__(self, server: Warm) -> None:
        super().__init__("ipykernel7")
        self._server = server

    def __enter__(self) -> Self:
        self.manager.write_connection_file()
        self._server.tell(self.manager.connection_file)
        self.pid = int(self._server.hear())
        self.client = self.manager.client()
        self.client.start_channels(hb=False)
        self.client.get_iopub_msg(timeout=PATIENCE)  # a welcome message: from here on, published messages are received
        self.reply(self.client.kernel_info())
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.kill()
        self._server.tell("reap")
        assert self._server.hear() == "gone"
        self._folder.cleanup()

    def kill(self) -> None:
        """Kill it, once or again: its number is its own until it is reaped."""
        os.kill(self.pid, signal.SIGKILL)


def serve() -> None:
    """Fork a kernel for every line with a connection file, print its process id, and reap it on request."""
    # Imported in this process and not in that of pytest, because ipykernel replaces the comms of the whole process.
    from ipykernel.kernelapp import IPKernelApp

    import agentnb.notebook  # noqa: F401 - what the cells import

    child = 0
    for line in sys.stdin:
        if line == "reap\n":
            os.waitpid(child, 0)
            print("gone", flush=True)
        elif (child := os.fork()) == 0:
            _be_a_kernel(IPKernelApp.launch_instance, line.strip())
        else:
            print(child, flush=True)


def _be_a_kernel(launch: Callable[[list[str]], object], connection_file: str) -> NoReturn:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the output of a kernel is not an answer of the server
    # It ends with the server, which ends with the process that controls it.
    launch(["-f", connection_file, f"--IPKernelApp.parent_handle={os.getppid()}"])
    os._exit(0)


if __name__ == "__main__":
    serve()
