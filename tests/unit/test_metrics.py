"""metrics.py: each definition against numbers worked out by hand, and nothing where nothing was drafted."""

import pytest

from specviz.trace import metrics
from specviz.trace.records import Baseline, Cost, Position, Round, Verdict


def position(verdict, p=0.5, q=0.8):
    """Two tokens: the drafted one with p and q, and all the rest as another."""
    drafted = verdict != "bonus"
    return Position(
        draft_token=0 if drafted else None,
        verdict=verdict,
        accept_uniform=0.1 if verdict != "dropped" else None,
        support=(0, 1),
        target_logits=(0.0, 0.0),
        draft_logits=None,
        target_logsumexp=0.0,
        draft_logsumexp=None,
        target_probs=(p, 1 - p),
        draft_probs=(q, 1 - q) if drafted else (0.0, 0.0),
        tail_target=0.0,
        tail_draft=0.0,
        tail_min=0.0,
        tail_leftover=0.0,
    )


def verdict(row, proposed, accepted, verified=None, ended_on_draft=False):
    verified = proposed if verified is None else verified
    kind = None if ended_on_draft else "leftover" if accepted < verified else "all_accepted"
    names = ["accepted"] * accepted + (["rejected"] if kind == "leftover" else [])
    names += ["dropped"] * (verified - len(names)) + ["bonus"]
    bonus = None if ended_on_draft else 1
    emitted = (0,) * accepted + (() if ended_on_draft else (1,))
    return Verdict(
        row=row,
        context=10,
        anchor=0,
        proposed=proposed,
        verified=verified,
        accepted=accepted,
        positions=tuple(map(position, names)),
        emitted=emitted,
        kind=kind,
        bonus_token=bonus,
        bonus_uniform=None if ended_on_draft else 0.5,
        finished="eos" if ended_on_draft else None,
    )


def round_(index, *verdicts, flops=100):
    return Round(
        index=index,
        rows=verdicts,
        draft_seconds=0.1,
        verify_seconds=0.3,
        other_seconds=0.1,
        recording_seconds=5.0,
        target_tokens=0,
        draft_tokens=0,
        target_cost=Cost(flops, 10),
        draft_cost=Cost(flops // 10, 1),
    )


ROUNDS = [
    round_(0, verdict(0, 4, 4), verdict(1, 4, 0)),
    round_(1, verdict(0, 4, 1), verdict(1, 3, 2, verified=2)),
    round_(2, verdict(0, 0, 0), verdict(1, 4, 2, ended_on_draft=True)),
    round_(3, verdict(0, 1, 1)),
]


def test_counts_add_up():
    c = metrics.counts(ROUNDS)
    assert (c.passes, c.row_rounds, c.drafting) == (4, 7, 6)
    assert (c.proposed, c.verified, c.accepted, c.rejected) == (20, 19, 10, 2)
    assert c.dropped == 3 + 2 + 2 and c.bonus == 6 and c.emitted == c.accepted + c.bonus == 16
    assert metrics.counts(ROUNDS, 0).emitted + metrics.counts(ROUNDS, 1).emitted == 16
    assert (metrics.counts(ROUNDS, 1).passes, metrics.counts(ROUNDS, 1).row_rounds) == (3, 3)


def test_the_rates_by_their_conventions():
    assert metrics.acceptance_rate(ROUNDS) == 10 / 20
    assert metrics.verified_acceptance_rate(ROUNDS) == 10 / 19
    assert metrics.judged_acceptance_rate(ROUNDS) == 10 / 12
    assert metrics.acceptance_rate_with_bonus(ROUNDS) == 16 / 26
    assert metrics.acceptance_rate(ROUNDS, 1) == 4 / 11
    assert metrics.overlap(ROUNDS) == pytest.approx(0.5 + 0.2)


def test_per_position_rates_are_unconditional_and_survival_is_conditional():
    # row-rounds that drafted: accepted 4/4, 1/4, 1/1 (row 0) and 0/4, 2/3 cut to 2, 2/4 ended on a draft (row 1)
    assert metrics.position_rates(ROUNDS) == [5 / 6, 3 / 6, 1 / 6, 1 / 6]
    assert metrics.survival_rates(ROUNDS) == [5 / 6, 3 / 4, 1.0, 1.0]
    assert metrics.survival_rates([round_(0, verdict(0, 2, 0))]) == [0.0, None]


def test_the_lengths_by_their_conventions():
    assert metrics.mean_acceptance_length(ROUNDS) == 16 / 7
    assert metrics.mean_acceptance_length_drafting(ROUNDS) == 1 + 10 / 6
    assert metrics.mean_acceptance_length_without_bonus(ROUNDS) == 10 / 6
    assert metrics.mean_acceptance_length(ROUNDS, 0) == 10 / 4 and metrics.mean_acceptance_length(ROUNDS, 1) == 6 / 3
    assert metrics.mean_acceptance_length_of_rows(ROUNDS) == (10 / 4 + 6 / 3) / 2
    assert metrics.tokens_per_pass(ROUNDS) == 16 / 4


def test_time_and_work_leave_recording_out_and_count_refused_drafts():
    assert metrics.seconds(ROUNDS) == pytest.approx(2.0)
    assert metrics.tokens_per_second(ROUNDS) == pytest.approx(8.0)
    baseline = Baseline((0.5, 0.25, 0.5), (0.4, 0.2, 0.4), (2, 2, 1), Cost(90, 9))
    assert metrics.speed_up(ROUNDS, baseline) == pytest.approx(8.0 / 4.0)
    assert metrics.flops_per_token(ROUNDS) == 4 * 110 / 16
    assert metrics.plain_flops_per_token(baseline) == 90


def test_nothing_drafted_or_nothing_measured_gives_none():
    """Plain decoding has no acceptance rate or length; no rounds at all have no figure whatsoever."""
    plain = [round_(0, verdict(0, 0, 0)), round_(1, verdict(0, 0, 0))]
    rates = (
        metrics.acceptance_rate,
        metrics.verified_acceptance_rate,
        metrics.judged_acceptance_rate,
        metrics.acceptance_rate_with_bonus,
        metrics.overlap,
        metrics.mean_acceptance_length,
        metrics.mean_acceptance_length_drafting,
        metrics.mean_acceptance_length_without_bonus,
        metrics.mean_acceptance_length_of_rows,
    )
    for rounds in (plain, []):
        assert [rate(rounds) for rate in rates] == [None] * len(rates)
        assert metrics.position_rates(rounds) == metrics.survival_rates(rounds) == []
    assert metrics.tokens_per_pass(plain) == 1.0 and metrics.tokens_per_pass([]) is None
    assert metrics.tokens_per_second([]) is metrics.flops_per_token([]) is None
    assert metrics.speed_up(plain, Baseline()) is metrics.plain_flops_per_token(Baseline()) is None


def test_an_iterator_of_rounds_will_do():
    assert metrics.tokens_per_second(iter(ROUNDS)) == pytest.approx(8.0)
    assert metrics.flops_per_token(iter(ROUNDS)) == 4 * 110 / 16
    assert metrics.mean_acceptance_length_of_rows(iter(ROUNDS)) == 2.25
