"""The intervals hold: 95 % of them contain the true value, if it is known."""

from __future__ import annotations

import math

import numpy
import pytest

from agentnb.studies.intervals import mean_intervals, share_interval

pytest.importorskip("scipy")

SIMULATIONS = 2_000


@pytest.mark.parametrize(("share", "n"), [(0.1, 100), (0.5, 100), (0.8, 50)])
def test_intervals_of_shares_contain_the_true_share(share: float, n: int) -> None:
    counts = [int(count) for count in numpy.random.default_rng(1).binomial(n, share, SIMULATIONS)]
    intervals = {count: share_interval(count, n) for count in set(counts)}
    covered = sum(intervals[count][0] <= share <= intervals[count][1] for count in counts)
    assert 0.93 <= covered / SIMULATIONS <= 0.97


def test_intervals_of_means_contain_the_true_mean() -> None:
    samples = numpy.random.default_rng(1).normal(3, 2, (SIMULATIONS, 100)).tolist()
    intervals = mean_intervals(samples)
    covered = sum(low <= 3 <= high for low, high in intervals)
    assert 0.93 <= covered / SIMULATIONS <= 0.97


def test_few_values_have_intervals_too() -> None:
    none, equal, one, other = mean_intervals([[], [2.0, 2.0, 2.0], [1.0, 2.0, 4.0], [0.0, 5.0, 5.0, 5.0]], seed=5)
    assert all(map(math.isnan, (*share_interval(0, 0), *none)))
    assert equal == (2.0, 2.0)
    assert one[0] < 7 / 3 < one[1]
    assert other[0] < 15 / 4
    assert mean_intervals([[1.0, 2.0, 4.0]], seed=5) == [one]
    assert all(map(math.isnan, mean_intervals([[1.0, math.nan], [math.inf, 10**30]])[0]))
    assert share_interval(0, 10)[0] == 0
