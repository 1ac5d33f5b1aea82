"""Stranded messages: messages on the shell channel that a kernel has not noticed.

A ZeroMQ socket signals a new message only once, and the next operation on the socket consumes the signal. ipykernel 7.0
to 7.3 send their replies directly on the shell socket, bypassing the stream that reads it. A request that arrives at
that moment is not noticed until another request follows. It may be a click. (7.4 sends through the stream for this
reason, see its `SubshellManager._send_on_shell_channel`. The defect does not depend on agentnb: without it too, a cell
gets lost after some hundred requests.)

The workaround is to poll. As long as a comm of agentnb is open, the stream is checked for messages every `PERIOD`
seconds, on the thread that owns it. This also finds cells that would have been lost.
"""

from __future__ import annotations

from typing import Any

PERIOD = 0.05  # seconds after which a stranded message is found, at most


class Lookout:
    """A poller of one kernel's shell stream. Every method must be called on the thread that owns the stream."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._timer: Any | None = None

    def start(self) -> None:
        """Start polling, if this kernel strands messages. Further calls have no effect."""
        if self._timer is not None or not sends_past_stream(self._kernel):
            return
        from tornado.ioloop import PeriodicCallback  # a kernel has it loaded; nothing else needs it

        self._timer = PeriodicCallback(self._look, PERIOD * 1000)
        self._timer.start()

    def stop(self) -> None:
        """Stop polling."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _look(self) -> None:
        import zmq

        self._kernel.shell_stream.flush(zmq.POLLIN)


def sends_past_stream(kernel: Any) -> bool:
    """Return True if the kernel sends its replies on the shell socket, bypassing the stream that reads it."""
    manager = getattr(getattr(kernel, "shell_channel_thread", None), "_manager", None)
    return getattr(manager, "_shell_socket", None) is not None
