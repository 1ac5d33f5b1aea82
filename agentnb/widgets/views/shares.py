"""Shares with their intervals, computed without SciPy: a panel has them also if that is not installed."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959964
"""The quantile of the normal distribution for intervals of 95 %."""


def interval(successes: int, number: int) -> tuple[float, float]:
    """Return the bounds of a share of 95 % confidence, by Wilson's method."""
    if not number:
        return 0.0, 1.0
    share, square = successes / number, Z95 * Z95
    middle = share + square / (2 * number)
    spread = Z95 * math.sqrt(share * (1 - share) / number + square / (4 * number * number))
    whole = 1 + square / number
    low, high = (middle - spread) / whole, (middle + spread) / whole
    return round(max(0.0, low), 4), round(min(1.0, high), 4)


def difference(one: tuple[int, int], other: tuple[int, int]) -> tuple[float, float, float]:
    """Return the difference of two shares and its bounds of 95 % confidence, by Newcombe's method (his tenth).

    one, other: how many of how many. Each must have at least one.
    """
    (a, m), (b, n) = one, other
    (low, high), (other_low, other_high) = interval(a, m), interval(b, n)
    p, q = a / m, b / n
    below = math.hypot(p - low, other_high - q)
    above = math.hypot(high - p, q - other_low)
    return round(p - q, 4), round(max(-1.0, p - q - below), 4), round(min(1.0, p - q + above), 4)


def half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the interval of a mean of 95 % confidence (normal); None for less than two values."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return round(Z95 * math.sqrt(variance / len(values)), 3)
