"""Models: clients for language models over HTTP, with streaming.

A model is any object with the one method of `Model` (see `protocol`). `OpenAI`, `Anthropic` and `Local` are such
objects. They are imported at first use, so that the import of agentnb loads neither httpx nor stamina.

A request passes through these modules: `conversion` (messages, tools and schemas), a dialect (`openai` with
`responses`, `anthropic`; `schema_tools` for models without tools), `client` (options, retries), `transport` (HTTP; with
`keys`), `sse` (events), the dialect's reader (with `reader`) and `errors`. `adapt` turns other objects into models,
`description` says what is recorded of a request, `recorded` answers from a recording, `cached` keeps answers in a file,
`local` runs a model in this process, and `any_llm` asks other
providers by a library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.core.lazy import lazy_exports
from agentnb.llms.protocol import Chunk, Message, Model, ToolSpecification

if TYPE_CHECKING:
    from agentnb.llms.anthropic import Anthropic
    from agentnb.llms.any_llm import AnyLLM
    from agentnb.llms.cached import Cached
    from agentnb.llms.local import Local
    from agentnb.llms.openai import OpenAI

__all__ = ["Anthropic", "AnyLLM", "Cached", "Chunk", "Local", "Message", "Model", "OpenAI", "ToolSpecification"]

_WHERE = {
    "any_llm": ["AnyLLM"],
    "anthropic": ["Anthropic"],
    "cached": ["Cached"],
    "local": ["Local"],
    "openai": ["OpenAI"],
}

__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
