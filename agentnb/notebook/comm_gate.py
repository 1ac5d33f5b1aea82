"""The comm gate: handles clicks on agentnb's own widgets while a cell runs.

A kernel processes the messages of its shell channel one after the other, so a click on a button waits in the queue
until the cell that waits for the click has ended. Newer kernels have exceptions (subshells, comm messages that are
dispatched while a cell awaits), but which of them applies depends on the kernel's version, on the front end and on the
thread that wrote to the widget last.

The gate replaces the receive callback of the kernel's shell stream, through which all shell messages pass. It inspects
each message, handles those that are addressed to a registered comm, and passes all others to the kernel's own callback,
unchanged and in order. The `Mechanism` determines when this is possible.

The gate also handles a page's request for the state of all widgets. Otherwise a page that is reloaded during a wait
would show no button that can end the wait.

The callback is installed as long as any comm is registered. So waits need not be counted: all waits, nested or on
several threads, share the callback.

Stop: a wait wakes up every `TICK` seconds. A signal does not wake asyncio, so a plain `await` would notice Stop only
when another event wakes the event loop.

The chapter has four parts: the gate, the mechanism, the handling of one message, and the search for messages that a
kernel has not noticed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from enum import StrEnum
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

from agentnb.notebook.kernel import current_kernel

TICK = 0.1  # seconds between two checks for Stop
POLL = 0.02  # seconds that a main thread waits in zmq_poll before it checks if its future is done
STRANDED = 0.05  # seconds between two searches for messages that the kernel has not noticed
CONTROL_TARGET = "jupyter.widget.control"  # the comm over which a page asks for the state of all widgets

logger = logging.getLogger(__name__)


class Mechanism(StrEnum):
    """The mechanism by which agentnb's comm messages are handled while a cell runs.

    It depends on the thread that reads the kernel's shell stream:

    * `THREAD` (ipykernel 7): the kernel has a separate thread for the stream. The gate's thread handles agentnb's
      messages, regardless of what the main thread does, even during `time.sleep`.
    * `MAIN` (ipykernel 6): the main thread's event loop reads the stream. While a cell awaits, the event loop runs and
      handles agentnb's messages immediately. While a cell blocks in the gate's wait, the wait reads the stream. While
      a cell blocks elsewhere, no code can read it: a ZeroMQ socket belongs to its thread.
    * `NATIVE`: an attribute of the kernel is missing. Waits only check for Stop, and the kernel delivers the clicks.
    """

    THREAD = "thread"
    MAIN = "main"
    NATIVE = "native"

    @property
    def description(self) -> str:
        """A sentence for the user that says when clicks are handled."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Mechanism.THREAD: "clicks are handled on agentnb's own thread, whatever cell runs",
    Mechanism.MAIN: "clicks are handled on the main thread: if no cell runs, or while a cell awaits or waits for a run",
    Mechanism.NATIVE: "clicks are handled when the kernel delivers them, usually after the cell",
}

_Handling = Callable[[], None]


# -- the gate ---------------------------------------------------------------------------------------------------------


