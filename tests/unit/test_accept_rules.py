"""The right rule keeps p, every wrong one is caught, and the flags say which is which."""

from pathlib import Path

import pytest
import torch

from specviz.checks.statistics import chi_square, total_variation, total_variation_by_chance, two_samples
from specviz.sampling import accept_rules, rejection
from specviz.sampling.accept_rules import PAPER_P, PAPER_Q, RIGHT, RULES, Chance, rule, tally
from specviz.trace import files as trace_files
from specviz.views import position_case

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"

LOSSLESS = [r for r in RULES if r.lossless]
LOSSY = [r for r in RULES if not r.lossless]


@pytest.fixture(scope="module")
def toy():
    """p and q [6] at the first draft of the recorded toy run."""
    whole = trace_files.load(FOLDER / "9-toy-autoregressive.json.gz")
    position = position_case.drafted_positions(whole)[0][2]
    return position_case.tensors(position.target_probs, position.draft_probs)


def p_value(r, p, q, trials, seed):
    return chi_square(tally(r, p, q, trials, seed).counts, r.asked(p).tolist()).p_value


@pytest.mark.parametrize("wrong", LOSSY, ids=lambda r: r.name)
def test_every_lossy_rule_is_caught_on_the_toy(wrong, toy):
    """With 4,000 trials already, and p-values far below one in a million."""
    assert p_value(wrong, *toy, 4000, seed=1) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("good", LOSSLESS, ids=lambda r: r.name)
def test_every_lossless_rule_passes_at_the_expected_rate(good, toy):
    """Over 200 seeds about 5 % of p-values are below 0.05, and none is absurd."""
    found = [p_value(good, *toy, 200, seed) for seed in range(200)]
    assert 1 <= sum(p < 0.05 for p in found) <= 22, "20 seeds of a fair test exceed 22 once in several thousand times"
    assert min(found) > 1e-6


def test_the_right_rule_is_the_engines_own_code(monkeypatch, toy):
    """Not a copy: a change of `sampling.judge` changes what the rule does."""
    calls = []

    def spy(*arguments):
        calls.append(arguments)
        return rejection.judge(*arguments)

    monkeypatch.setattr(accept_rules, "judge", spy)
    RIGHT.apply(*toy, Chance(0.5, 0.5, 0.5))
    assert len(calls) == 1


def test_look_ahead_gives_the_papers_counterexample():
    """0.85 comes out where p is 0.70; the right rule gives 0.70."""
    p, q = position_case.tensors(PAPER_P, PAPER_Q)
    looked = tally(rule("look-ahead"), p, q, 4000)
    assert looked.counts[0] / 4000 == pytest.approx(0.85, abs=0.025)
    assert tally(RIGHT, p, q, 4000).counts[0] / 4000 == pytest.approx(0.70, abs=0.03)


def test_the_papers_schedule_decides_as_the_look_ahead_rule_does():
    """With the paper's speeds (1, 0.5, 0.45) the best length over all lengths judges the draft only if the next one is
    safe; with the early stop it never looks, and stays lossless."""
    speeds, first = (1.0, 0.5, 0.45), 0.8

    def lengths(second):
        gains = (1, 1 + first, 1 + first + first * second)
        value = [g * s for g, s in zip(gains, speeds)]
        best = max(range(3), key=value.__getitem__)
        stopped = next((i for i in range(2) if value[i + 1] <= value[i]), 2)
        return best, stopped

    assert lengths(second=1.0) == (2, 0)
    assert lengths(second=0.0) == (0, 0)


def test_agreeing_with_the_targets_draw_is_right_but_less_efficient(toy):
    """It keeps a draft with probability sum of p q, below the sum of min(p, q)."""
    p, q = toy
    kept = sum(tally(rule("target-agrees"), p, q, 3000).accepted) / 3000
    best = sum(tally(RIGHT, p, q, 3000).accepted) / 3000
    assert kept == pytest.approx(float((p * q).sum()), abs=0.03)
    assert best == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.03)
    assert kept < best


def test_a_tally_goes_on_where_it_was(toy):
    """Drawing in parts gives the same counts as drawing at once."""
    whole = tally(RIGHT, *toy, 300, seed=5)
    part = tally(RIGHT, *toy, 200, seed=5, before=tally(RIGHT, *toy, 100, seed=5))
    assert part == whole and whole.trials == 300


def test_every_rule_says_where_it_comes_from():
    assert len({r.name for r in RULES}) == len(RULES)
    assert all(r.sentence.endswith(".") and r.source for r in RULES)
    assert all("#" in r.source or "arXiv" in r.source or "paper" in r.source for r in RULES)


# ------------------------------------------------------------------------------------- tests of the tests


def test_chi_square_agrees_with_scipy():
    """Statistic and p-value, where no pooling is needed."""
    stats = pytest.importorskip("scipy.stats")
    counts, probs = [210, 480, 310], [0.2, 0.5, 0.3]
    wanted = stats.chisquare(counts, [1000 * p for p in probs])
    found = chi_square(counts, probs)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue, rel=1e-9)
    assert found.freedom == 2


def test_two_samples_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    a, b = {1: 50, 2: 70, 3: 40}, {1: 90, 2: 100, 3: 110}
    wanted = stats.chi2_contingency([[50, 70, 40], [90, 100, 110]], correction=False)
    found = two_samples(a, b)
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.p_value == pytest.approx(wanted.pvalue, rel=1e-9)


def test_small_expectations_are_pooled():
    """Many rare tokens become bins of at least five, so that one odd count is no alarm."""
    probs = [0.9] + [0.001] * 100
    counts = [900] + [1] * 100
    found = chi_square(counts, probs)
    assert found.freedom <= 20 and found.p_value > 0.5


def test_a_token_that_p_excludes_is_a_contradiction():
    assert chi_square([99, 1], [1.0, 0.0]).p_value == 0.0


def test_nothing_to_test_gives_no_p_value():
    assert chi_square([50, 0], [1.0, 0.0]).p_value is None
    assert two_samples({1: 400}, {1: 400}).p_value is None
    assert two_samples({}, {1: 3}).p_value is None
    assert total_variation({}, {1: 1}) is None


@pytest.mark.parametrize("few", [True, False])
def test_total_variation_by_chance_is_what_equal_samples_show(few):
    """Two samples of one distribution lie about as far apart as foretold, also where most tokens are rare."""
    generator = torch.Generator().manual_seed(0)
    probs = torch.tensor([0.5, 0.2, 0.2, 0.1] if few else [0.3] + [0.7 / 800] * 800)
    seen, told = [], []
    for _ in range(200):
        drawn = [torch.multinomial(probs, 500, True, generator=generator) for _ in range(2)]
        a, b = (dict(enumerate(torch.bincount(x, minlength=len(probs)).tolist())) for x in drawn)
        seen.append(total_variation(a, b))
        told.append(total_variation_by_chance(a, b))
    assert sum(seen) / 200 == pytest.approx(sum(told) / 200, rel=0.1 if few else 0.03)
