"""Finds the messages that a kernel leaves lying on its shell channel.

A ZeroMQ socket tells only once that something has come, and whoever touches the socket next uses that up. ipykernel
7.0 to 7.3 send their replies on the shell socket itself, past the stream that reads it: a request that comes in at that
moment is noticed by nobody, and lies there until another one follows. It may be a click. (7.4 sends through the stream
for this reason: its `SubshellManager._send_on_shell_channel` tells the story. Without agentnb a cell gets lost there
after some hundred requests, as with it.)

The cure from outside is to look. As long as a comm of ours is open, the stream is asked every `PERIOD` seconds whether
something is there, on the thread that owns it; the cells that would have been lost are found as well.
"""

from __future__ import annotations

from typing import Any

PERIOD = 0.05  # seconds a message lies there at most


class Lookout:
    """Looks at the shell stream of one kernel; every method is called on the thread that owns the stream."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._timer: Any | None = None

    def start(self) -> None:
        """Look from now on, if this kernel is one that strands messages; twice is once."""
        if self._timer is not None or not sends_past_stream(self._kernel):
            return
        from tornado.ioloop import PeriodicCallback  # a kernel has it loaded; nothing else needs it

        self._timer = PeriodicCallback(self._look, PERIOD * 1000)
        self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _look(self) -> None:
        import zmq

        self._kernel.shell_stream.flush(zmq.POLLIN)


def sends_past_stream(kernel: Any) -> bool:
    """Whether the kernel sends its replies on the shell socket behind the back of the stream that reads it."""
    manager = getattr(getattr(kernel, "shell_channel_thread", None), "_manager", None)
    return getattr(manager, "_shell_socket", None) is not None
