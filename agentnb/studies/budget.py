"""The budget of a study: what its runs have spent, and the limits of all of them together.

A `Meter` counts one run that is driven in this process; it sees the events of the run. What it counts goes to the
`Budget` of the study, by a call or as a message of a worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentnb.core.errors import UsageError
from agentnb.core.events import Event, ModelEnd, ModelFailed, ModelStart, RunEnd, RunResumed
from agentnb.core.evolve import nested
from agentnb.llms.prices import INSTALL, has_prices
from agentnb.run import Run
from agentnb.run.gate.gate import check_limits
from agentnb.run.spending import UNPRICED, SentTokens, with_cost, with_tokens
from agentnb.run.validation import shown

LIMITS = ("total_cost", "total_tokens")
"""The names of the limits of a study. Other names in `limits=` are those of each run."""


def split_limits(limits: Any) -> tuple[dict[str, float], Any]:
    """Return the limits of the study, and those of each run. Raises UsageError if one of the study is not valid."""
    if not isinstance(limits, Mapping) or not any(name in limits for name in LIMITS):
        return {}, limits
    own = {name: checked_amount(name, limits[name]) for name in LIMITS if name in limits}
    each = {name: limit for name, limit in limits.items() if name not in LIMITS}
    return own, each or None


def checked_amount(name: str, amount: Any) -> float:
    """Return an amount of cost or tokens as a Python number. Raises UsageError if it is not one."""
    try:
        return check_limits({name.removeprefix("total_"): amount}).get(name.removeprefix("total_"), math.inf)
    except UsageError:
        raise UsageError(f"{name} must be a non-negative number, not {shown(amount)}.") from None


class Meter:
    """Counts what one run spends. `spent` is called with the tokens, the cost, and the name of an unpriced model."""

    def __init__(self, run: Run, spent: Callable[[float, float, str | None], object]) -> None:
        self._run = run
        self._spent = spent
        self._requests: dict[str, ModelStart] = {}
        self._sent: dict[str, SentTokens] = {}

    def see(self, event: Event) -> None:
        """Count an event that was just recorded."""
        if isinstance(event, ModelStart):
            self._requests[event.path] = event
            messages = nested(self._run.state, event.path).messages
            self._sent.setdefault(event.path, SentTokens()).take(messages)
        elif isinstance(event, ModelEnd | ModelFailed | RunEnd) and (event.usage or isinstance(event, ModelEnd)):
            usage: Mapping[str, float] = event.usage
            if isinstance(event, ModelEnd) and (sent := self._sent.get(event.path)) is not None:
                usage = with_tokens(usage, sent=sent, answer=event.message.to_json())
            self._spent(*amounts(usage, self._requests.get(event.path), event))


def amounts(usage: Mapping[str, float], request: ModelStart | None, event: Event) -> tuple[float, float, str | None]:
    """Return the tokens and the cost of an answer, and the name of its model if its price is not known."""
    tokens = usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
    model = (event.model if isinstance(event, ModelEnd) else None) or (request.model if request is not None else "")
    provider = request.provider if request is not None else ""
    server = str(request.options.get("server") or "") if request is not None else ""
    priced = with_cost(usage, provider=provider, model=model or "", server=server)
    cost = priced.get("cost", 0) + priced.get("cost_estimate", 0)
    return tokens, cost, (model or "a model without a name") if UNPRICED in priced else None


def recorded_amounts(events: Iterable[Event]) -> Iterable[tuple[float, float, str | None]]:
    """Yield what the answers in a recording have cost, without those that it has taken over from another run."""
    requests: dict[str, ModelStart] = {}
    for event in events:
        if isinstance(event, ModelStart):
            requests[event.path] = event
        elif isinstance(event, ModelEnd | ModelFailed | RunEnd | RunResumed) and event.usage and not event.inherited:
            yield amounts(event.usage, requests.get(event.path), event)


class Budget:
    """What the runs of a study have spent, and how much they may spend together.

    limits: by name (`LIMITS`). A study without limits counts, too, for its progress line.
    """

    def __init__(self, limits: Mapping[str, float] = {}) -> None:
        self.limits = dict(limits)
        self.spent = {"total_cost": 0.0, "total_tokens": 0.0}
        self.by_run: dict[Any, dict[str, float]] = {}
        """What each run has spent, by its cell."""
        self._ended: set[Any] = set()
        self._unpriced: str | None = None

    def add(self, run: Any, tokens: float, cost: float, unpriced: str | None) -> None:
        """Count an answer of a run."""
        of_run = self.by_run.setdefault(run, {"total_cost": 0.0, "total_tokens": 0.0})
        for name, amount in (("total_cost", cost), ("total_tokens", tokens)):
            self.spent[name] += amount
            of_run[name] += amount
        self._unpriced = unpriced or self._unpriced

    def end(self, run: Any) -> None:
        """Note that a run has ended, so that what it has spent is what such a run needs."""
        self._ended.add(run)

    @property
    def reached(self) -> str | None:
        """The reason why no request may start, None if one may."""
        if "total_cost" in self.limits and self._unpriced is not None:
            why = f"the price of {self._unpriced} is not known" if has_prices() else f"prices need {INSTALL}"
            return f"The limit total_cost of the study cannot be enforced: {why}. Limit total_tokens instead."
        for name, limit in self.limits.items():
            if self.spent[name] >= limit:
                return f"The limit of {limit:g} {name} of the study is reached: {self.spent[name]:.4g} are spent."
        return None

    def allows_another(self, under_way: Iterable[Any]) -> bool:
        """Return True if another run may begin. What the runs under way will still spend is estimated."""
        if not self.limits:
            return True
        if self.reached:
            return False
        ended = [self.by_run.get(run, {}) for run in self._ended]
        for name, limit in self.limits.items():
            mean = sum(of_run.get(name, 0) for of_run in ended) / len(ended) if ended else 0.0
            left = sum(max(mean - self.by_run.get(run, {}).get(name, 0), 0) for run in under_way)
            if left and self.spent[name] + left >= limit:
                return False
        return True

    def lift(self, amounts: Mapping[str, float]) -> None:
        """Allow so much more, from what was spent or from the limit, if that is higher. Raises UsageError."""
        for name in amounts:
            if name not in self.limits:
                raise UsageError(f"The study has no limit {name}. Pass limits={{{name!r}: ...}} to agentnb.study.")
        for name, amount in amounts.items():
            self.limits[name] = max(self.spent[name], self.limits[name]) + checked_amount(name, amount)

    def expected(self, arms: Mapping[Any, Any]) -> float | None:
        """Return the expected cost of all runs, from the mean of the ended ones of each arm; None if it is not known.

        arms: the arm of each run.
        """
        costs: dict[Any, list[float]] = {}
        for run in self._ended:
            costs.setdefault(arms[run], []).append(self.by_run.get(run, {}).get("total_cost", 0.0))
        if self._unpriced is not None or not self.spent["total_cost"] or set(arms.values()) - costs.keys():
            return None
        return sum(sum(costs[arm]) / len(costs[arm]) for arm in arms.values())
