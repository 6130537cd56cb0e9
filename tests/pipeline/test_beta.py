"""Intervals of rates: the beta distribution against what is known of it in closed form."""

from __future__ import annotations

import pytest

from celery_poison.pipeline.beta import cumulative, quantile


@pytest.mark.parametrize("part", [0.025, 0.5, 0.975])
@pytest.mark.parametrize("a", [0.5, 1.0, 7.0, 300.0])
def test_quantiles_agree_with_the_closed_forms(part: float, a: float) -> None:
    # Beta(a, 1) has the distribution function x**a, and Beta(1, a) its mirror image.
    assert quantile(part, a, 1.0) == pytest.approx(part ** (1 / a), rel=1e-6)
    assert quantile(part, 1.0, a) == pytest.approx(1 - (1 - part) ** (1 / a), rel=1e-6)


def test_whole_numbers_agree_with_the_binomial_sum() -> None:
    # P(X <= x) of Beta(2, 3) is the chance of at least two hits in four at x.
    x = 0.3
    assert cumulative(x, 2, 3) == pytest.approx(1 - (1 - x) ** 4 - 4 * x * (1 - x) ** 3, abs=1e-12)


def test_large_counts_keep_their_interval_around_the_mean() -> None:
    low, high = (quantile(part, 3000.5, 5_000_000.5) for part in (0.025, 0.975))
    assert low < 3000 / 5_003_000 < high
    assert high - low == pytest.approx(2 * 1.96 * 3000**0.5 / 5_003_000, rel=0.01)
