"""Distributions that are made where they are looked at are those of the whole tensor, and so is the verdict on them."""

import itertools

import pytest
import torch

from specviz.sampling.distributions import OneHot, Spread, chosen, together, whole
from specviz.sampling.rejection import judge, judge_rows, uniform, warp, warped
from specviz.sampling.transfer import read

IDS = torch.tensor([1, 4, 6])


def spread(generator):
    """q of three drafts over IDS of eight tokens, and the drafts."""
    values = torch.rand(3, 3, generator=generator, dtype=torch.float64)
    tokens = IDS[torch.randint(0, 3, (3,), generator=generator)]
    return Spread(values / values.sum(-1, keepdim=True), IDS, 8, 0.0), tokens


def dense(rows):
    return whole(rows).clone()


def test_lazy_rows_read_like_the_tensor_that_they_stand_for():
    values = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)
    full = torch.zeros(2, 8, dtype=torch.float64)
    full[:, IDS] = values
    one_hot = torch.zeros(2, 8, dtype=torch.float64)
    one_hot[[0, 1], [7, 2]] = 1.0
    for lazy, expected in (
        (Spread(values, IDS, 8, 0.0), full),
        (OneHot(torch.tensor([7, 2]), 8), one_hot),
        (full, full),
    ):
        assert torch.equal(whole(lazy), expected) and len(lazy) == 2
        assert torch.equal(whole(lazy[1:]), expected[1:])
        assert torch.equal(whole(lazy[torch.tensor([1, 1, 0])]), expected[[1, 1, 0]])
        for tokens in itertools.product(range(8), repeat=2):
            assert chosen(lazy, torch.tensor(tokens)).tolist() == [expected[0, tokens[0]], expected[1, tokens[1]]]
    assert whole(full) is full


def test_what_is_put_together_stays_lazy_among_its_kind():
    one, other = OneHot(torch.tensor([7, 2]), 8), OneHot(torch.tensor([1]), 8)
    values = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    spread = Spread(values, IDS, 8, 0.0)
    assert isinstance(together([one, other]), OneHot) and isinstance(together([spread, spread]), Spread)
    for parts in ([one, other], [spread, spread], [one, spread], [whole(one), other]):
        assert torch.equal(whole(together(parts)), torch.cat([whole(p) for p in parts]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_verdict_is_the_same_on_lazy_rows_and_on_tensors(temperature):
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        logits = 2 * torch.randn(4, 8, generator=generator)
        q, tokens = spread(generator)
        uniforms = torch.rand(4, generator=generator).tolist()
        lazy = judge(warped(logits, temperature), q, tokens.tolist(), uniforms[:3], uniforms[3])
        assert lazy == judge(warp(logits, temperature), whole(q), tokens.tolist(), uniforms[:3], uniforms[3])
        seen.add(lazy.accepted)
    assert len(seen) > 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_judged_together_as_each_by_itself(temperature):
    """Rows with none to three drafts, some of lazy q, with positions between them that belong to nobody."""
    generator = torch.Generator().manual_seed(1)
    for trial in range(100):
        counts = [int(n) for n in torch.randint(0, 4, (1 + trial % 5,), generator=generator)]
        logits = 2 * torch.randn(5 * len(counts), 8, generator=generator)
        starts = [5 * i for i in range(len(counts))]
        qs, drafts = [], []
        for i, k in enumerate(counts):
            q, tokens = spread(generator)
            kind = OneHot(tokens, 8) if (trial + i) % 3 == 0 else q if trial % 2 else dense(q)
            qs.append(kind[:k])
            drafts.append(tokens[:k])
        us = [[uniform(trial, i, slot, "accept") for slot in range(k)] for i, k in enumerate(counts)]
        bonus = [uniform(trial, i, 0, "bonus") for i in range(len(counts))]
        given = [i for i, k in enumerate(counts) if k]
        # at temperature 1 p row by row, as on a processor, or whole, as on a GPU
        p = warp(logits, temperature) if trial % 4 == 1 else warped(logits, temperature)
        found = judge_rows(
            p,
            starts,
            together([qs[i] for i in given]) if given else None,
            torch.cat([drafts[i] for i in given]) if given else None,
            counts,
            [u for of_row in us for u in of_row],
            bonus,
        )
        alone = [
            judge(warp(logits[5 * i : 5 * i + k + 1], temperature), qs[i], drafts[i].tolist(), us[i], bonus[i])
            for i, k in enumerate(counts)
        ]
        assert read(*found) == [[j.accepted for j in alone], [j.bonus_token for j in alone]]
