"""The effect of steering on a batch of calls that has not finished (SEMANTICS.md, 5. Steering).

`after_batch` completes the batch, `skip_pending` skips the calls that have not started, `discard` also replaces
existing results.
"""

from __future__ import annotations

from typing import Literal

from agentnb.core.events import CallEnd
from agentnb.core.state import CallState, State

SteeringMode = Literal["after_batch", "skip_pending", "discard"]

SKIPPED = "Skipped due to queued user message."


def skip_reason(state: State, mode: SteeringMode) -> str | None:
    """Return the result text for the skipped calls of the turn, or None if no calls are skipped."""
    return SKIPPED if mode != "after_batch" and state.queues["steering"] else None


def first_in_turn(state: State) -> CallState | None:
    """Return the first call of a sequential turn if it has not ended, else None.

    It runs in spite of steering, which is checked only after each call. None also while the call waits for approval:
    the steering may be a reason not to run it.
    """
    if state.reply is None or not state.reply.sequential:
        return None
    first = next((call for call in state.calls.values() if not call.hidden), None)
    return first if first is not None and first.end is None and first.status != "asking" else None


def next_skipped(state: State, mode: SteeringMode) -> CallEnd | None:
    """Return the end of the next call that is skipped, or whose result is replaced; None if there is no more."""
    reason = skip_reason(state, mode)
    if reason is None:
        return None
    for call in state.calls.values():
        replaced = mode == "discard" and call.end is not None and call.end.outcome != "skipped"
        if not call.hidden and (call.end is None or replaced):
            return skipped(call, reason)
    return None


def skipped(call: CallState, reason: str) -> CallEnd:
    """Return the end of a call that is skipped for this reason."""
    return CallEnd(call_id=call.id, name=call.name, result=reason, is_error=True, outcome="skipped")
