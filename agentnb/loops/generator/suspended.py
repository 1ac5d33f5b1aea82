"""A generator suspended at its current command, kept with the state to which it belongs (`State.memo`).

Replaying all results to a new generator costs time in proportion to the length of the run. A generator that is kept
continues from its current position. A state without one gets a new generator: after a restore, for an earlier state
that is viewed again, and for each of several simultaneous runs of one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.state import State
from agentnb.loops.generator.cursor import GeneratorCursor
from agentnb.loops.want import Call, Want


class SuspendedGenerator:
    """A generator suspended at its current command.

    command: the current command. next_event: the next event that the command needs, or None while it waits for a
    result. cursor: its position in the recorded state. has_ended: True after the generator has returned `output`.
    """

    __slots__ = ("_accept", "_generator", "command", "cursor", "has_ended", "loop", "next_event", "output")

    def __init__(
        self, loop: object, generator: Generator[Any, Any, Any], accept: Callable[[Any], Want | list[Call]]
    ) -> None:
        self.loop = loop
        self._generator = generator
        self._accept = accept
        self.cursor = GeneratorCursor()
        self.has_ended, self.output = False, None
        self.next_event: Event | None = None
        self._resume(generator.send, None)

    def follow(self, state: State) -> None:
        """Send all recorded results to the generator, until a command has no result or the generator returns."""
        while not self.has_ended:
            self.next_event = self.cursor.next_event(self.command, state)
            outcome = self.cursor.take_result(self.command, state) if self.next_event is None else None
            if outcome is None:
                return
            result, error = outcome
            if error is None:
                self._resume(self._generator.send, result)
            else:
                self._resume(self._generator.throw, error)

    def _resume(self, resume: Callable[[Any], Any], given: Any) -> None:
        self.cursor.step += 1
        while True:
            try:
                yielded = resume(given)
            except StopIteration as stop:
                self.has_ended, self.output = True, stop.value
                return
            try:
                self.command: Want | list[Call] = self._accept(yielded)
                return
            except UsageError as error:  # raise it at the `yield`
                resume, given = self._generator.throw, error
