"""The comm gate: delivers clicks to agentnb's own widgets while a cell runs.

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
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import cache, partial
from queue import SimpleQueue
from typing import Any

from agentnb.notebook.delivery import Delivery
from agentnb.notebook.kernel import current_kernel
from agentnb.notebook.mechanism import Mechanism, probe
from agentnb.notebook.stranded import Lookout

TICK = 0.1  # seconds between two checks for Stop
POLL = 0.02  # seconds that a main thread waits in zmq_poll before it checks if its future is done
CONTROL_TARGET = "jupyter.widget.control"  # the comm over which a page asks for the state of all widgets

logger = logging.getLogger(__name__)

_Handling = Callable[[], None]


def _nothing() -> None:
    """Do nothing: the default for `at_tick`."""


class CommGate:
    """The gate of one kernel: messages for registered comms are handled while a cell runs. See `comm_gate`.

    `kernel` is an ipykernel kernel or None. Every method may be called from any thread. Message handlers must not
    block, and in particular must not wait for another message.
    """

    def __init__(self, kernel: Any | None) -> None:
        self._kernel: Any = kernel
        self._mechanism, self._reason = probe(kernel)
        self._registered: dict[str, Context] = {}
        self._lock = threading.Lock()
        self._kernel_callback: Callable[[list[Any]], Any] | None = None
        self._inbox: SimpleQueue[_Handling] | None = None  # THREAD: messages for the gate's thread
        self._backlog: deque[_Handling] = deque()  # MAIN: messages that arrived while the stream was flushed
        self._flushing = False
        self._delivery = Delivery(kernel)
        self._lookout = Lookout(kernel)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that is in use; it changes to NATIVE if reading the stream fails."""
        return self._mechanism

    def describe(self) -> str:
        """Return one sentence that says when clicks are handled here, with the reason if the mechanism is NATIVE."""
        reason = f" ({self._reason})" if self._reason else ""
        return self._mechanism.description + reason

    def register(self, comm_id: str) -> None:
        """Handle this comm's messages while cells run. The output of their handlers goes to the registering cell."""
        with self._lock:
            self._registered[comm_id] = copy_context()
        self._settle_soon()

    def unregister(self, comm_id: str) -> None:
        """Leave this comm's messages to the kernel again. An unknown id is ignored, as for a second close."""
        with self._lock:
            self._registered.pop(comm_id, None)
        self._settle_soon()

    def wait(
        self,
        future: concurrent.futures.Future[Any],
        timeout: float | None = None,
        at_tick: Callable[[], object] = _nothing,
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
        self, future: concurrent.futures.Future[Any], at_tick: Callable[[], object] = _nothing
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

    def _settle_soon(self) -> None:
        """Install or remove the callback, on the thread that owns the stream."""
        if self._mechanism is Mechanism.NATIVE:
            return
        if self._mechanism is Mechanism.THREAD:
            self._kernel.shell_channel_thread.io_loop.add_callback(self._settle)
        elif threading.current_thread() is threading.main_thread():
            self._settle()
        else:
            self._kernel.io_loop.add_callback(self._settle)

    def _settle(self) -> None:
        """Install the callback if any comm is registered; otherwise restore the kernel's, unless ours was wrapped."""
        stream = self._kernel.shell_stream
        with self._lock:
            wanted = bool(self._registered)
        if wanted and self._kernel_callback is None:
            self._kernel_callback = stream._recv_callback
            stream.on_recv(self._receive, copy=False)
            self._lookout.start()
        elif not wanted and self._kernel_callback is not None and stream._recv_callback == self._receive:
            # If other code has wrapped this callback, it remains installed and passes all messages on.
            stream.on_recv(self._kernel_callback, copy=False)
            self._kernel_callback = None
            self._lookout.stop()

    def _receive(self, frames: list[Any]) -> Any:
        """Handle a message for a registered comm, or queue it if required; pass any other message to the kernel."""
        try:
            handling = self._handling(frames)
        except Exception:
            # Unsigned, malformed or of another protocol: the kernel reports the error.
            logger.debug("left to the kernel: a message that cannot be read", exc_info=True)
            handling = None
        if handling is None:
            assert self._kernel_callback is not None
            return self._kernel_callback(frames)
        if self._mechanism is Mechanism.THREAD:
            self._thread_inbox().put(handling)
        else:
            self._backlog.append(handling)
            if not self._flushing:
                self._work_off_backlog()
        return None

    def _handling(self, frames: list[Any]) -> _Handling | None:
        """Return the handling of a message for a registered comm, or None for any other message."""
        session = self._kernel.session
        _, parts = session.feed_identities(frames, copy=False)
        peeked = session.deserialize(parts, content=False, copy=False)
        kind = peeked["header"]["msg_type"]
        if kind not in ("comm_open", "comm_msg", "comm_close"):
            return None
        context = self._context(kind, session.unpack(peeked["content"]))
        if context is None:
            return None
        message = session.deserialize(parts, content=True, copy=False)  # a session allows this once for each message
        # In a copy of the context, so that a handler's changes to it do not affect the next handler.
        return partial(context.copy().run, self._delivery.handle, message)

    def _context(self, kind: str, content: dict[str, Any]) -> Context | None:
        """Return the context of a registered comm, or None.

        Registers the control comms that pages open, and unregisters comms that pages close.
        """
        with self._lock:
            if kind == "comm_open" and content.get("target_name") == CONTROL_TARGET:
                # Any registering cell's context will do: all that ipykernel 7.0 needs in it is a parent message.
                self._registered[content["comm_id"]] = next(iter(self._registered.values()), copy_context())
            if kind == "comm_close":
                return self._registered.pop(content["comm_id"], None)
            return self._registered.get(content["comm_id"])

    def _thread_inbox(self) -> SimpleQueue[_Handling]:
        if self._inbox is None:  # only the shell channel's thread calls this
            self._inbox = SimpleQueue()
            threading.Thread(target=_work, args=(self._inbox,), name="agentnb clicks", daemon=True).start()
        return self._inbox

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
            self._settle()
            stream.socket.poll(round(seconds * 1000), zmq.POLLIN)
            stream.flush(zmq.POLLIN)
        except Exception as error:
            self._mechanism, self._reason = Mechanism.NATIVE, f"reading the shell channel failed: {error!r}"
            logger.warning("agentnb cannot take clicks while a cell blocks: %s", self._reason, exc_info=True)
        finally:
            self._flushing = False
        self._work_off_backlog()

    def _work_off_backlog(self) -> None:
        while self._backlog:
            self._backlog.popleft()()


def _work(inbox: SimpleQueue[_Handling]) -> None:
    while True:
        inbox.get()()


def comm_gate() -> CommGate:
    """Return the gate of this process's kernel; without a kernel, a gate that only waits."""
    return _gate_of(current_kernel())


@cache
def _gate_of(kernel: Any | None) -> CommGate:
    return CommGate(kernel)
