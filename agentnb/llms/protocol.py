"""Protocol: what a model is. A model is an object with one method, `stream`.

The method takes the conversation as plain dicts, and yields the answer as chunks, which are plain dicts too. Everything
that is specific to a provider (names of fields, the order of turns, kinds of failures) stays inside the method.

A message has `role` (system, developer, user, assistant, tool) and `content` (a string, or a list of blocks with
`type`). An assistant's message may have `tool_calls`, a list of `{id, name, arguments}`, and `reasoning`, a list of
`{text}` with what its provider wants to be sent again: `signature`, `redacted`, or `provider`, an object. If its parts
came in another order than reasoning, text and calls, `order` has them as they came (see
`agentnb.core.messages.Message`). A tool's message has `tool_call_id`, `name` and `is_error`.

The messages are copies, made once for a run. A change that a model makes to one is not recorded, and is still there at
the next request. A list of more than 256 messages is the same object at each request, with messages appended; a model
that keeps it has to copy it.

A chunk has a `type`:

    text_delta        content
    reasoning_delta   content; and signature, redacted or provider if one came, which ends a block of reasoning
    tool_call_delta   index, arguments (a fragment of JSON text); and id and name once they are known; and item, what
                      else the server wants to be sent again with the call, and server, the only one that can read it
    tool_call         id, name, arguments (complete, an object); and item and server, as in tool_call_delta
    text_end          the end of a block of text; and its citations and item, and server, the only one that can read
                      them
    block             block, an object that only its server can read, and server. It is sent back at its position. If
                      it has an index, a later chunk with this index replaces it
    details           details, an object of what else came with the answer: logprobs, annotations
    response          about the whole answer: model, response_id, fingerprint, service_tier, upstream, finish_reason,
                      each if it is known
    usage             input_tokens (with cached ones), output_tokens; and cache_read_tokens, cache_write_tokens,
                      reasoning_tokens, cost if they are known
    retry             attempt (the failed one, from 1; 0 if the first waits for a rate limit), wait (the minimum in
                      seconds), error; the next attempt follows
    stop              reason: stop, length, tool_calls, content_filter, refusal, pause, or the provider's own; and
                      finish_reason, the provider's own, if it differs and the chunk `response` does not have it.
                      Always last. After `pause` a run sends the answer so far as the last message, to get the rest

A model may describe itself, for recordings: by a method `describe(**options)`, which gets the options of a request and
returns `provider`, `model` and `options`, or by attributes of these names (see `agentnb.llms.description`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

Chunk: TypeAlias = dict[str, Any]
Message: TypeAlias = Mapping[str, Any]
JsonObject: TypeAlias = dict[str, Any]
ToolSpecification: TypeAlias = Mapping[str, Any]
"""A tool as a model is sent it: `name`, `description`, and `parameters`, a JSON schema."""

usage_told_to: ContextVar[Callable[[Chunk], object] | None] = ContextVar("usage_told_to", default=None)
"""A function that a client calls with the usage that its server has reported so far, as a chunk. An answer that breaks
off, or is cancelled, has no usage chunk at its end, and is paid all the same.
"""


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
        """Request the next message.

        messages: the conversation.
        tools: the tools that the model may call.
        schema: a JSON schema that the text of the answer must follow.
        options: options that are passed on with the request.

        Raises a ModelError, of the class for the kind of problem.
        """
        ...
