"""The conversation that a session goes on from, put in order for a model (SEMANTICS 3g.1).

Whoever gives it may have kept it elsewhere, or cut it where a process died: a call in it may be without a result, and
an answer may be there that never came to its end. Providers refuse the first, and the second says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentnb.core.messages import Message

NO_RESULT = "No result provided"


def in_order(messages: Sequence[Message]) -> list[Message]:
    """The messages without the answers that were broken off, and with a result for every call."""
    kept = [message for message in messages if not is_broken_off(message)]
    have = {message.tool_call_id for message in kept if message.role == "tool"}
    if all(call.id in have for message in kept for call in message.tool_calls):
        return kept
    return list(_answered(kept, have))


def is_broken_off(message: Message) -> bool:
    """Whether it is an answer that failed or was aborted: what the session's stream says of one that never came."""
    return message.role == "assistant" and message.stop_reason in ("error", "aborted")


def _answered(messages: Sequence[Message], have: set[str | None]) -> Iterator[Message]:
    """The messages, with an error in the place of each result that is missing: where its call's turn comes."""
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        yield message
        if not message.tool_calls:
            continue
        end = position
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        results = {result.tool_call_id: result for result in messages[position:end]}
        for call in message.tool_calls:
            if call.id in results:
                yield results.pop(call.id)
            elif call.id not in have:
                yield Message(role="tool", tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
        yield from results.values()
        position = end
