"""What becomes of a batch of calls where the user steers in the middle of it (SEMANTICS.md, 5. Steering).

`after_batch` runs it to its end, `skip_pending` passes over the calls that have not started, `discard` also replaces
the results there are.
"""

from __future__ import annotations

from typing import Literal

from agentnb.core.events import CallEnd
from agentnb.core.state import CallState, State

SteeringMode = Literal["after_batch", "skip_pending", "discard"]

SKIPPED = "Skipped due to queued user message."


def why_pass_over(state: State, mode: SteeringMode) -> str | None:
    """What the calls of the turn are told instead of running, where they are to be passed over."""
    return SKIPPED if mode != "after_batch" and state.queues["steering"] else None


def first_in_turn(state: State) -> CallState | None:
    """The call that a sequential turn begins with, before it begins: steering is looked for behind each call.

    None where a person is asked about it: the call waits, and what the user has said may be why it is not to run.
    """
    if state.reply is None or not state.reply.sequential:
        return None
    made = next((call for call in state.calls.values() if not call.hidden), None)
    return made if made is not None and made.end is None and made.status != "asking" else None


def passed_over(state: State, mode: SteeringMode) -> CallEnd | None:
    """The next call of the turn that gets words instead of running, or instead of its result."""
    why = why_pass_over(state, mode)
    if why is None:
        return None
    for call in state.calls.values():
        replaced = mode == "discard" and call.end is not None and call.end.outcome != "skipped"
        if not call.hidden and (call.end is None or replaced):
            return skip(call, why)
    return None


def skip(call: CallState, why: str) -> CallEnd:
    """The end of a call that is told this instead of running."""
    return CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="skipped")
