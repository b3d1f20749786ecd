"""Distributions that are made where they are looked at are those of the whole tensor."""

import pytest
import torch

from specviz.lazy import Spread, Warped, whole
from specviz.sampling import judge, warp
from specviz.trace import Settings

IDS = torch.tensor([1, 4, 6])


def test_a_spread_reads_like_the_tensor_that_it_stands_for():
    values = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], dtype=torch.float64)
    full = torch.zeros(2, 8, dtype=torch.float64)
    full[:, IDS] = values
    spread = Spread(values, IDS, 8, 0.0)
    assert torch.equal(whole(spread), full) and len(spread) == 2
    for slot in range(2):
        assert torch.equal(spread[slot], full[slot])
        assert [spread[slot, token] for token in range(8)] == full[slot].tolist()
    assert torch.equal(whole(spread[:1]), full[:1])
    assert whole(full) is full


@pytest.mark.parametrize("settings", [
    Settings(), Settings(temperature=0.7, top_k=5), Settings(temperature=1.0, top_p=0.8),
])
def test_warped_rows_are_those_of_all_rows_together(settings):
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    rows = Warped(logits, settings)
    every = warp(logits, settings.temperature, settings.top_k, settings.top_p)
    assert torch.equal(rows.whole(), every)
    assert all(torch.allclose(rows[slot], every[slot], atol=1e-15) for slot in range(3))
    assert float(rows[1, 7]) == pytest.approx(float(every[1, 7]), abs=1e-15)


def test_the_verdict_is_the_same_on_lazy_rows_and_on_tensors():
    generator = torch.Generator().manual_seed(0)
    settings = Settings(temperature=1.0)
    for _ in range(50):
        logits = 2 * torch.randn(4, 8, generator=generator)
        values = torch.rand(3, 3, generator=generator, dtype=torch.float64)
        q = Spread(values / values.sum(-1, keepdim=True), IDS, 8, 0.0)
        tokens = [int(IDS[i]) for i in torch.randint(0, 3, (3,), generator=generator)]
        uniforms = torch.rand(4, generator=generator).tolist()
        lazy = judge(Warped(logits, settings), q, tokens, uniforms[:3], uniforms[3])
        assert lazy == judge(warp(logits, 1.0), whole(q), tokens, uniforms[:3], uniforms[3])
