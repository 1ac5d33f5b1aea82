"""Clients for language models, over HTTP and streaming.

A model is any object with the one method of `Model` (see `protocol`). `OpenAI`, `Anthropic` and `Local` are such
objects. They are looked up on first use, so that importing agentnb costs neither httpx nor stamina.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.core.lazy import when_asked_for
from agentnb.llms.protocol import Chunk, Message, Model, ToolSpecification

if TYPE_CHECKING:
    from agentnb.llms.anthropic import Anthropic
    from agentnb.llms.local import Local
    from agentnb.llms.openai import OpenAI

__all__ = ["Anthropic", "Chunk", "Local", "Message", "Model", "OpenAI", "ToolSpecification"]

_WHERE = {"anthropic": ["Anthropic"], "local": ["Local"], "openai": ["OpenAI"]}

__getattr__, __dir__ = when_asked_for(__name__, _WHERE)
