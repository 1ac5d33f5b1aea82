"""Delivery: handles one comm message as a kernel does, while a cell is running.

A kernel does four things for a comm message, and the first three need care here:

* It publishes `busy` and `idle`. ipywidgets sends the next change of a trait only after `idle`, so without them only
  the first letter of typed text would arrive.
* It makes the message the parent of all messages that the handler sends. ipywidgets uses the parent to match the echo
  of a trait. The kernel's own `set_parent` would also redirect the prints and displays of the running cell, so only the
  parent of the comms' messages is set.
* It triggers IPython's `pre_execute` and `post_execute`. These are left out: while a cell runs, `post_execute` makes
  matplotlib show and close the figures that the cell is still drawing.
* It calls the comm's handler and logs its exceptions.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)


class Delivery:
    """The delivery of comm messages to the comms of one kernel."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def handle(self, message: dict[str, Any]) -> None:
        """Let the message's handler run. An Exception of the handler is logged; a KeyboardInterrupt is raised."""
        self._publish("busy", message)
        try:
            with self._answering(message):
                self._call(message)
        except Exception:
            logger.exception("a widget's message handler failed")
        finally:
            self._publish("idle", message)

    def _call(self, message: dict[str, Any]) -> None:
        """Call the handler that the kernel calls for this kind of comm message."""
        comms = self._kernel.comm_manager
        kind = message["header"]["msg_type"]
        if kind != "comm_msg":
            {"comm_open": comms.comm_open, "comm_close": comms.comm_close}[kind](None, None, message)
            return
        comm = comms.get_comm(message["content"]["comm_id"])
        if comm is not None:  # it may have been closed while the message was under way
            # `handle_msg` triggers IPython's two events around this callback (comm 0.2). It is the fallback for comms
            # without the callback.
            (getattr(comm, "_msg_callback", None) or comm.handle_msg)(message)

    def _publish(self, state: str, message: dict[str, Any]) -> None:
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "status",
            {"execution_state": state},
            parent=message,
            ident=f"kernel.{self._kernel.ident}.status".encode(),
        )

    @contextmanager
    def _answering(self, message: dict[str, Any]) -> Iterator[None]:
        """Make `message` the parent of the messages that comms send in this context."""
        variable = getattr(self._kernel, "_shell_parent", None)
        parents = getattr(self._kernel, "_parents", None)
        if isinstance(variable, ContextVar):  # ipykernel 7
            token = variable.set(message)
            try:
                yield
            finally:
                variable.reset(token)
        elif isinstance(parents, dict):  # ipykernel 6
            before = parents.get("shell", {})
            parents["shell"] = message
            try:
                yield
            finally:
                parents["shell"] = before
        else:
            yield
