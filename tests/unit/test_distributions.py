"""Lazy distributions equal the tensor that they stand for, and the accept rule gives the same result on both."""

import itertools

import pytest
import torch

from specviz.sampling.distributions import OneHotRows, SparseRows, concat, dense, token_probs
from specviz.sampling.rejection import judge, judge_rows, uniform, warp, warp_rows
from specviz.sampling.transfer import to_host

IDS = torch.tensor([1, 4, 6])


def spread(generator):
    """q of three drafts over IDS of eight tokens, and the drafts."""
    values = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    tokens = IDS[torch.randint(0, 3, (3,), generator=generator)]
    return SparseRows(values / values.sum(-1, keepdim=True), IDS, 8, 0.0), tokens


def test_lazy_rows_equal_the_tensor_that_they_stand_for():
    values = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)
    full = torch.zeros(2, 8, dtype=torch.float64)
    full[:, IDS] = values
    one_hot = torch.zeros(2, 8, dtype=torch.float64)
    one_hot[[0, 1], [7, 2]] = 1.0
    for lazy, expected in (
        (SparseRows(values, IDS, 8, 0.0), full),
        (OneHotRows(torch.tensor([7, 2]), 8), one_hot),
        (full, full),
    ):
        assert torch.equal(dense(lazy), expected) and len(lazy) == 2
        assert torch.equal(dense(lazy[1:]), expected[1:])
        assert torch.equal(dense(lazy[torch.tensor([1, 1, 0])]), expected[[1, 1, 0]])
        for tokens in itertools.product(range(8), repeat=2):
            assert token_probs(lazy, torch.tensor(tokens)).tolist() == [expected[0, tokens[0]], expected[1, tokens[1]]]
    assert dense(full) is full


def test_concatenated_rows_of_one_kind_stay_lazy():
    one, other = OneHotRows(torch.tensor([7, 2]), 8), OneHotRows(torch.tensor([1]), 8)
    values = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    spread = SparseRows(values, IDS, 8, 0.0)
    assert isinstance(concat([one, other]), OneHotRows) and isinstance(concat([spread, spread]), SparseRows)
    for parts in ([one, other], [spread, spread], [one, spread], [dense(one), other]):
        assert torch.equal(dense(concat(parts)), torch.cat([dense(p) for p in parts]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_accept_rule_is_the_same_on_lazy_rows_and_on_tensors(temperature):
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        logits = 2 * torch.randn(4, 8, generator=generator)
        q, tokens = spread(generator)
        uniforms = torch.rand(4, generator=generator).tolist()
        lazy = judge(warp_rows(logits, temperature), q, tokens.tolist(), uniforms[:3], uniforms[3])
        assert lazy == judge(warp(logits, temperature), dense(q).clone(), tokens.tolist(), uniforms[:3], uniforms[3])
        seen.add(lazy.accepted)
    assert len(seen) > 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_judged_together_as_each_by_itself(temperature):
    """Rows with none to three drafts, some of lazy q, with positions between them of no row."""
    generator = torch.Generator().manual_seed(1)
    for trial in range(100):
        counts = [int(n) for n in torch.randint(0, 4, (1 + trial % 5,), generator=generator)]
        logits = 2 * torch.randn(5 * len(counts), 8, generator=generator)
        starts = [5 * i for i in range(len(counts))]
        qs, drafts = [], []
        for i, k in enumerate(counts):
            q, tokens = spread(generator)
            kind = OneHotRows(tokens, 8) if (trial + i) % 3 == 0 else q if trial % 2 else dense(q).clone()
            qs.append(kind[:k])
            drafts.append(tokens[:k])
        us = [[uniform(trial, i, slot, "accept") for slot in range(k)] for i, k in enumerate(counts)]
        bonus = [uniform(trial, i, 0, "bonus") for i in range(len(counts))]
        given = [i for i, k in enumerate(counts) if k]
        # at temperature 1 p row by row, as on a CPU, or as a tensor, as on a GPU
        p = warp(logits, temperature) if trial % 4 == 1 else warp_rows(logits, temperature)
        found = judge_rows(
            p,
            starts,
            concat([qs[i] for i in given]) if given else None,
            torch.cat([drafts[i] for i in given]) if given else None,
            counts,
            [u for of_row in us for u in of_row],
            bonus,
        )
        alone = [
            judge(warp(logits[5 * i : 5 * i + k + 1], temperature), qs[i], drafts[i].tolist(), us[i], bonus[i])
            for i, k in enumerate(counts)
        ]
        assert to_host(*found) == [[j.accepted for j in alone], [j.bonus_token for j in alone]]
