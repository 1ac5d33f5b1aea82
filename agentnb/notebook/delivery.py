"""Handles one comm message the way a kernel would, beside the cell that is running.

A kernel does four things around a comm message, and the first three need care here:

* It publishes `busy` and `idle` for it. ipywidgets sends the next change of a trait only after `idle`, so without
  them typed text would arrive one letter long.
* It makes the message the parent of whatever the handler sends. ipywidgets matches the echo of a trait by that. The
  kernel's own `set_parent` would also redirect the running cell's prints and displays, so only the comms' share is
  set.
* It triggers IPython's `pre_execute` and `post_execute`. These are left out: in the middle of a cell `post_execute`
  makes matplotlib show and close the figures that the cell is still drawing.
* It calls the comm's handler and logs what that raises.
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
    """Delivers comm messages to the comms of one kernel."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def handle(self, message: dict[str, Any]) -> None:
        """Have the message handled. What its handler raises is logged, except KeyboardInterrupt."""
        self._publish("busy", message)
        try:
            with self._answering(message):
                self._call(message)
        except Exception:
            logger.exception("a widget's message handler failed")
        finally:
            self._publish("idle", message)

    def _call(self, message: dict[str, Any]) -> None:
        comms = self._kernel.comm_manager
        kind = message["header"]["msg_type"]
        if kind != "comm_msg":
            {"comm_open": comms.comm_open, "comm_close": comms.comm_close}[kind](None, None, message)
            return
        comm = comms.get_comm(message["content"]["comm_id"])
        if comm is not None:  # it may have been closed while the message was under way
            # `handle_msg` is this callback between IPython's two events (comm 0.2); without such a callback it is all
            # there is.
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
        """Make `message` the parent of what comms send meanwhile."""
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