class CommGate:
    """The gate of one kernel: messages for registered comms are handled while a cell runs.

    `comm_gate()` returns the gate of this process. `kernel` is an ipykernel kernel or None. Every method may be called
    from any thread. Message handlers must not block, and in particular must not wait for another message.
    """

    def __init__(self, kernel: Any | None) -> None:
        self._kernel: Any = kernel
        self._mechanism, self._reason = _detect(kernel)
        self._registered: dict[str, Context] = {}
        self._lock = threading.Lock()
        self._kernel_callback: Callable[[list[Any]], Any] | None = None
        self._inbox: SimpleQueue[_Handling] | None = None  # THREAD: messages for the gate's thread
        self._backlog: deque[_Handling] = deque()  # MAIN: messages that arrived while the stream was flushed
        self._flushing = False
        self._poller: Any | None = None  # the timer that looks for stranded messages

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that is in use; it changes to NATIVE if reading the stream fails."""
        return self._mechanism

    def describe(self) -> str:
        """Return one sentence that says when clicks are handled here, with the reason if the mechanism is NATIVE."""
        reason = f" ({self._reason})" if self._reason else ""
        return self._mechanism.description + reason

    def register(self, comm_id: str) -> None:
        """Handle this comm's messages while cells run. Output of the handlers goes to the cell that registers it."""
        with self._lock:
            self._registered[comm_id] = copy_context()
        self._schedule_update()

    def unregister(self, comm_id: str) -> None:
        """Leave this comm's messages to the kernel again. An unknown id is ignored: a comm may be closed twice."""
        with self._lock:
            self._registered.pop(comm_id, None)
        self._schedule_update()

    def wait(
        self,
        future: concurrent.futures.Future[Any],
        timeout: float | None = None,
        at_tick: Callable[[], object] = lambda: None,
    ) -> None:
        """Block until the future is done, with any outcome. Messages for registered comms are handled meanwhile.

        timeout: in seconds, None for no limit. at_tick: called at each wakeup; its exception ends the wait.

        Raises TimeoutError when the timeout has passed, KeyboardInterrupt on Stop. The future continues in both cases.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not future.done():
                left = TICK if deadline is None else min(TICK, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"not done after {timeout} s")
                if self._reads_stream():
                    self._read_stream(min(POLL, left))
                else:
                    concurrent.futures.wait((future,), left)
                if not future.done():
                    at_tick()
        finally:
            if self._reads_stream():
                # The socket's descriptor is edge-triggered, and zmq_poll consumes the edge. The event loop would not
                # notice a message that came between the last poll and Stop; flushing re-arms the descriptor.
                self._read_stream(0)

    async def wait_async(
        self, future: concurrent.futures.Future[Any], at_tick: Callable[[], object] = lambda: None
    ) -> None:
        """Await until the future is done, with any outcome.

        at_tick: called at each wakeup; its exception ends the wait. Raises CancelledError on Stop and on any other
        cancellation; the future itself is never cancelled.
        """
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile, so the wait has ended
                loop.call_soon_threadsafe(done.set)

        future.add_done_callback(wake)
        while not done.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await done.wait()
            if not done.is_set():
                at_tick()

    # -- the stream's callback ----------------------------------------------------------------------------------------

    def _schedule_update(self) -> None:
        """Install or remove the callback, on the thread that owns the stream."""
        if self._mechanism is Mechanism.NATIVE:
            return
        if self._mechanism is Mechanism.THREAD:
            self._kernel.shell_channel_thread.io_loop.add_callback(self._update_callback)
        elif threading.current_thread() is threading.main_thread():
            self._update_callback()
        else:
            self._kernel.io_loop.add_callback(self._update_callback)

    def _update_callback(self) -> None:
        """Install the gate's callback if any comm is registered. Otherwise restore the callback of the kernel.

        It is not restored if other code has wrapped the gate's callback. That one remains and passes all messages on.
        """
        stream = self._kernel.shell_stream
        with self._lock:
            wanted = bool(self._registered)
        if wanted and self._kernel_callback is None:
            self._kernel_callback = stream._recv_callback
            stream.on_recv(self._receive, copy=False)
            self._start_poller()
        elif not wanted and self._kernel_callback is not None and stream._recv_callback == self._receive:
            stream.on_recv(self._kernel_callback, copy=False)
            self._kernel_callback = None
            if self._poller is not None:
                self._poller.stop()
                self._poller = None

    def _receive(self, frames: list[Any]) -> Any:
        """Handle a message for a registered comm, or queue it if required; pass any other message to the kernel."""
        try:
            handling = self._handling(frames)
        except Exception:
            # Unsigned, malformed or of another protocol: the kernel reports the error.
            logger.debug("A message that agentnb cannot read is passed to the kernel", exc_info=True)
            handling = None
        if handling is None:
            assert self._kernel_callback is not None
            return self._kernel_callback(frames)
        if self._mechanism is Mechanism.THREAD:
            if self._inbox is None:  # only the shell channel's thread calls this
                self._inbox = SimpleQueue()
                threading.Thread(target=_work, args=(self._inbox,), name="agentnb clicks", daemon=True).start()
            self._inbox.put(handling)
        else:
            self._backlog.append(handling)
            if not self._flushing:
                self._handle_backlog()
        return None

    def _handling(self, frames: list[Any]) -> _Handling | None:
        """Return a function that handles this message for a registered comm, or None for any other message."""
        session = self._kernel.session
        _, parts = session.feed_identities(frames, copy=False)
        peeked = session.deserialize(parts, content=False, copy=False)
        kind = peeked["header"]["msg_type"]
        if kind not in ("comm_open", "comm_msg", "comm_close"):
            return None
        content = session.unpack(peeked["content"])
        comm_id = content["comm_id"]

        # Look up the context of the comm. Register a comm that a page opens for control; unregister one that a page
        # closes.
        with self._lock:
            if kind == "comm_open" and content.get("target_name") == CONTROL_TARGET:
                # Any registering cell's context will do: all that ipykernel 7.0 needs in it is a parent message.
                self._registered[comm_id] = next(iter(self._registered.values()), copy_context())
            context = self._registered.get(comm_id)
            if kind == "comm_close":
                self._registered.pop(comm_id, None)
        if context is None:
            return None
        message = session.deserialize(parts, content=True, copy=False)  # a session allows this once for each message
        # In a copy of the context, so that a handler's changes to it do not affect the next handler.
        return partial(context.copy().run, _handle, self._kernel, message)

    # -- reading the stream in a blocked cell -------------------------------------------------------------------------

    def _reads_stream(self) -> bool:
        return self._mechanism is Mechanism.MAIN and threading.current_thread() is threading.main_thread()

    def _read_stream(self, seconds: float) -> None:
        """Wait for messages, at most `seconds`, then receive and handle all that have arrived.

        If reading fails, the mechanism becomes NATIVE.
        """
        import zmq  # a kernel has it loaded; nothing else needs it

        stream = self._kernel.shell_stream
        # Messages for registered comms are handled after the flush: at Stop, each is either handled or in the backlog.
        self._flushing = True
        try:
            self._update_callback()
            stream.socket.poll(round(seconds * 1000), zmq.POLLIN)
            stream.flush(zmq.POLLIN)
        except Exception as error:
            self._mechanism, self._reason = Mechanism.NATIVE, f"reading the shell channel failed: {error!r}"
            logger.warning(
                "From now on, clicks on agentnb's panels are handled after the cell: %s", self._reason, exc_info=True
            )
        finally:
            self._flushing = False
        self._handle_backlog()

    def _handle_backlog(self) -> None:
        while self._backlog:
            self._backlog.popleft()()

    # -- stranded messages ---------------------------------------------------------------------------------------------

    def _start_poller(self) -> None:
        """Check the stream for unnoticed messages every `STRANDED` seconds, if this version of the kernel needs it.

        A ZeroMQ socket signals a new message only once, and the next operation on the socket consumes the signal.
        ipykernel 7.0 to 7.3 send their replies directly on the shell socket, bypassing the stream that reads it. A
        request that arrives at that moment is not noticed until another request follows. It may be a click. (7.4 sends
        through the stream for this reason, see its `SubshellManager._send_on_shell_channel`. The defect does not depend
        on agentnb: without it too, a cell gets lost after some hundred requests.)

        The poller also finds cells that would have been lost. It runs on the thread that owns the stream, which is
        also the thread that calls this method.
        """
        manager = getattr(getattr(self._kernel, "shell_channel_thread", None), "_manager", None)
        if self._poller is not None or getattr(manager, "_shell_socket", None) is None:
            return
        import zmq  # a kernel has both loaded; nothing else needs them
        from tornado.ioloop import PeriodicCallback

        self._poller = PeriodicCallback(partial(self._kernel.shell_stream.flush, zmq.POLLIN), STRANDED * 1000)
        self._poller.start()


def _work(inbox: SimpleQueue[_Handling]) -> None:
    """The gate's thread: handle the messages in the inbox, one after the other."""
    while True:
        inbox.get()()


