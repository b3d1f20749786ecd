"""Models of any config with random weights: they forward, are as large as counted, and are refused in a sentence."""

import pytest
import torch
import transformers

from specviz.bench import step_times
from specviz.errors import MemoryBudgetError, PairError, SpecVizError
from specviz.hardware import shapes
from specviz.models import random_weights
from specviz.worker import Job, Stopped

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 200,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=24),
    "gpt_neox": transformers.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_config_becomes_a_model_whose_passes_can_be_timed(name, precision):
    model = random_weights.build(CONFIGS[name].to_dict(), "cpu", precision, name)
    assert model.shape.parameters == sum(p.numel() for p in model.module.parameters())
    wanted = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert {p.dtype for p in model.module.parameters()} == {wanted} and model.shape.weight_bytes == wanted.itemsize
    cache = model.new_cache()
    cache.add(0, 8)
    logits = model.forward(cache, [0], [[1, 2, 3]]).logits[0]
    assert torch.isfinite(logits).all() and logits.std() > 0
    assert [s.kind for s in step_times.measure(model, [2], [1], 4, 1)] == ["prefill", "plain", "verify"]


def test_what_does_not_fit_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(random_weights, "free_memory_bytes", lambda device: 10**9)
    with pytest.raises(MemoryBudgetError, match=r"Llama-3.1-70B .* needs about .* only be modelled"):
        random_weights.build(shapes.CONFIGS["Llama-3.1-70B"], "cpu", "bf16", "Llama-3.1-70B")


@pytest.mark.parametrize("name", ["gpt-oss-20b", "DeepSeek-V3"])
def test_what_the_engine_cannot_forward_is_modelled_only(monkeypatch, name):
    monkeypatch.setattr(random_weights, "free_memory_bytes", lambda device: 10**15)
    with pytest.raises(PairError, match="modelled only"):
        random_weights.build(shapes.CONFIGS[name], "cpu", "bf16", name)


def test_a_config_that_makes_no_model_is_a_sentence():
    broken = CONFIGS["llama"].to_dict() | {"rope_parameters": {"rope_type": "nonsense"}, "rope_scaling": None}
    with pytest.raises(SpecVizError, match=r"\.$"):
        random_weights.build(broken, "cpu", "fp32", "broken")


def test_making_one_can_be_stopped():
    with pytest.raises(Stopped):
        random_weights.build(CONFIGS["llama"].to_dict(), "cpu", "fp32", "x", job=Job(stop=lambda: True))
