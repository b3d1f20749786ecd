"""FusedBlock computes what BlockNet computes; with bfloat16 weights up to rounding."""

import pytest
import torch
from test_parallel import PROMPT, make, ready, request, target  # noqa: F401 (a fixture)
from test_training import SIZE, TAPS, block_net

from specviz.drafters import block_weights
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.models.linear import ROW_COUNTS, WeightFormat, can_pack
from specviz.sampling.distributions import dense


def test_context_keys_and_values_are_those_of_each_layer(target):  # noqa: F811
    net = block_net()
    fused = FusedBlock(net, target)
    cache = fused.new_cache()
    cache.add(3, 20)
    taps = torch.randn(7, len(TAPS) * SIZE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        fused.add_context(cache, [3], [taps[:5]])
        (last,) = fused.add_context(cache, [3], [taps[5:]])
        states = net.fused(taps)
        for i, layer in enumerate(net.layers):
            keys, values = layer.keys_values(states, net.rope(torch.arange(7)))
            torch.testing.assert_close(cache.keys[i][0, :, :7].transpose(0, 1), keys, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(cache.values[i][0, :, :7].transpose(0, 1), values, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(last, states[-1], atol=1e-5, rtol=1e-4)


def test_the_serial_head_in_two_parts_equals_the_whole_one(target):  # noqa: F811
    net = block_net()
    fused = FusedBlock(net, target)
    states = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))
    previous, before, slots = torch.tensor([[5, 9, 1, 0], [7, 5, 9, 1], [0, 1, 2, 3]])
    with torch.inference_mode():
        refined = fused.serial.refine(fused.serial.prepare(states), previous, before)
        expected = net.serial(states, target.embedding[previous], target.embedding[before])
        torch.testing.assert_close(refined, expected, atol=1e-5, rtol=1e-4)
        logits = fused.head(refined)
        peak = logits.amax(-1) - logits.logsumexp(-1)
        sure = net.serial.confidence_logits(expected, target.embedding[previous], peak) / net.serial.temperatures[slots]
        found = fused.serial.confidence(refined, previous, logits, slots)
        assert found.tolist() == pytest.approx(sure.sigmoid().tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "weight_format", [WeightFormat(torch.bfloat16, (True,) * len(ROW_COUNTS)), WeightFormat(torch.bfloat16)]
)
@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
def test_bfloat16_weights_draft_nearly_the_same_distributions(target, kind, weight_format, monkeypatch):  # noqa: F811
    """Over the draft vocabulary, the first slot's q with bfloat16 weights lies within rounding of the exact one."""
    if any(weight_format.use_packed) and not can_pack(torch.zeros(2, 2, dtype=torch.bfloat16)):
        pytest.skip("no reordered bfloat16 product on this processor")
    exact = ready(make(kind, target, temperature=1.0), target).propose([request(0, PROMPT[-1], 4)]).on_host()
    monkeypatch.setattr(block_weights, "pick_format", lambda *_, **__: weight_format)
    bfloat16 = ready(make(kind, target, temperature=1.0), target).propose([request(0, PROMPT[-1], 4)]).on_host()
    p, q = (dense(x.draft_logits[0])[0].softmax(-1) for x in (exact, bfloat16))
    assert 0 < (p - q).abs().sum() / 2 < 0.1
