"""A real kernel without a browser: the test plays the front end, message by message."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import KernelManager

from tests.kernels import RELEASES, kernel_command, kernel_environment, without_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jupyter_client.blocking.client import BlockingKernelClient

Message = dict[str, Any]
PATIENCE = 60.0  # seconds until something that must happen has not happened


def left(deadline: float) -> float:
    """Give the seconds until then; a negative number would mean for ever."""
    return max(0.0, deadline - time.monotonic())


class OneKernelSpec(KernelSpecManager):
    """Has the one given kernelspec, and reads no file."""

    spec: KernelSpec

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the spec for any name."""
        return self.spec


class LiveKernel:
    """A kernel process and the client side of its channels; the process runs the code `first` at its start."""

    def __init__(self, name: str, *, first: str = "", releases: Mapping[str, str | None] = RELEASES) -> None:
        specs = OneKernelSpec()
        specs.spec = KernelSpec(argv=kernel_command(first), env=kernel_environment(name, releases), display_name=name)
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "kernel.json"
        self.manager = KernelManager(
            kernel_name=name, kernel_spec_manager=specs, connection_file=str(file), config=without_ports()
        )
        self.client: BlockingKernelClient
        self.published: list[Message] = []

    def __enter__(self) -> Self:
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._folder.cleanup()

    def send(self, code: str, *, allow_stdin: bool = True) -> str:
        """Send a cell without waiting for it, as a front end with a person does; gives the message's id."""
        return str(self.client.execute(code, allow_stdin=allow_stdin))

    def run(self, code: str, *, allow_stdin: bool = True) -> str:
        """Run a cell to its end and return its output. An error in the cell is raised here."""
        reply = {"status": "aborted"}
        while reply["status"] == "aborted":  # for a moment after Stop, a kernel drops requests
            cell = self.send(code, allow_stdin=allow_stdin)
            reply = self.reply(cell)
        assert reply["status"] == "ok", reply
        self.until(lambda: self.is_idle(cell))
        return self.printed(cell)

    def fails(self, code: str) -> tuple[str, str]:
        """Run a cell that fails; return the name of the error and the text that the cell shows."""
        cell = self.send(code)
        assert self.reply(cell)["status"] == "error"  # and Run All does not run later cells
        self.until(lambda: self.is_idle(cell))
        (error,) = self.of(cell, "error")
        return error["ename"], re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error["traceback"]))

    def comm(self, comm_id: str, data: object) -> str:
        """Send a comm message, as a click does; gives the message's id."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def open_comm(self, comm_id: str, target: str, metadata: Message) -> None:
        """Open a comm from the front end's side."""
        content = {"comm_id": comm_id, "target_name": target, "data": {}}
        self.client.shell_channel.send(self.client.session.msg("comm_open", content, metadata=metadata))

    def reply(self, cell: str) -> Message:
        """Wait for a cell's reply; gives its content."""
        deadline = time.monotonic() + PATIENCE
        while True:
            message = self.client.get_shell_msg(timeout=left(deadline))
            if message["parent_header"].get("msg_id") == cell:
                return dict(message["content"])

    def until(self, condition: Callable[[], bool]) -> None:
        """Read published messages of the kernel until the condition is true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.published.append(self.client.get_iopub_msg(timeout=left(deadline)))

    def until_printed(self, cell: str, text: str) -> None:
        """Read until the cell has printed the text."""
        self.until(lambda: text in self.printed(cell))

    def of(self, parent: str, kind: str) -> list[Message]:
        """Return the contents of the messages of one type that were published for a request so far."""
        return [
            message["content"]
            for message in self.published
            if message["parent_header"].get("msg_id") == parent and message["msg_type"] == kind
        ]

    def printed(self, cell: str) -> str:
        """Return the output of a cell so far."""
        return "".join(content["text"] for content in self.of(cell, "stream"))

    def is_idle(self, parent: str) -> bool:
        """Return True if the kernel has reported that it has finished a request."""
        return {"execution_state": "idle"} in self.of(parent, "status")
