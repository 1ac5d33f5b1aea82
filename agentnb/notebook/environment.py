"""How a cell waits for a run: what the run layer is given in a kernel or a shell instead of a plain wait.

A run lives on agentnb's own thread and loop (ARCHITECTURE.md, 4. Promises); a cell that wants its result waits for a
`concurrent.futures.Future`. Waiting is where a kernel differs from any other process: clicks must get in meanwhile,
Stop must be noticed, and where nothing can be clicked the person has to be asked in another way. The first two are the
gate's work, the last is the keyboard's; this class is the whole of what the run layer sees of them.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentnb.notebook.gate import CommGate, comm_gate
from agentnb.notebook.kernel import in_kernel
from agentnb.notebook.mechanism import Mechanism
from agentnb.notebook.presence import Presence

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from agentnb.notebook.keyboard import Keyboard
    from agentnb.run.approvals.decisions import Decisions
    from agentnb.widgets.comms import Audience

__all__ = ["KernelEnvironment", "in_kernel"]


class KernelEnvironment:
    """Waiting inside a Jupyter kernel, or in IPython in a terminal.

    `hosted` is True: runs belong on agentnb's own thread, because the main thread is the cell's.
    """

    hosted = True

    def __init__(self, gate: CommGate | None = None, presence: Presence | None = None) -> None:
        self._gate = gate or comm_gate()
        self._presence = presence

    def wait(self, future: Future[Any], timeout: float | None = None, asks: Decisions | None = None) -> None:
        """Block the cell until the future is done; the questions of the run `asks` reach the person meanwhile.

        `timeout` in seconds, None for ever; TimeoutError when it is over, KeyboardInterrupt on Stop, UsageError where
        there is a question and no way to ask it.
        """
        with self._asking(asks):
            self._gate.wait(future, timeout, self._keyboard.look)

    async def wait_async(self, future: Future[Any], asks: Decisions | None = None) -> None:
        """Let the cell await until the future is done; the questions of the run `asks` reach the person meanwhile.

        Stop cancels the await (CancelledError), never the future. UsageError as for `wait`.
        """
        with self._asking(asks):
            try:
                await self._gate.wait_async(future, self._keyboard.look)
            except KeyboardInterrupt:  # at the keyboard; Stop is the same to whoever awaits, wherever it comes
                raise asyncio.CancelledError("interrupted") from None

    def stopped(self, stop: BaseException, words: str) -> None:
        """Show Stop in the cell in one screen, with these words."""
        from agentnb.notebook.mistakes import show_in_one_screen

        stop.add_note(words)
        show_in_one_screen(stop)

    def absence(self) -> str | None:
        """Why nobody can be asked here, in words; None where somebody may be there."""
        return self._presence.absence() if self._presence is not None else None

    def _asking(self, asks: Decisions | None) -> AbstractContextManager[None]:
        return nullcontext() if asks is None else self._keyboard.listening(asks)

    @cached_property
    def _keyboard(self) -> Keyboard:
        from agentnb.notebook.keyboard import Keyboard  # with the widgets, which take long to import

        return Keyboard(self._seen, self.absence)

    def _seen(self, run_id: str) -> Audience:
        from agentnb.widgets.comms import Audience, audience

        if not in_kernel():  # a terminal has no page
            return Audience.NONE
        seen = audience(run_id)
        # Without the gate a page may be there, and still no click of it get in.
        gated = self._gate.mechanism is not Mechanism.NATIVE
        return seen if gated or seen is Audience.NONE else Audience.SILENT
