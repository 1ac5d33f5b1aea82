"""How comm messages can get past a running cell in this kernel, found by looking at it.

Who reads the kernel's shell stream decides how much can be done:

* `THREAD` (ipykernel 7): a thread of the kernel's own. Our messages are handled on the gate's thread, whatever the
  main thread is doing, be it `time.sleep`.
* `MAIN` (ipykernel 6): the main thread's event loop. While a cell awaits, the loop turns and our messages are handled
  at once. While a cell blocks in the gate's wait, the wait reads the stream itself. While a cell blocks in anything
  else, nobody can: a ZeroMQ socket belongs to its thread.
* `NATIVE`: an attribute is missing. Waits only tick, and clicks arrive as the kernel delivers them.

The attributes are private to ipykernel and pyzmq, hence looked for one by one and never inferred from a version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Mechanism(StrEnum):
    """How our comm messages get past a running cell."""

    THREAD = "thread"
    MAIN = "main"
    NATIVE = "native"

    @property
    def description(self) -> str:
        """One sentence for people: when clicks are handled."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Mechanism.THREAD: "clicks are handled on agentnb's own thread, whatever cell runs",
    Mechanism.MAIN: "clicks are handled on the main thread: while a cell awaits, waits for a run, or no cell runs",
    Mechanism.NATIVE: "clicks are handled when the kernel delivers them, in general after the cell",
}


def probe(kernel: Any | None) -> tuple[Mechanism, str]:
    """Find the best mechanism the kernel has the attributes for, and what was missing for any at all."""
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
        # Any error: what a kernel of another make does when it is asked for ipykernel's attributes is not known.
        return Mechanism.NATIVE, f"this kernel differs from ipykernel: {error}"
    return Mechanism.MAIN, ""


def _require(thing: Any, *names: str) -> None:
    for name in names:
        if not callable(getattr(thing, name, None)):
            raise TypeError(f"{type(thing).__name__} has no {name}")
