"""A generator that has come to what it wants now, kept beside the state it belongs to (`State.memo`).

Feeding a generator from the start costs as much as the run is long; one that is kept goes on from where it was. A state
that none is kept with gets a new one: after a restore, for a moment looked at again, for each of the runs that one loop
has at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.state import State
from agentnb.loops.generator.record import Place
from agentnb.loops.want import Call, Want


class Live:
    """A generator that has come to what it wants now."""

    __slots__ = ("_accept", "_generator", "fact", "is_over", "loop", "output", "place", "want")

    def __init__(
        self, loop: object, generator: Generator[Any, Any, Any], accept: Callable[[Any], Want | list[Call]]
    ) -> None:
        self.loop = loop
        self._generator = generator
        self._accept = accept
        self.place = Place()
        self.is_over, self.output = False, None
        self.fact: Event | None = None
        self._resume(generator.send, None)

    def follow(self, state: State) -> None:
        """Feed the generator with every result there is."""
        while not self.is_over:
            self.fact = self.place.missing(self.want, state)
            came_to = self.place.take(self.want, state) if self.fact is None else None
            if came_to is None:
                return
            result, error = came_to
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
            except UsageError as error:  # raised where it was yielded
                resume, given = self._generator.throw, error
