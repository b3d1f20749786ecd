"""Warping, drawing and uniforms, each against what it must be."""

import math

import pytest
import torch

from specviz.sampling.rejection import accepts, argmax_rows, draw, draws, leftover, uniform, warp


def test_warp_greedy_is_one_hot_at_the_first_largest():
    assert warp(torch.tensor([1.0, 3.0, 3.0]), 0).tolist() == [0, 1, 0]


def test_warp_temperature_is_a_softmax_of_scaled_logits():
    logits = torch.tensor([0.3, -1.2, 2.0])
    expected = [math.exp(x / 0.7) for x in logits.tolist()]
    expected = [x / sum(expected) for x in expected]
    torch.testing.assert_close(warp(logits, 0.7), torch.tensor(expected, dtype=torch.float64), atol=1e-7, rtol=0)


def test_top_k_keeps_the_k_largest_and_ties():
    assert (warp(torch.tensor([1.0, 3.0, 2.0, 0.0]), 1, top_k=2) > 0).tolist() == [False, True, True, False]
    assert (warp(torch.tensor([1.0, 3.0, 1.0, 0.0]), 1, top_k=2) > 0).tolist() == [True, True, True, False]


def test_top_p_keeps_the_token_that_crosses():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    assert (warp(probs.log(), 1, top_p=0.79) > 0).tolist() == [True, True, False, False]
    assert (warp(probs.log(), 1, top_p=0.81) > 0).tolist() == [True, True, True, False]
    assert (warp(probs.log(), 1, top_p=1e-9) > 0).tolist() == [True, False, False, False]


def test_warped_rows_do_not_depend_on_their_neighbours():
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    together = warp(logits, 0.8, top_k=20, top_p=0.9)
    for row in range(5):
        assert torch.equal(together[row], warp(logits[row], 0.8, top_k=20, top_p=0.9))
    torch.testing.assert_close(together.sum(-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("u", [0.0, 0.1999999, 0.2, 0.5, 1 - 2**-53])
def test_draw_is_the_inverse_of_the_running_sum_and_never_draws_what_is_impossible(u):
    probs = torch.tensor([0.0, 0.2, 0.0, 0.8, 0.0], dtype=torch.float64)
    assert draw(probs, u) == (1 if u < 0.2 else 3)


@pytest.mark.parametrize("size", [40, 8192, 8193, 16384])
def test_the_likeliest_is_the_first_of_the_largest(size):
    logits = torch.randn(6, size, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # with ties
    logits[1, [size // 2, size - 1]] = 9.0
    logits[2] = 0.0
    logits[3] = -torch.inf
    logits[4, -1] = 9.0
    assert argmax_rows(logits).tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_many_rows_are_drawn_as_each_by_itself_and_the_largest_uniform_finds_a_token():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(500, 40, generator=generator, dtype=torch.float64) ** 8
    probs[:, ::3] = 0
    uniforms = torch.rand(500, generator=generator, dtype=torch.float64)
    uniforms[::2] = 1 - 2**-53
    found = draws(probs, uniforms)
    assert found.tolist() == [draw(row, u) for row, u in zip(probs, uniforms.tolist())]
    assert bool((probs.gather(1, found[:, None]) > 0).all())


def test_leftover_of_equal_distributions_falls_back_to_p():
    p = torch.tensor([0.25, 0.75], dtype=torch.float64)
    assert torch.equal(leftover(p, p), p)


def test_leftover_does_not_change_its_arguments():
    p, q = torch.tensor([0.25, 0.75], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64)
    assert leftover(p, q).tolist() == [0.0, 1.0]
    assert p.tolist() == [0.25, 0.75]
    assert q.tolist() == [0.5, 0.5]


def test_accepts_at_the_edges():
    assert not accepts(0.0, 0.5, 0.0)  # an impossible token is rejected even by u = 0
    assert accepts(0.5, 0.5, 1 - 2**-53)


def test_uniforms_are_uniform_and_independent_of_each_other():
    """20,000 of them: mean and variance of U(0, 1), no correlation between streams, slots and rounds."""
    draws = torch.tensor(
        [[uniform(7, n, s, stream) for s in (0, 1) for stream in ("draft", "accept")] for n in range(5000)],
        dtype=torch.float64,
    )
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.var() - 1 / 12) < 0.002
    correlation = torch.corrcoef(draws.T) - torch.eye(4)
    assert correlation.abs().max() < 0.06
    assert len(set(draws.flatten().tolist())) == draws.numel()


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999999])
def test_a_nucleus_found_among_the_likeliest_tokens_is_that_of_sorting_them_all(top_p):
    """Rows whose nucleus is small, and one so flat that it does not fit the tokens that are sorted first."""
    logits = torch.randn(3, 3000, generator=torch.Generator().manual_seed(0)) * torch.tensor([[6.0], [1.0], [0.01]])
    probs = torch.softmax(logits.double(), -1)
    down = probs.sort(-1, descending=True).values
    smallest = down.masked_fill(down.cumsum(-1) - down >= top_p, torch.inf).amin(-1, keepdim=True)
    kept = probs.masked_fill(probs < smallest, 0.0)
    expected = kept / kept.sum(-1, keepdim=True)
    assert torch.equal(warp(logits, 1.0, 0, top_p), expected)
    assert torch.equal(torch.cat([warp(row[None], 1.0, 0, top_p) for row in logits]), expected)
