"""ConversationEngine's state machine (SEMANTICS.md, 2. States): nine states, and the table of what may follow what.

The table is the design's, with the decided additions: a paused engine may fail or be reset, and every state in which
the engine works may end in an error. A run's own table of phases is made from it. Two arrows are not a run's: pausing,
which is the core's and leaves the phase as it is, so that a run always goes on in the state it was paused in; and going
back to idle, which is how the next run begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from agentnb.core.state import State


class EngineState(StrEnum):
    """Where an engine stands."""

    IDLE = "idle"
    RECEIVING = "receiving"
    CONTEXT_FETCHING = "context_fetching"
    DECOMPOSING = "decomposing"
    SCHEDULING = "scheduling"
    EXECUTING = "executing"
    PAUSED = "paused"
    COMPLETED = "completed"
    ERROR = "error"


VALID_STATE_TRANSITIONS: dict[EngineState, list[EngineState]] = {
    EngineState.IDLE: [EngineState.RECEIVING],
    EngineState.RECEIVING: [EngineState.CONTEXT_FETCHING, EngineState.ERROR],
    EngineState.CONTEXT_FETCHING: [EngineState.DECOMPOSING, EngineState.ERROR],
    EngineState.DECOMPOSING: [EngineState.SCHEDULING, EngineState.ERROR],
    EngineState.SCHEDULING: [EngineState.EXECUTING, EngineState.PAUSED, EngineState.ERROR],
    EngineState.EXECUTING: [EngineState.COMPLETED, EngineState.PAUSED, EngineState.ERROR],
    EngineState.PAUSED: [EngineState.EXECUTING, EngineState.SCHEDULING, EngineState.ERROR, EngineState.IDLE],
    EngineState.COMPLETED: [EngineState.IDLE],
    EngineState.ERROR: [EngineState.IDLE],
}

WORKING = (
    EngineState.RECEIVING,
    EngineState.CONTEXT_FETCHING,
    EngineState.DECOMPOSING,
    EngineState.SCHEDULING,
    EngineState.EXECUTING,
)
"""The states in which an engine works, in the order it goes through them."""

PAUSABLE = (EngineState.SCHEDULING, EngineState.EXECUTING)
"""The states the table lets an engine be paused in."""

PHASES: Mapping[str, Sequence[str]] = {
    state.value: [follows.value for follows in allowed if follows not in (EngineState.PAUSED, EngineState.IDLE)]
    for state, allowed in VALID_STATE_TRANSITIONS.items()
    if state is not EngineState.PAUSED
}


def engine_state(state: State) -> EngineState:
    """The engine's state where its run stands like this."""
    phase = EngineState(state.phase or EngineState.IDLE)
    if state.failure is not None or (state.over and phase is not EngineState.COMPLETED):
        return EngineState.ERROR
    return EngineState.PAUSED if state.paused else phase
