"""Spending: the tokens and the cost of an answer that its server has not reported, for the limits of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentnb.core.events import Event, ModelEnd, ModelStart
from agentnb.llms.prices import CHARACTERS_PER_TOKEN, estimated_cost, estimated_tokens

UNPRICED = "answers_without_price"
"""The name in the usage of the number of answers whose cost is neither reported nor can be estimated."""


class SentTokens:
    """The estimated tokens of the messages of a request. A message at the same position as before is not read again."""

    def __init__(self) -> None:
        self._messages: Sequence[Mapping[str, Any]] = ()
        self._length = 0
        self._last: Any = None
        """The last message that was counted."""
        self._counted = 0
        self._tokens = 0.0

    def take(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Note the messages of the next request. They are counted only if its server reports no tokens."""
        self._messages, self._length = messages, len(messages)

    def estimated(self) -> int:
        """Return the estimated tokens of the request."""
        counted = self._counted
        if not (0 < counted <= self._length and self._messages[counted - 1] is self._last):
            counted, self._tokens = 0, 0.0
        for number in range(counted, self._length):
            self._last = self._messages[number]
            self._tokens += estimated_tokens(self._last)
        self._counted = self._length
        return math.ceil(self._tokens)


def with_tokens(usage: Mapping[str, float], *, sent: SentTokens, answer: str) -> dict[str, float]:
    """Return the usage of an answer with estimated tokens, if its server has reported none, or only zeros.

    sent: the messages of the request. answer: the answer as text.
    """
    if usage.get("input_tokens") or usage.get("output_tokens") or usage.get("cached_answers"):
        return dict(usage)
    answered = math.ceil(len(answer) / CHARACTERS_PER_TOKEN)
    return {**usage, "input_tokens": sent.estimated(), "output_tokens": answered, "estimated_answers": 1}


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
    spent: dict[str, float] = {}
    for answer, _, usage in _answers(events):
        for name in usage.keys() - answer.usage.keys():
            spent[name] = spent.get(name, 0) + usage[name]
    return spent


def unpriced_model(events: Iterable[Event]) -> str:
    """Return the name of the last model whose price is not known, and its provider; "" if it has no name."""
    models = [request for _, request, usage in _answers(events) if UNPRICED in usage]
    return f"{models[-1].model} ({models[-1].provider})" if models and models[-1].model else ""


def _answers(events: Iterable[Event]) -> Iterator[tuple[ModelEnd, ModelStart, dict[str, float]]]:
    """Yield each answer with its request, and with its usage with its cost."""
    asked: dict[str, ModelStart] = {}
    for event in events:
        if isinstance(event, ModelStart):
            asked[event.path] = event
        elif isinstance(event, ModelEnd) and (request := asked.get(event.path)) is not None:
            server = str(request.options.get("server") or "")
            model = event.model or request.model
            yield event, request, with_cost(event.usage, provider=request.provider, model=model, server=server)
