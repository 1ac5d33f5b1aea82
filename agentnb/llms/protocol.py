"""What a model is: an object with one method, `stream`.

The method takes the conversation as plain dicts and gives the reply as a stream of chunks, also plain dicts.
Everything that is particular to a provider (names of fields, order of turns, ways to fail) stays behind it.

A message has `role` (system, user, assistant, tool) and `content` (text, or a list of blocks with `type`). An
assistant's may have `tool_calls`, a list of `{id, name, arguments}`, and `reasoning`, a list of `{text}` with what
its provider wants to see again: `signature`, `redacted`, or `provider`, an object. A tool's has `tool_call_id`, `name`
and `is_error`. They are copies, made once for a run: what a model does to one is not recorded, and stands there at its
next request. A list of more than 256 is the same one at each request, with more in it; a model that keeps it keeps a
copy.

A chunk has a `type`:

    text_delta        content
    reasoning_delta   content, and signature, redacted or provider where one came, which ends a block of reasoning
    tool_call_delta   index, arguments (a fragment of JSON text), and id and name once they are known
    tool_call         id, name, arguments (complete, an object)
    usage             input_tokens (cached ones included), output_tokens, and where told cache_read_tokens,
                      cache_write_tokens, reasoning_tokens
    retry             attempt (the one that failed, from 1), wait (seconds, at least), error: the next attempt comes
    stop              reason: stop, length, tool_calls, content_filter, refusal, pause, or the provider's own word;
    always last
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

Chunk: TypeAlias = dict[str, Any]
Message: TypeAlias = Mapping[str, Any]
JsonObject: TypeAlias = dict[str, Any]
ToolSpecification: TypeAlias = Mapping[str, Any]
"""A tool as a model is told of it: `name`, `description`, and `parameters`, a JSON schema."""


class Model(Protocol):
    """Anything that answers a conversation with a stream of chunks."""

    def stream(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpecification] | None = None,
        schema: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Chunk]:
        """Ask for the next message.

        `schema` is a JSON schema that the answer's text must follow; `options` go into the request as they are.
        Raises a `ModelError` that says who is to blame.
        """
        ...
