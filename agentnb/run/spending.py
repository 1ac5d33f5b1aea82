"""Spending: the tokens and the cost of an answer that its server has not reported, for the limits of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agentnb.core.events import Event, ModelEnd, ModelStart
from agentnb.llms.prices import CHARACTERS_PER_TOKEN, estimated_cost

UNPRICED = "answers_without_price"
"""The name in the usage of the number of answers whose cost is neither reported nor can be estimated."""


def with_tokens(usage: Mapping[str, float], *, sent: float, answer: str) -> dict[str, float]:
    """Return the usage of an answer with estimated tokens, if its server has reported none.

    sent: the estimated tokens of the request. answer: the answer as text.
    """
    if usage.keys() & {"input_tokens", "output_tokens"}:
        return dict(usage)
    answered = math.ceil(len(answer) / CHARACTERS_PER_TOKEN)
    return {**usage, "input_tokens": math.ceil(sent), "output_tokens": answered, "estimated_answers": 1}


def with_cost(usage: Mapping[str, float], *, provider: str, model: str, server: str) -> dict[str, float]:
    """Return the usage of an answer with its estimated cost, or with `UNPRICED`, if its server has reported no cost.

    Other arguments: as for `estimated_cost`.
    """
    if not usage or usage.keys() & {"cost", "cost_estimate", UNPRICED}:
        return dict(usage)
    cost = estimated_cost(usage, provider=provider, model=model, server=server)
    return {**usage, UNPRICED: 1} if cost is None else {**usage, "cost_estimate": cost}


def spent_before(events: Iterable[Event]) -> dict[str, float]:
    """Return the cost of the answers in a recording that have none, because the run had no limit of cost then."""
    asked: dict[str, ModelStart] = {}
    spent: dict[str, float] = {}
    for event in events:
        if isinstance(event, ModelStart):
            asked[event.path] = event
        elif isinstance(event, ModelEnd) and (request := asked.get(event.path)) is not None:
            server = str(request.options.get("server") or "")
            model = event.model or request.model
            usage = with_cost(event.usage, provider=request.provider, model=model, server=server)
            for name in usage.keys() - event.usage.keys():
                spent[name] = spent.get(name, 0) + usage[name]
    return spent