def comm_gate() -> CommGate:
    """Return the gate of this process's kernel; without a kernel, a gate that only waits."""
    return _gate_of(current_kernel())


@cache
def _gate_of(kernel: Any | None) -> CommGate:
    return CommGate(kernel)


# -- the mechanism ----------------------------------------------------------------------------------------------------


def _detect(kernel: Any | None) -> tuple[Mechanism, str]:
    """Return the best mechanism for which the kernel has the attributes, and the reason if it is NATIVE (else "").

    The attributes are private to ipykernel and pyzmq, so each is looked up; none is inferred from a version.
    """
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


def _require(owner: Any, *names: str) -> None:
    for name in names:
        if not callable(getattr(owner, name, None)):
            raise TypeError(f"{type(owner).__name__} has no {name}")


# -- one message ------------------------------------------------------------------------------------------------------


def _handle(kernel: Any, message: dict[str, Any]) -> None:
    """Handle a comm message as the kernel does. An Exception of its handler is logged; a KeyboardInterrupt is raised.

    A kernel does four things for a comm message, and the first three need care here:

    * It publishes `busy` and `idle`. ipywidgets sends the next change of a trait only after `idle`, so without them
      only the first letter of typed text would arrive.
    * It makes the message the parent of all messages that the handler sends. ipywidgets uses the parent to match the
      echo of a trait. The kernel's own `set_parent` would also redirect the prints and displays of the running cell, so
      only the parent of the comms' messages is set.
    * It triggers IPython's `pre_execute` and `post_execute`. These are left out: while a cell runs, `post_execute`
      makes matplotlib show and close the figures that the cell is still drawing.
    * It calls the comm's handler and logs its exceptions.
    """
    _publish(kernel, "busy", message)
    try:
        with _parent_of_replies(kernel, message):
            _call_handler(kernel, message)
    except Exception:
        logger.exception("The message handler of a widget failed")
    finally:
        _publish(kernel, "idle", message)


def _publish(kernel: Any, state: str, message: dict[str, Any]) -> None:
    kernel.session.send(
        kernel.iopub_socket,
        "status",
        {"execution_state": state},
        parent=message,
        ident=f"kernel.{kernel.ident}.status".encode(),
    )


@contextmanager
def _parent_of_replies(kernel: Any, message: dict[str, Any]) -> Iterator[None]:
    """Make `message` the parent of the messages that comms send in this context."""
    variable = getattr(kernel, "_shell_parent", None)
    parents = getattr(kernel, "_parents", None)
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


def _call_handler(kernel: Any, message: dict[str, Any]) -> None:
    """Call the handler that the kernel calls for this kind of comm message."""
    comms = kernel.comm_manager
    kind = message["header"]["msg_type"]
    if kind != "comm_msg":
        {"comm_open": comms.comm_open, "comm_close": comms.comm_close}[kind](None, None, message)
        return
    comm = comms.get_comm(message["content"]["comm_id"])
    if comm is not None:  # it may have been closed while the message was under way
        # `handle_msg` triggers IPython's two events around this callback (comm 0.2). It is the fallback for comms
        # without the callback.
        (getattr(comm, "_msg_callback", None) or comm.handle_msg)(message)
