"""Statistics of token counts: chi-square tests against a distribution or other counts, and total variation.

A test without evidence, because too little was counted or all of it is one token, gives no p-value (None).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

LEAST_EXPECTED = 5.0
"""Minimum expected count of a chi-square bin; smaller bins are pooled, the smallest first."""


@dataclass(frozen=True)
class ChiSquare:
    """A chi-square test. `p_value`: probability of a statistic this large or larger by chance; None: no test."""

    statistic: float
    freedom: int
    """Degrees of freedom: bins after pooling, less one."""
    p_value: float | None


def chi_square(counts: Sequence[int], probs: Sequence[float], least: float = LEAST_EXPECTED) -> ChiSquare:
    """Goodness of fit of counts to a distribution, both [V].

    A count where the distribution is 0 gives an infinite statistic and p-value 0.
    """
    n, total = sum(counts), sum(probs)
    if any(c > 0 and p == 0 for c, p in zip(counts, probs)):
        return ChiSquare(float("inf"), max(1, sum(p > 0 for p in probs) - 1), 0.0)
    bins = _pool([(n * p / total, (c,)) for c, p in zip(counts, probs) if p > 0], least)
    return _test(sum((c - e) ** 2 / e for e, (c,) in bins), len(bins) - 1)


def two_samples(first: Mapping[int, int], second: Mapping[int, int], least: float = LEAST_EXPECTED) -> ChiSquare:
    """Homogeneity of two sets of counts by token: whether both can come from one distribution."""
    n, m = sum(first.values()), sum(second.values())
    if not n or not m:
        return ChiSquare(0.0, 0, None)
    smaller = min(n, m) / (n + m)
    both = [(first.get(t, 0), second.get(t, 0)) for t in sorted(first.keys() | second.keys())]
    bins = _pool([(smaller * (a + b), (a, b)) for a, b in both], least)
    statistic = 0.0
    for _, (a, b) in bins:
        for count, share in ((a, n / (n + m)), (b, m / (n + m))):
            expected = share * (a + b)
            statistic += (count - expected) ** 2 / expected
    return _test(statistic, len(bins) - 1)


def total_variation(first: Mapping[int, float], second: Mapping[int, float]) -> float | None:
    """Half the sum of differences of two sets of counts or weights, each normalised: 0 equal, 1 disjoint."""
    n, m = sum(first.values()), sum(second.values())
    if not n or not m:
        return None
    return sum(abs(first.get(t, 0) / n - second.get(t, 0) / m) for t in first.keys() | second.keys()) / 2


def total_variation_by_chance(first: Mapping[int, int], second: Mapping[int, int]) -> float | None:
    """The expected total variation of two samples of these sizes from one distribution, by random reassignment of each
    token's counts to the two samples."""
    n, m = sum(first.values()), sum(second.values())
    if not n or not m:
        return None
    together = [first.get(t, 0) + second.get(t, 0) for t in first.keys() | second.keys()]
    return sum(_mean_difference(total, n, m) for total in together) / 2


def _mean_difference(total: int, n: int, m: int) -> float:
    """The mean of |a / n - b / m| where a + b = total counts are assigned to samples of n and m at random."""
    share = n / (n + m)
    if total > 100:  # the mean size of a normal deviation is sqrt(2 / pi) of its standard deviation
        p = total / (n + m)
        return (2 / math.pi * p * (1 - p) * (1 / n + 1 / m)) ** 0.5
    return sum(
        math.comb(total, a) * share**a * (1 - share) ** (total - a) * abs(a / n - (total - a) / m)
        for a in range(total + 1)
    )


def upper_tail(statistic: float, freedom: int) -> float:
    """P(X > statistic) for chi-square with `freedom` degrees of freedom (regularised incomplete gamma function)."""
    pair = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(pair[0], pair[1]))


def _test(statistic: float, freedom: int) -> ChiSquare:
    return ChiSquare(statistic, max(0, freedom), upper_tail(statistic, freedom) if freedom > 0 else None)


def _pool(bins: list[tuple[float, tuple[int, ...]]], least: float) -> list[tuple[float, tuple[int, ...]]]:
    """(expected, counts) bins, the smallest merged until each expects at least `least`."""
    pooled: list[tuple[float, tuple[int, ...]]] = []
    small: tuple[float, tuple[int, ...]] | None = None
    for expected, counts in sorted(bins, key=lambda b: b[0]):
        if small is not None:
            expected, counts = expected + small[0], tuple(map(sum, zip(counts, small[1])))
        if expected < least:
            small = (expected, counts)
        else:
            small = None
            pooled.append((expected, counts))
    if small is not None and pooled:  # the rest is too small for a bin
        last = pooled.pop()
        pooled.append((last[0] + small[0], tuple(map(sum, zip(last[1], small[1])))))
    return pooled
