"""The beta distribution, as far as the interval of a rate needs it: no numeric library for that alone."""

from __future__ import annotations

from math import exp, lgamma, log

_TINY = 1e-300


def quantile(part: float, a: float, b: float) -> float:
    """Return the value below which ``part`` of Beta(a, b) lies, to one part in ten million.

    Args:
        part: between 0 and 1, both excluded.
        a, b: above 0.
    """
    low, high = 0.0, 1.0
    # Halving needs no derivative, and so nothing breaks down near 0 and 1.
    for _ in range(60):
        middle = (low + high) / 2
        if cumulative(middle, a, b) < part:
            low = middle
        else:
            high = middle
        if high - low < 1e-7 * high:
            break
    return (low + high) / 2


def cumulative(x: float, a: float, b: float) -> float:
    """Return how much of Beta(a, b) lies below ``x`` (the regularised incomplete beta function)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    # The fraction converges fast on this side of the mean only.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, from its front (modified Lentz)."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-13:
            break
    return value


def _away_from_zero(number: float) -> float:
    return number if abs(number) > _TINY else _TINY
