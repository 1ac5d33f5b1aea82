"""Prices: what an answer costs, estimated from the public prices of its model (the package genai-prices).

Most servers report tokens and no cost. The prices are part of the package: nothing is fetched. Tokens that were read
from a cache, or written to one, have prices of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from agentnb.llms.conversion import all_text_of, attachment, picture
from agentnb.llms.reader import strict_json

INSTALL = "pip install 'agentnb-toolkit[prices]'"
_COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
CHARACTERS_PER_TOKEN = 4
"""The approximate number of characters in a token, for a server that reports no tokens.

A tokenizer would not be at hand where it is needed: tiktoken downloads its data, and has that of OpenAI's models only,
whose servers report tokens, as the server of `Local` does. Servers that report none have models of other makers.
"""
TOKENS_PER_ATTACHMENT = 1000
"""The number of tokens that a picture, a document or a sound is taken for, for a server that reports no tokens."""


@functools.cache
def has_prices() -> bool:
    """Return True if genai-prices is installed."""
    return find_spec("genai_prices") is not None


def estimated_cost(
    usage: Mapping[str, float], *, provider: str, model: str, server: str = "", at: datetime | None = None
) -> float | None:
    """Return the estimated cost of an answer in US dollars; None if it is not known.

    usage: the counts of tokens. provider, model: as recorded of the request. server: the host that was asked, "" if it
    is not known. at: the time of the request; prices change.
    """
    if provider == "local":  # in this process
        return 0.0
    counts = {name: int(usage[name]) for name in _COUNTS if usage.get(name)}
    if not (has_prices() and model):
        return None
    if not counts:
        return 0.0 if "input_tokens" in usage else None
    prices: Any = import_module("genai_prices")
    where = {"provider_api_url": f"https://{server}/"} if server else {"provider_id": provider}
    try:
        price = prices.calc_price(prices.Usage(**counts), model, genai_request_timestamp=at, **where)
    except (LookupError, ValueError):
        return None
    return float(price.total_price)


def estimated_tokens(message: Mapping[str, Any]) -> float:
    """Return the estimated number of tokens of a message that a model is sent."""
    content = message.get("content")
    attached = 0
    if isinstance(content, list | tuple):
        texts = [block for block in content if picture(block) is None and attachment(block) is None]
        attached, content = len(content) - len(texts), texts
    characters = len(all_text_of(content))
    if message.get("tool_calls"):
        characters += len(strict_json(message["tool_calls"]))
    return characters / CHARACTERS_PER_TOKEN + attached * TOKENS_PER_ATTACHMENT


def saved_by_cache(
    usage: Mapping[str, float], *, provider: str, model: str, server: str = "", at: datetime | None = None
) -> float | None:
    """Return the estimated cost in US dollars that a server's cache has saved, less what writing to it has cost.

    Arguments: as for `estimated_cost`. None if it is not known, or if the cache was not used.
    """
    if not (usage.get("cache_read_tokens") or usage.get("cache_write_tokens")):
        return None
    without = {name: amount for name, amount in usage.items() if not name.startswith("cache_")}
    costs = [
        estimated_cost(counts, provider=provider, model=model, server=server, at=at) for counts in (without, usage)
    ]
    return costs[0] - costs[1] if costs[0] is not None and costs[1] is not None else None
