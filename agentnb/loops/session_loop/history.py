"""The conversation that a session goes on from, put in order for a model (SEMANTICS.md, 4. Tool calls).

Whoever gives it may have kept it elsewhere, or only its end, or cut it where a process died: a call in it may be
without a result or have several, a result without its call, and an answer may be there that never came to its end.
Providers refuse the first two, and the last says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentnb.core.messages import Message, is_broken_off
from agentnb.core.state import State

NO_RESULT = "No result provided"

ENDED_FROM_OUTSIDE = frozenset({"cancelled", "error", "limit"})
"""Reasons for which a session ends with an answer that never came."""


def in_order(messages: Sequence[Message]) -> list[Message]:
    """The messages that a model may be shown, with one result behind every call."""
    return list(_answered(showable(messages)))


def showable(messages: Sequence[Message]) -> list[Message]:
    """The messages without the answers that were broken off, and without results of calls that are not there.

    A provider refuses a result whose call it is not shown.
    """
    broken_off = {position for position, message in enumerate(messages) if is_broken_off(message)}
    results = _results(messages)
    told = {at for (made, _), found in results.items() if made not in broken_off for at in found}
    return [
        message
        for position, message in enumerate(messages)
        if (position in told if message.role == "tool" else position not in broken_off)
    ]


def last_words(state: State) -> list[Message]:
    """The end of a session whose run was ended from outside, or whose model failed: what it has not come to, and the
    answer that broke off, or that was never begun, with one result for each of its calls.
    """
    if state.broken_off:
        return [*state.queues["input"], *state.broken_off]
    failure = state.error or state.failure  # of a model inside it, whoever has ended the run then
    answer = Message(
        role="assistant",
        stop_reason="error" if state.stop_reason == "error" or state.failure is not None else "aborted",
        error_message=failure.message if failure is not None else state.cancelled or "",
    )
    return [*state.queues["input"], answer]


def words_of_failures(state: State) -> dict[str, str]:
    """What each call is told that a loop inside performs whose model has failed, by the call."""
    return {
        child.call: f"{child.failure.type}: {child.failure.message}"
        for child in state.children.values()
        if child.failure is not None
    }


def _answered(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, the results in the order of their calls, and an error in the place of each that is missing."""
    results, told = _results(messages), set[int]()
    for position, message in enumerate(messages):
        if position in told:
            continue
        yield message
        for call in message.tool_calls:
            at = results.get((position, call.id), [])
            told.update(at)
            if at:
                yield messages[at.pop(0)]
            else:
                yield Message(role="tool", tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)


def _results(messages: Sequence[Message]) -> dict[tuple[int, str], list[int]]:
    """Where results stand, by where their call was made and its id; ids may come again in later answers."""
    made: dict[str, int] = {}
    results: dict[tuple[int, str], list[int]] = {}
    for position, message in enumerate(messages):
        id = message.tool_call_id
        if message.role == "tool" and id is not None and id in made:
            results.setdefault((made[id], id), []).append(position)
        made.update((call.id, position) for call in message.tool_calls)
    return results
