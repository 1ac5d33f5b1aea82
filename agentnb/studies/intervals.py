"""Confidence intervals of shares and of means, computed by SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentnb.core.lazy import optional_module

Interval = tuple[float, float]
"""The lower and the upper end; NaN if there are no values."""

RESAMPLES = 2_000
"""The number of resamples of a bootstrap."""


def share_interval(count: int, total: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's interval of a share: of `count` among `total`.

    Raises UsageError if SciPy is not installed.
    """
    if not total:
        return math.nan, math.nan
    interval = _stats().binomtest(count, total).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(
    values: Sequence[float], confidence: float = 0.95, *, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Return the interval of the mean of a sample, by the bootstrap (bias-corrected and accelerated).

    If all values are equal, the interval has no width. seed: equal seeds give equal intervals.

    Raises UsageError if SciPy is not installed.
    """
    if len(set(values)) < 2:  # there is nothing to draw from
        value = float(values[0]) if values else math.nan
        return value, value
    options: dict[str, Any] = {"confidence_level": confidence, "n_resamples": resamples, "method": "BCa", "rng": seed}
    interval = _stats().bootstrap((values,), _mean, **options).confidence_interval
    return float(interval.low), float(interval.high)


def _mean(values: Any, axis: int) -> Any:
    return values.mean(axis=axis)


def _stats() -> Any:
    return optional_module("scipy.stats", "Intervals need SciPy", "analysis")
