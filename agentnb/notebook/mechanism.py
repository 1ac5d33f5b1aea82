"""The mechanism by which comm messages are handled while a cell runs, detected by inspection of the kernel.

It depends on the thread that reads the kernel's shell stream:

* `THREAD` (ipykernel 7): the kernel has a separate thread for the stream. The gate's thread handles agentnb's messages,
  regardless of what the main thread does, even during `time.sleep`.
* `MAIN` (ipykernel 6): the main thread's event loop reads the stream. While a cell awaits, the event loop runs and
  handles agentnb's messages immediately. While a cell blocks in the gate's wait, the wait reads the stream. While a
  cell blocks elsewhere, no code can read it: a ZeroMQ socket belongs to its thread.
* `NATIVE`: an attribute is missing. Waits only check for Stop, and the kernel delivers the clicks.

The attributes are private to ipykernel and pyzmq, so each is looked up; none is inferred from a version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Mechanism(StrEnum):
    """The mechanism by which agentnb's comm messages are handled while a cell runs."""

    THREAD = "thread"
    MAIN = "main"
    NATIVE = "native"

    @property
    def description(self) -> str:
        """A sentence for the user that says when clicks are handled."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Mechanism.THREAD: "clicks are handled on agentnb's own thread, whatever cell runs",
    Mechanism.MAIN: "clicks are handled on the main thread: while a cell awaits, waits for a run, or no cell runs",
    Mechanism.NATIVE: "clicks are handled when the kernel delivers them, in general after the cell",
}


def probe(kernel: Any | None) -> tuple[Mechanism, str]:
    """Return the best mechanism for which the kernel has the attributes, and the reason if it is NATIVE (else "")."""
    if kernel is None:
        return Mechanism.NATIVE, "no kernel"
    try:
        stream = kernel.shell_stream
        _require(kernel.comm_manager, "get_comm", "comm_open", "comm_close")
        _require(kernel.session, "feed_identities", "deserialize", "unpack", "send")
        _require(stream, "on_recv", "flush", "_recv_callback")
        if getattr(kernel, "shell_channel_thread", None) is not None:
            _require(kernel.shell_channel_thread.io_loop, "add_callback")
            return Mechanism.THREAD, ""
        _require(kernel.io_loop, "add_callback")
        _require(stream.socket, "poll")
    except Exception as error:
        # Any error: another kind of kernel may raise anything when ipykernel's attributes are accessed.
        return Mechanism.NATIVE, f"this kernel differs from ipykernel: {error}"
    return Mechanism.MAIN, ""


def _require(thing: Any, *names: str) -> None:
    for name in names:
        if not callable(getattr(thing, name, None)):
            raise TypeError(f"{type(thing).__name__} has no {name}")
