"""A generator that has come to what it wants now, kept beside the state it belongs to.

It is a memo and nothing more. Feeding a generator from the start costs as much as the run is long; one that is kept
goes on from where it was. A state that none is kept for gets a new one: after a restore, for a moment looked at again,
for each of the runs that one loop has at the same time. It goes with its state, or at the run's end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event
from agentnb.core.state import State
from agentnb.loops.generator_record import Place
from agentnb.loops.want import Call, Want


class Live:
    """A generator that has come to what it wants now."""

    __slots__ = ("_accept", "_generator", "fact", "is_over", "output", "place", "want")

    def __init__(self, generator: Generator[Any, Any, Any], accept: Callable[[Any], Want | list[Call]]) -> None:
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


class Memo:
    """The generators that are kept, each as long as its state lives."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[State], Live]] = {}  # a state is no key: it is equal by content

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, state: State) -> Live | None:
        """The generator that is kept for this state."""
        ref, live = self._kept.get(id(state), (None, None))
        return live if ref is not None and ref() is state else None

    def keep(self, live: Live, state: State) -> None:
        """Keep it for this state."""
        key, kept = id(state), self._kept

        def drop(ref: weakref.ref[State]) -> None:
            if kept.get(key, (None, None))[0] is ref:
                kept.pop(key, None)

        kept[key] = weakref.ref(state, drop), live

    def drop(self, state: State) -> None:
        """Keep none for it any more."""
        self._kept.pop(id(state), None)
