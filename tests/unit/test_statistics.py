"""The tests of counts against scipy's: chi-square with pooled bins, two samples, the tail of the distribution."""

import random

import pytest
from scipy import stats

from specviz.checks import statistics


def test_chi_square_equals_scipys_where_no_bin_is_pooled():
    probs = [0.1, 0.2, 0.3, 0.4]
    for seed in range(20):
        drawn = random.Random(seed).choices(range(4), probs, k=500)
        counts = [drawn.count(t) for t in range(4)]
        found, known = statistics.chi_square(counts, probs), stats.chisquare(counts, [500 * p for p in probs])
        assert found.freedom == 3
        assert (found.statistic, found.p_value) == pytest.approx((known.statistic, known.pvalue), rel=1e-9)


def test_chi_square_with_pooled_bins_equals_scipys_on_the_pooled_counts():
    """Of 100 draws the last three tokens are expected 1, 2 and 3 times: together they make a bin of 6."""
    counts, probs = [50, 38, 5, 3, 4], [0.54, 0.40, 0.03, 0.02, 0.01]
    found = statistics.chi_square(counts, probs)
    known = stats.chisquare([50, 38, 12], [54, 40, 6])
    assert found.freedom == 2
    assert (found.statistic, found.p_value) == pytest.approx((known.statistic, known.pvalue), rel=1e-9)


def test_two_samples_equal_scipys_contingency_table():
    for seed in range(20):
        rng = random.Random(seed)
        first = {t: rng.randrange(20, 60) for t in range(5)}
        second = {t: rng.randrange(30, 90) for t in range(5)}
        found = statistics.two_samples(first, second)
        known = stats.chi2_contingency([list(first.values()), list(second.values())], correction=False)
        assert found.freedom == known.dof
        assert (found.statistic, found.p_value) == pytest.approx((known.statistic, known.pvalue), rel=1e-9)


@pytest.mark.parametrize("freedom", [1, 2, 7, 40])
@pytest.mark.parametrize("statistic", [0.0, 0.5, 5.0, 80.0])
def test_the_upper_tail_equals_scipys(statistic, freedom):
    assert statistics.upper_tail(statistic, freedom) == pytest.approx(stats.chi2.sf(statistic, freedom), rel=1e-9)


def test_the_total_variation_by_chance_is_the_mean_of_random_splits():
    """Both samples from one law: the expected total variation, against the mean over 400 pairs of samples."""
    rng, tokens = random.Random(1), range(60)

    def sample(n: int) -> dict[int, int]:
        drawn = rng.choices(tokens, k=n)
        return {t: drawn.count(t) for t in tokens}

    pairs = [(sample(60), sample(90)) for _ in range(400)]
    seen = sum(statistics.total_variation(a, b) for a, b in pairs) / len(pairs)
    expected = sum(statistics.total_variation_by_chance(a, b) for a, b in pairs) / len(pairs)
    assert expected == pytest.approx(seen, rel=0.1)
