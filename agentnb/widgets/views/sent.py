"""What a loop's next request would be sent.

It is not always the history: a loop has a system prompt, may put the messages together itself, or send something in
place of one of them. All of that is asked of the design here, as a run does it right before a request, but with a copy
of the state: what a design works out from the run's own state it may keep there, and the run may be doing that at the
same moment in another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from agentnb.core.events import Event
from agentnb.core.evolve import evolve, nested
from agentnb.core.state import State
from agentnb.run.recording import Recording

logger = logging.getLogger("agentnb")


def state_at(run: Recording, path: str) -> State:
    """Where the loop at `path` stands."""
    with run.lock:
        try:
            return _copied(nested(run.state, path))
        except KeyError:
            return State()


def ended(events: Sequence[Event], path: str, begun: int) -> State:
    """Where a loop has ended that another has taken the place of: its own events, folded once more."""
    state = State()
    for event in islice(events, begun, None):
        if event.path == path:
            if event.type == "run_start" and event.seq != begun:
                break
            evolve(state, event, nested=True)
    return state


def _copied(state: State) -> State:
    """A copy that the run does not change, without what the design keeps in it."""
    grows = ("messages", "broken_off", "calls", "open", "own_calls", "entered", "values", "children", "heard", "queues")
    return replace(state, memo=None, **{name: getattr(state, name).copy() for name in grows})


def as_sent(design: Any, state: State) -> Sequence[Mapping[str, Any]]:
    """What the next request would be sent."""
    prompt = getattr(design, "system_prompt", None)
    prefix: list[Mapping[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    own: Sequence[Mapping[str, Any]] | None = None
    instead: Mapping[int, Mapping[str, Any]] = {}
    if getattr(design, "messages_for", None) is not None:
        try:
            own = design.messages_for(state)
            instead = design.amended(state) if own is None else {}
        except Exception:
            # The user's code, which was written to be asked by the driver: the history is shown as it is.
            logger.exception("%s could not say what its model is sent", design.kind())
    if own is not None:
        return [*prefix, *own]
    history: Sequence[Mapping[str, Any]] = cast("Sequence[Mapping[str, Any]]", state.messages)  # each reads as one
    if not instead:
        return [*prefix, *history]
    return [*prefix, *(instead.get(position, message) for position, message in enumerate(history))]
