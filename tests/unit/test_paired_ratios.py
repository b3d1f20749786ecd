"""Paired ratios, the interval of a median, and how a limited time is shared out."""

import random
import statistics

import pytest

from specviz.bench.paired_ratios import interval, plan, ratio, spread


def test_a_ratio_is_taken_prompt_by_prompt_and_only_where_both_were_measured():
    found = ratio({0: 2, 1: 40, 2: 6, 3: 8, 7: 1}, {0: 1, 1: 10, 2: 2, 3: 2, 9: 5})
    assert (found.median, found.low, found.high, found.n) == (3.5, 2, 4, 4)
    assert ratio({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize("n, inner", [(3, (0, 2)), (5, (0, 4)), (6, (0, 5)), (9, (1, 7)), (20, (5, 14))])
def test_the_interval_is_that_of_the_binomial_law(n, inner):
    """The textbook ranks: of 20 values the 6th and the 15th, of 6 the first and the last."""
    assert interval(list(range(n))) == inner


def test_the_interval_holds_the_median_as_often_as_it_says():
    """Over 2,000 draws of twenty skewed values it misses the true median in at most 5 % of them, and is not vast."""
    chance, true = random.Random(1), 2**0.5
    held, widths = 0, []
    for _ in range(2000):
        low, high = interval([chance.paretovariate(2.0) for _ in range(20)])
        held += low <= true <= high
        widths.append(high - low)
    assert 0.95 <= held / 2000 < 0.99
    assert statistics.median(widths) < 1


def test_the_slowest_gives_way_first_and_keeps_the_least():
    assert plan([1, 1, 10], 20, 1000, 6) == [20, 20, 20]
    assert plan([1, 1, 10], 20, 140, 6) == [20, 20, 10]
    assert plan([5, 5, 50], 20, 10, 6) == [6, 6, 6]
    assert plan([5.0], 3, 1, 6) == [3]


def test_prompts_left_out_are_spread_evenly():
    assert spread(20, 20) == list(range(20))
    assert len(spread(7, 20)) == 7
    gaps = [b - a for a, b in zip(spread(7, 20), spread(7, 20)[1:])]
    assert set(gaps) <= {2, 3}


def test_the_full_benchmark_fits_its_time_at_the_speeds_seen_on_two_cores():
    """Plain at 25 tokens/s, four drafters at 25, transformers at 16 and 14, assisted at 6 and 7: what is left of 22
    minutes after 4 of picking is kept, and only the slow peers decode fewer than all prompts."""
    from specviz.bench.systems import FULL

    rates = [25, 25, 25, 25, 25, 16, 14, 6, 7]
    seconds = [FULL.tokens / rate + 0.3 for rate in rates]
    counts = plan(seconds, FULL.prompts, FULL.seconds - 240, FULL.least)
    assert sum(n * s for n, s in zip(counts, seconds)) <= FULL.seconds - 240 + max(seconds)
    assert all(n >= FULL.least for n in counts)
    assert min(counts[:5]) >= 19
