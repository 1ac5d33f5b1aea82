"""Repair of a conversation that a user supplies: the input of a run, or the messages from which a session continues.

It may have been stored elsewhere, shortened, or cut off when a process died or while a run waited. It may contain calls
without a result or with several, results without a call, and incomplete answers. Providers refuse such calls and
results; an incomplete answer has no value for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentnb.core.messages import Message, is_broken_off

NO_RESULT = "No result provided"


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
