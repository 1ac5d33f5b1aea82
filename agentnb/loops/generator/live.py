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
from agentnb.loops.generator.cursor import Cursor
from agentnb.loops.want import Call, Want


class Live:
    """A generator suspended at its current command.

    want: the current command. fact: the next event that the command needs, or None while it waits for a result. place:
    the cursor in the recorded state. is_over: True after the generator has returned `output`.
    """

    __slots__ = ("_accept", "_generator", "fact", "is_over", "loop", "output", "place", "want")

    def __init__(
        self, loop: object, generator: Generator[Any, Any, Any], accept: Callable[[Any], Want | list[Call]]
    ) -> None:
        self.loop = loop
        self._generator = generator
        self._accept = accept
        self.place = Cursor()
        self.is_over, self.output = False, None
        self.fact: Event | None = None
        self._resume(generator.send, None)

    def follow(self, state: State) -> None:
        """Send all recorded results to the generator, until a command has no result or the generator returns."""
        while not self.is_over:
            self.fact = self.place.next_event(self.want, state)
            outcome = self.place.take_result(self.want, state) if self.fact is None else None
            if outcome is None:
                return
            result, error = outcome
            if error is None:
                self._resume(self._generator.send, result)
            else:
                self._resume(self._generator.throw, error)

    def _resume(self, resume: Callable[[Any], Any], given: Any) -> None:
        self.place.step += 1
        while True:
            try:
                yielded = resume(given)
            except StopIteration as stop:
                self.is_over, self.output = True, stop.value
                return
            try:
                self.want: Want | list[Call] = self._accept(yielded)
                return
            except UsageError as error:  # raise it at the `yield`
                resume, given = self._generator.throw, error
