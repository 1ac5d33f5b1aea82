"""Checkpoints: states of a recording at some of its positions, so that the state at any position is computed quickly.

A state changes with every event, so a checkpoint is a copy. The copy and the state share the objects that no longer
change: messages, and calls and nested loops that have ended. The number of checkpoints is limited, and their distance
grows with the recording. So the cost of an event does not grow with the length of the recording.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

from msgspec import structs

from agentnb.core.events import Event
from agentnb.core.evolve import evolve
from agentnb.core.prefix import Prefix
from agentnb.core.state import CallState, NestedMessages, RunsAtPath, State

EVERY = 1_024
"""The first distance between two checkpoints, in events. It is doubled whenever there are more than `MOST`."""
MOST = 16
"""The maximum number of checkpoints at regular distances."""
RECENT = 4
"""The number of states that are kept because they were requested most recently."""


class Checkpoints:
    """The kept states of one recording. Safe from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.every = EVERY
        """The distance between two checkpoints: a state is kept at positions that are multiples of it."""
        self._spaced: dict[int, State] = {}
        self._recent: dict[int, State] = {}

    def keep(self, state: State) -> None:
        """Keep the state if a checkpoint is due at its position. Call it after each event."""
        if state.position % self.every or state.position in self._spaced:
            return
        with self._lock:
            self._spaced[state.position] = copied_state(state, grows=True)
            if len(self._spaced) > MOST:
                self.every *= 2
                self._spaced = {at: kept for at, kept in self._spaced.items() if at % self.every == 0}

    def begin(self, state: State) -> None:
        """Keep the state that a fork begins with."""
        with self._lock:
            self._recent[state.position] = copied_state(state, grows=True)

    def state_at(self, events: Sequence[Event], position: int, *, inherited_by: str | None = None) -> State:
        """Return the state after the first `position` events. The caller may change it.

        events: the recording. inherited_by: the id of a fork; the events are then folded as the fork inherits them.
        """
        with self._lock:
            known = {**self._spaced, **self._recent}
        # Fold the events since the nearest checkpoint.
        if (kept := known.get(position)) is None:
            nearest = max((at for at in known if at < position), default=0)
            kept = copied_state(known[nearest]) if nearest else State()
            for event in events[nearest:position]:
                evolve(kept, event)
                self.keep(kept)
        # Keep the result, and forget the state that was requested least recently.
        with self._lock:
            self._recent.pop(position, None)
            self._recent[position] = kept
            if len(self._recent) > RECENT:
                del self._recent[next(iter(self._recent))]
        return copied_state(kept, inherited_by=inherited_by)


def copied_state(state: State, *, grows: bool = False, inherited_by: str | None = None) -> State:
    """Return a copy of the state of a run, which changes independently of it.

    grows: the run continues with `state`. The copy is then small, because it has views of the lists that grow; it may
    be copied again, but not used otherwise. inherited_by: the id of a fork; the copy is then the state after the events
    as the fork inherits them.
    """
    by_path = {path: _copied_runs(runs, grows=grows) for path, runs in state.by_path.items()}
    at_path = _copied_runs(state.at_path, grows=grows)
    root = _Copy(by_path, grows=grows, inherited_by=inherited_by).of(state, "", at_path)
    root.by_path = by_path
    return root


def _copied_runs(at_path: RunsAtPath, *, grows: bool) -> RunsAtPath:
    # A tuple is a small copy of a set. It only has to be iterated over, for another copy.
    return RunsAtPath(at_path.runs, cast("set[str]", tuple(at_path.ids)) if grows else set(at_path.ids))


class _Copy:
    """A copy of the states of a run's loops. If two states share an object, their copies share its copy."""

    def __init__(self, by_path: dict[str, RunsAtPath], *, grows: bool, inherited_by: str | None) -> None:
        self._by_path = by_path
        self._grows = grows
        self._run_id = inherited_by
        self._calls: dict[int, CallState] = {}

    def of(self, state: State, path: str, at_path: RunsAtPath) -> State:
        """Return the copy of one loop's state, including the states of its nested loops."""
        # Loops that have ended do not change, so a small copy shares them.
        children: dict[str, State] = {}
        for name, child in state.children.items():
            inner = f"{path}/{name}" if path else name
            is_final = child.stop_reason is not None and child.failure is None
            children[name] = child if self._grows and is_final else self.of(child, inner, self._by_path[inner])
        moved = {id(child.messages): children[name] for name, child in state.children.items()}

        # Calls of earlier turns that have ended do not change either, but a fork has other events about them.
        earlier = state.own_calls if self._run_id is not None else ()
        for call in (*state.calls.values(), *state.open.values(), *earlier):
            self._copy_call(call)

        made = replace(
            state,
            messages=cast("list[Any]", Prefix(state.messages)) if self._grows else state.messages[:],
            broken_off=state.broken_off.copy(),
            calls={id: self._call(call) for id, call in state.calls.items()},
            open={id: self._call(call) for id, call in state.open.items()},
            asking={id: self._call(call) for id, call in state.asking.items()},
            own_calls=[self._call(call) for call in state.own_calls],
            queues={queue: messages.copy() for queue, messages in state.queues.items()},
            heard=state.heard.copy(),
            inside=state.inside.copy(),
            entered=state.entered.copy(),
            values=state.values.copy(),
            usage=state.usage.copy(),
            own_usage=state.own_usage.copy(),
            children=children,
            at_path=at_path,
            by_path={},
            memo=None,
        )
        # The messages of a nested loop are shared with its state. Those of a loop that was run again do not change.
        for number, begun in enumerate(state.inside):
            if (now := moved.get(id(begun.messages))) is not None:
                made.inside[number] = NestedMessages(
                    begun.position, now.messages, now.inside, now.broken_off, begun.name
                )
        # A fork has its own id, has used nothing so far, and marks the events that it inherits.
        if self._run_id is not None:
            made.run_id, made.own_usage = self._run_id, {}
            made.reply = self._inherited(state.reply)
            made.rules = [self._inherited(rule) for rule in state.rules]
        return made

    def _call(self, call: CallState) -> CallState:
        """Return the copy of a call, or the call itself if it does not change."""
        return self._calls.get(id(call), call)

    def _copy_call(self, call: CallState) -> None:
        if id(call) in self._calls:
            return
        made = self._calls[id(call)] = copy(call)
        if self._run_id is not None:
            made.approval, made.decision = self._inherited(call.approval), self._inherited(call.decision)
            made.end = self._inherited(call.end)

    def _inherited(self, event: Any) -> Any:
        return structs.replace(event, run_id=self._run_id, inherited=True) if event is not None else None
