"""Paired speed ratios of two systems over common prompts with confidence intervals, and the plan of a limited time.

Pure arithmetic.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

NOISE = 0.03
"""Two systems nearer than this share, or than the interval of their ratio, have no winner."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Ratio of two systems' rates: the median over the prompts that both decoded, and its interval."""

    median: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """An interval that holds the median with at least this confidence, whatever the distribution: the order statistics
    between which it lies by the binomial law. From fewer than six values no two of them reach 95 %: least and greatest
    are given then."""
    ordered, n = sorted(values), len(values)
    outside, drop = 0.0, 0
    # dropping one more value at each end leaves out 2 * comb(n, drop) / 2^n of the confidence
    while drop < (n - 1) // 2:
        outside += 2 * comb(n, drop) / 2**n
        if outside > 1 - confidence:
            break
        drop += 1
    return (ordered[max(0, drop - 1)], ordered[min(n - 1, n - drop)]) if n else (float("nan"), float("nan"))


def ratio(rates: Mapping[int, float], others: Mapping[int, float]) -> Ratio | None:
    """Rates by prompt, of two systems: their ratio prompt by prompt. None if no prompt is common to both."""
    ratios = [rates[i] / others[i] for i in sorted(rates.keys() & others.keys())]
    return Ratio(statistics.median(ratios), *interval(ratios), len(ratios)) if ratios else None


def plan(seconds: Sequence[float], prompts: int, left: float, least: int) -> list[int]:
    """How many of the prompts each system decodes, so that all of it takes about `left` seconds.

    seconds: of one prompt, by system. What takes longest gives way first, and none gets fewer than `least`.
    """
    counts = [prompts] * len(seconds)
    least = min(least, prompts)
    while sum(n * s for n, s in zip(counts, seconds)) > left:
        reducible = [i for i, n in enumerate(counts) if n > least]
        if not reducible:
            break
        counts[max(reducible, key=lambda i: counts[i] * seconds[i])] -= 1
    return counts


def spread(count: int, prompts: int) -> list[int]:
    """Which of the prompts to take, evenly among them: 3 of 9 are 2, 5 and 8."""
    return [i for i in range(prompts) if (i + 1) * count // prompts > i * count // prompts]
