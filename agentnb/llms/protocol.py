"""What a model is: an object with one method, `stream`.

The method takes the conversation as plain dicts and gives the reply as a stream of chunks, also plain dicts.
Everything that is particular to a provider (names of fields, order of turns, ways to fail) stays behind it.

A message has `role` (system, developer, user, assistant, tool) and `content` (text, or a list of blocks with `type`).
An assistant's may have `tool_calls`, a list of `{id, name, arguments}`, and `reasoning`, a list of `{text}` with what
its provider wants to see again: `signature`, `redacted`, or `provider`, an object; where its parts came in another
order than reasoning, text and calls, `order` has them as they came (see `agentnb.core.messages.Message`). A tool's has
`tool_call_id`, `name` and `is_error`. They are copies, made once for a run: what a model does to one is not recorded,
and stands there at its next request. A list of more than 256 is the same one at each request, with more in it; a model
that keeps it keeps a copy.

A chunk has a `type`:

    text_delta        content
    reasoning_delta   content, and signature, redacted or provider where one came, which ends a block of reasoning
    tool_call_delta   index, arguments (a fragment of JSON text), and id and name once they are known
    tool_call         id, name, arguments (complete, an object)
    text_end          where one text ends and another begins; citations of the first, and server, who can read them
    block             block, an object that only its server can read, and server: kept in its place, and sent back there
    details           details, an object of what else came with the answer: logprobs, annotations
    response          of the answer as a whole: model, response_id, fingerprint, service_tier, upstream, finish_reason,
                      each where it is known
    usage             input_tokens (cached ones included), output_tokens, and where told cache_read_tokens,
                      cache_write_tokens, reasoning_tokens, cost
    retry             attempt (the one that failed, from 1), wait (seconds, at least), error: the next attempt comes
    stop              reason: stop, length, tool_calls, content_filter, refusal, pause, or the provider's own word;
                      and finish_reason, its own word, where the chunk `response` has none and it is not this one;
    always last. After `pause` a run asks again, with the answer so far as the last message, for the rest of it.

A model may say which it is by a method `describe(**options)`, which is given the options of a request and returns
`provider`, `model` and `options`, or by attributes of these names (see `agentnb.llms.description`). A run records it.
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
