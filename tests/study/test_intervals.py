"""The intervals hold: 95 % of them contain the true value, if it is known."""

from __future__ import annotations

import math

import numpy
import pytest

from agentnb.studies.intervals import mean_interval, share_interval

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
    intervals = [mean_interval(sample, seed=number, resamples=400) for number, sample in enumerate(samples)]
    covered = sum(low <= 3 <= high for low, high in intervals)
    assert 0.93 <= covered / SIMULATIONS <= 0.97


def test_few_values_have_intervals_too() -> None:
    assert all(map(math.isnan, (*share_interval(0, 0), *mean_interval([]))))
    assert mean_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert share_interval(0, 10)[0] == 0
    assert mean_interval([1.0, 2.0, 4.0], seed=5) == mean_interval([1.0, 2.0, 4.0], seed=5)
