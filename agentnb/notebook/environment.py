"""The kernel environment: lets a cell wait for a run, in a kernel or in IPython.

A run uses agentnb's own thread and event loop (ARCHITECTURE.md, 4. Promises); a cell that needs its result waits for a
`concurrent.futures.Future`. During the wait, a kernel must handle clicks, notice Stop, and, if no page has buttons, ask
the person in another way. The gate does the first two, the keyboard does the third. The run layer uses only the class
of this module.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentnb.notebook.attended import Attended
from agentnb.notebook.comm_gate import CommGate, Mechanism, comm_gate
from agentnb.notebook.kernel import in_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from agentnb.notebook.keyboard import Keyboard
    from agentnb.run.approvals.decisions import Decisions
    from agentnb.widgets.comms import Audience

__all__ = ["KernelEnvironment", "in_kernel"]


class KernelEnvironment:
    """The environment of runs inside a Jupyter kernel, or in IPython in a terminal.

    `hosted` is True: runs use agentnb's own thread, because the cell uses the main thread.
    """

    hosted = True

    def __init__(self, gate: CommGate | None = None, attended: Attended | None = None) -> None:
        self._gate = gate or comm_gate()
        self._attended = attended

    def wait(self, future: Future[Any], timeout: float | None = None, asks: Decisions | None = None) -> None:
        """Block the cell until the future is done. Meanwhile, ask the person the questions of a run.

        timeout: in seconds, None for no limit. asks: the decisions of that run, None to ask nothing.

        Raises TimeoutError when the timeout has passed, KeyboardInterrupt on Stop, and UsageError if there is a
        question and no way to ask it.
        """
        with self._asking(asks) as at_tick:
            self._gate.wait(future, timeout, at_tick)

    async def wait_async(self, future: Future[Any], asks: Decisions | None = None) -> None:
        """Await until the future is done. Meanwhile, ask the person the questions of a run.

        asks: as for `wait`. Stop cancels the await (CancelledError), never the future. Raises UsageError as `wait`.
        """
        with self._asking(asks) as at_tick:
            try:
                await self._gate.wait_async(future, at_tick)
            except KeyboardInterrupt:  # Stop during a question; the awaiting code sees it as any other Stop
                raise asyncio.CancelledError("interrupted") from None

    def stopped(self, stop: BaseException, note: str) -> None:
        """Let IPython show the interrupt in the short form, with `note` added."""
        from agentnb.notebook.tracebacks import shorten

        stop.add_note(note)
        shorten(stop)

    def absence(self) -> str | None:
        """Return the reason why no person can be asked here, or None if a person may be present."""
        return self._attended.absence() if self._attended is not None else None

    @contextmanager
    def _asking(self, asks: Decisions | None) -> Iterator[Callable[[], object]]:
        """Ask the person the questions of a run while the context is active. Yield what the wait calls at each tick."""
        if asks is None:
            yield self._keyboard.look
            return
        from agentnb.notebook.waiting_line import WaitingLine  # not earlier: it imports the widgets, which takes long

        line = WaitingLine(asks, self._seen)

        def at_tick() -> None:
            self._keyboard.look()
            line.look()

        with self._keyboard.listening(asks):
            try:
                yield at_tick
            finally:
                line.remove()

    @cached_property
    def _keyboard(self) -> Keyboard:
        from agentnb.notebook.keyboard import Keyboard  # not earlier: it imports the widgets, which takes long

        return Keyboard(self._seen, self.absence)

    def _seen(self, run_id: str) -> Audience:
        from agentnb.widgets.comms import Audience, audience

        if not in_kernel():  # a terminal has no page
            return Audience.NONE
        seen = audience(run_id)
        # Without the gate, a page may be open although its clicks are not handled during a cell.
        gated = self._gate.mechanism is not Mechanism.NATIVE
        return seen if gated or seen is Audience.NONE else Audience.SILENT
