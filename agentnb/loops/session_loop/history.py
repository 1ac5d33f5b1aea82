"""The conversation that a session goes on from, put in order for a model (SEMANTICS 3g.1).

Whoever gives it may have kept it elsewhere, or cut it where a process died: a call in it may be without a result, and
an answer may be there that never came to its end. Providers refuse the first, and the second says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentnb.core.messages import Message
from agentnb.core.state import State

NO_RESULT = "No result provided"


def in_order(messages: Sequence[Message]) -> list[Message]:
    """The messages without the answers that were broken off, and with its result behind every call."""
    return list(_answered([message for message in messages if not is_broken_off(message)]))


def is_broken_off(message: Message) -> bool:
    """Whether it is an answer that failed or was aborted: what the session's stream says of one that never came."""
    return message.role == "assistant" and message.stop_reason in ("error", "aborted")


def words_of_failures(state: State) -> dict[str, str]:
    """What each call is told that a loop inside performs whose model has failed, by the call."""
    return {
        child.call: f"{child.failure.type}: {child.failure.message}"
        for child in state.children.values()
        if child.failure is not None
    }


def _answered(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages, the results in the order of their calls, and an error in the place of each that is missing."""
    told: set[int] = set()
    for position, message in enumerate(messages):
        if position in told:
            continue
        yield message
        for call in message.tool_calls:
            at = _result_of(call.id, messages, position)
            if at is None:
                yield Message(role="tool", tool_call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
            else:
                told.add(at)
                yield messages[at]


def _result_of(call_id: str, messages: Sequence[Message], made: int) -> int | None:
    """Where the result stands of a call that was made at a position; ids may come again in later answers."""
    for position in range(made + 1, len(messages)):
        message = messages[position]
        if message.role == "tool" and message.tool_call_id == call_id:
            return position
        if any(call.id == call_id for call in message.tool_calls):
            return None
    return None
