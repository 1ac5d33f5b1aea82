"""Projection: the base class of the translations from a run's events to the events of a design."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from agentnb.core.errors import RunFailed
from agentnb.core.events import Delta, ErrorInfo, Event
from agentnb.core.evolve import evolve
from agentnb.core.state import State

DesignEvent = TypeVar("DesignEvent")

Handlers = Mapping[type[Event | Delta], Callable[[Any, Any], Iterable[Any]]]
"""A table that maps a type of event to the method that translates it. Deltas are one of the types."""


class Projection(Generic[DesignEvent]):
    """The translation of one run's events, from the first one, into the events of a design.

    It reads only the events, so the translations of a live run and of its recording are equal. A subclass declares
    `handlers`, which are called after the event is folded. A handler that yields the design's last event sets `ended`.
    """

    handlers: ClassVar[Handlers] = {}
    """The methods that translate the events of the run's outermost loop. Events of other types have no translation."""

    needs_state: ClassVar[bool] = True
    """False if the handlers do not use `state`. The events are then not folded."""

    def __init__(self) -> None:
        self.state = State()
        """The fold of the translated events."""
        self.ended = False
        """True from the design's last event on, or after the stream was closed."""

    def translate(self, item: Event | Delta) -> Iterable[DesignEvent]:
        """Fold an event of the run, and return the design's events for it; none after the design's last event.

        Events and deltas of nested loops have no translation: a nested loop appears as one call.
        """
        if self.ended:
            return ()
        if self.needs_state and not isinstance(item, Delta):
            evolve(self.state, item)
        return self.handle(item) if not item.path else ()

    def handle(self, item: Event | Delta) -> Iterable[DesignEvent]:
        """Return the design's events from the handler of this item's type."""
        handler = self.handlers.get(type(item))
        return handler(self, item) if handler is not None else ()

    def reports(self, error: RunFailed, failure: ErrorInfo | None) -> bool:
        """Return True if the design's events report this error of the run. Otherwise the stream raises it.

        failure: the model failure that caused the error; None if the loop itself has failed. By default the events
        report model failures only.
        """
        return failure is not None

    def fail(self, failure: ErrorInfo) -> Iterable[DesignEvent]:
        """Return the last events of the stream after a model failure, of this loop or a nested one.

        Called when the events of the run have ended. A failure after which the run was resumed does not end the stream.
        """
        return ()
