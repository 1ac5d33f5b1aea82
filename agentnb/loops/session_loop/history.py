"""The conversation from which a session continues (SEMANTICS.md, 4. Tool calls)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentnb.core.calls import result_message
from agentnb.core.events import CallEnd
from agentnb.core.messages import Message, to_message
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import State

ENDS_WITH_A_CUT_ANSWER = frozenset({"cancelled", "error", "limit"})
"""Stop reasons for which the conversation ends with an aborted or failed answer (`closing_messages`)."""


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """Return the conversation as messages. A user may have added messages as mappings."""
    return [to_message(message) for message in messages]


def closing_messages(state: State) -> list[Message]:
    """Return the last messages of a session whose run was ended from outside, or whose model failed.

    These are the undelivered input and the aborted answer, with one result for each of its calls. If no answer had
    started, an empty one with the reason is added.
    """
    if state.broken_off:
        return [*state.queues["input"], *state.broken_off]
    failure = state.error or state.failure  # `failure` may be that of a nested loop's model
    answer = Message(
        role="assistant",
        stop_reason="error" if state.stop_reason == "error" or state.failure is not None else "aborted",
        error_message=failure.message if failure is not None else state.cancelled or "",
    )
    return [*state.queues["input"], answer]


def failure_texts(state: State) -> dict[str, str]:
    """Return the error texts of calls whose nested loop has had a model failure, by call id."""
    return {
        child.call: f"{child.failure.type}: {child.failure.message}"
        for child in state.children.values()
        if child.failure is not None
    }


def results_of_open_calls(state: State) -> Iterator[Message]:
    """Yield results for the calls of a run that stopped during its calls because a nested loop failed or paused.

    The run may never be resumed, and the next run must send a valid conversation to the model.
    """
    if not any(not call.hidden for call in state.open.values()):
        return
    errors = failure_texts(state)
    for call in state.calls.values():
        if not call.hidden:
            why = errors.get(call.id, ABORTED)
            end = call.end or CallEnd(call_id=call.id, name=call.name, result=why, is_error=True, outcome="aborted")
            yield result_message(call, end, state.max_result_chars)
