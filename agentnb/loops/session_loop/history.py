"""Repair of the conversation from which a session continues (SEMANTICS.md, 4. Tool calls).

A user-supplied conversation may have been stored elsewhere, shortened, or cut off when a process died. It may contain
calls without a result or with several, results without a call, and incomplete answers. Providers refuse such calls and
results; an incomplete answer has no value for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentnb.core.calls import result_message
from agentnb.core.events import CallEnd
from agentnb.core.messages import Message, is_broken_off, to_message
from agentnb.core.resume_point import ABORTED
from agentnb.core.state import State

NO_RESULT = "No result provided"

ENDS_WITH_A_CUT_ANSWER = frozenset({"cancelled", "error", "limit"})
"""Stop reasons for which the conversation ends with an aborted or failed answer (`closing_messages`)."""


def read_messages(messages: Sequence[Any]) -> list[Message]:
    """Return the conversation as messages. A user may have added messages as mappings."""
    return [to_message(message) for message in messages]


def messages_in_order(messages: Sequence[Message]) -> list[Message]:
    """Return the messages that may be sent to a model, with exactly one result after every call."""
    return list(_answered(showable(messages)))


def showable(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without aborted answers, and without results whose call is missing.

    A provider refuses a result without its call.
    """
    broken_off = {position for position, message in enumerate(messages) if is_broken_off(message)}
    results = _results(messages)
    kept = {at for (made, _), found in results.items() if made not in broken_off for at in found}
    return [
        message
        for position, message in enumerate(messages)
        if (position in kept if message.role == "tool" else position not in broken_off)
    ]


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


def _answered(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with results in the order of their calls, and an error for each missing result."""
    results, moved = _results(messages), set[int]()
    for position, message in enumerate(messages):
        if position in moved:
            continue
        yield message
        for call in message.tool_calls:
            at = results.get((position, call.id), [])
            moved.update(at)
            if at:
                yield messages[at.pop(0)]
            else:
                yield Message(role="tool", tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)


def _results(messages: Sequence[Message]) -> dict[tuple[int, str], list[int]]:
    """Return the positions of results, by the position of the answer that made the call and the call id.

    Later answers may use a call id again.
    """
    made: dict[str, int] = {}
    results: dict[tuple[int, str], list[int]] = {}
    for position, message in enumerate(messages):
        id = message.tool_call_id
        if message.role == "tool" and id is not None and id in made:
            results.setdefault((made[id], id), []).append(position)
        made.update((call.id, position) for call in message.tool_calls)
    return results
