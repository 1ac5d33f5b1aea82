"""Confidence intervals of shares and of means, computed by SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentnb.core.lazy import optional_module

Interval = tuple[float, float]
"""The lower and the upper end; NaN if there are no values."""

RESAMPLES = 1_000
"""The number of resamples of a bootstrap."""

AT_A_TIME = 4_000_000
"""The number of values that a bootstrap draws at a time, which limits its memory."""


def share_interval(count: int, total: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's interval of a share: of `count` among `total`.

    Raises UsageError if SciPy is not installed.
    """
    if not total:
        return math.nan, math.nan
    interval = _stats().binomtest(count, total).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def mean_intervals(samples: Sequence[Sequence[float]], confidence: float = 0.95, *, seed: int = 0) -> list[Interval]:
    """Return the interval of the mean of each sample, by the bootstrap (bias-corrected and accelerated).

    If all values of a sample are equal, its interval has no width; if one is not finite, it is NaN. seed: equal seeds
    give equal intervals.

    Raises UsageError if SciPy is not installed.
    """
    found: list[Interval] = [(math.nan, math.nan)] * len(samples)
    by_length: dict[int, list[int]] = {}
    samples = [[float(value) for value in sample] for sample in samples]
    for number, sample in enumerate(samples):
        if not all(map(math.isfinite, sample)):
            continue
        if len(set(sample)) > 1:
            by_length.setdefault(len(sample), []).append(number)
        elif sample:
            found[number] = sample[0], sample[0]

    # Samples of the same length are one array, which SciPy draws from at once.
    for length, numbers in by_length.items():
        data = [samples[number] for number in numbers]
        batch = max(1, AT_A_TIME // (length * len(numbers)))
        options: dict[str, Any] = {"n_resamples": RESAMPLES, "method": "BCa", "batch": batch, "rng": seed}
        drawn = _stats().bootstrap((data,), _mean, axis=1, confidence_level=confidence, **options)
        interval = drawn.confidence_interval
        for number, low, high in zip(numbers, interval.low, interval.high, strict=True):
            found[number] = float(low), float(high)
    return found


def _mean(values: Any, axis: int) -> Any:
    return values.mean(axis=axis)


def _stats() -> Any:
    return optional_module("scipy.stats", "Intervals need SciPy", "analysis")
