"""Positions taken in hand: what is summed keeps its sums, and warping anew is exact where everything was kept."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specviz.sampling.rejection import warp
from specviz.trace import files as trace_files
from specviz.views import position_case

FOLDER = Path(__file__).resolve().parents[2] / "assets" / "traces"


def load(name):
    return trace_files.load(FOLDER / name)


@pytest.fixture(scope="module")
def toy():
    return load("9-toy-autoregressive.json.gz")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json.gz")), ids=lambda p: p.name)
def test_a_case_keeps_every_sum_of_its_position(path):
    """p and q sum to 1, and the overlap is that of the whole vocabulary, in every shipped run."""
    whole = trace_files.load(path)
    s = whole.settings
    for _, _, position in position_case.drafted_positions(whole):
        case = position_case.case_of(whole, position, s.temperature, s.top_k, s.top_p)
        assert sum(case.p) == pytest.approx(1) and sum(case.q) == pytest.approx(1)
        assert case.overlap == pytest.approx(position.overlap, abs=1e-3)
        assert case.exact and case.drafted is not None
        assert case.u == position.accept_uniform
        p, q = position.probs(position.draft_token)
        assert case.p[case.drafted] == pytest.approx(p, abs=1e-6)
        assert case.q[case.drafted] == pytest.approx(q, abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.0, 0, 1.0), (0.5, 0, 1.0), (1.7, 3, 1.0), (1.0, 0, 0.7)]
)
def test_warping_anew_is_exact_on_the_toy(toy, temperature, top_k, top_p):
    """From the kept logits, as the engine would have warped them."""
    position = position_case.drafted_positions(toy)[0][2]
    case = position_case.case_of(toy, position, temperature, top_k, top_p)
    order = sorted(range(6), key=lambda i: position.support[i])
    logits = torch.tensor([position.target_logits[i] for i in order], dtype=torch.float64)
    assert case.p == pytest.approx(warp(logits, temperature, top_k, top_p).tolist())
    assert case.exact and case.sums == 0


def test_warping_anew_says_that_it_is_approximate_where_tokens_are_missing():
    """Temperature 1, without cuts, is still exact for the kept tokens: their logits and the logsumexp are known."""
    whole = load("2-story-first-layers.json.gz")
    position = position_case.drafted_positions(whole)[0][2]
    case = position_case.case_of(whole, position, 1.0, 0, 1.0)
    assert not case.exact and case.hidden > 40_000
    i = position.support.index(position.draft_token)
    kept = torch.tensor(position.target_logits[i] - position.target_logsumexp).exp()
    assert case.p[case.drafted] == pytest.approx(float(kept), rel=1e-4)


def test_a_lookup_stays_certain_at_every_temperature():
    whole = load("1-copy-edit-ngram.json.gz")
    position = position_case.drafted_positions(whole)[0][2]
    case = position_case.case_of(whole, position, 1.3, 0, 1.0)
    assert case.q[case.drafted] == pytest.approx(1.0)


def test_more_tokens_than_are_shown_are_summed(toy):
    """The drafted token is always shown by name."""
    position = position_case.drafted_positions(toy)[0][2]
    wide = replace(
        position,
        support=tuple(range(20)),
        target_logits=(0.0,) * 20,
        draft_logits=(0.0,) * 20,
        target_probs=(0.05,) * 20,
        draft_probs=(0.05,) * 20,
        draft_token=19,
    )
    case = position_case.case_of(replace(toy, vocab_size=20), wide, 1.0, 0, 1.0)
    assert len(case.labels) == position_case.SHOWN + 1 and case.hidden == 12
    assert case.p[-1] == pytest.approx(0.6) and case.labels[case.drafted] == "[19]"


def test_chances_are_the_engines_arithmetic():
    kept, left, share = position_case.chances((0.1, 0.2, 0.3, 0.4), (0.5, 0.3, 0.2, 0.0))
    assert kept == pytest.approx([0.1, 0.2, 0.2, 0.0])
    assert left == pytest.approx([0, 0, 0.1, 0.4])
    assert share == pytest.approx([0, 0, 0.2, 0.8])


def test_a_fresh_draft_is_drawn_from_q_and_repeats_by_its_number():
    assert position_case.fresh((0.0, 1.0), 0, 3)[0] == 1
    assert position_case.fresh((0.5, 0.5), 0, 3) == position_case.fresh((0.5, 0.5), 0, 3)
    assert position_case.fresh((0.5, 0.5), 0, 3)[1] != position_case.fresh((0.5, 0.5), 0, 4)[1]
