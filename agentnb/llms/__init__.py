"""Clients for language models, over HTTP and streaming.

A model is any object with the one method of `Model` (see `protocol`). `OpenAI`, `Anthropic` and `Local` are such
objects. They are looked up on first use, so that importing agentnb costs neither httpx nor stamina.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentnb.llms.protocol import Chunk, Message, Model, ToolSpecification

if TYPE_CHECKING:
    from agentnb.llms.anthropic import Anthropic
    from agentnb.llms.local import Local
    from agentnb.llms.openai import OpenAI

__all__ = ["Anthropic", "Chunk", "Local", "Message", "Model", "OpenAI", "ToolSpecification"]

_HOME = {"Anthropic": "agentnb.llms.anthropic", "Local": "agentnb.llms.local", "OpenAI": "agentnb.llms.openai"}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
