"""Counted FLOPs and bytes: by hand, against PyTorch's own counter, and against the known slips of others."""

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from specviz.errors import SettingsError, SpecVizError
from specviz.hardware.config_shapes import KNOWN, model_shape
from specviz.hardware.costs import ModelShape, breakdown, pass_cost
from specviz.trace.records import Cost

TINY = ModelShape(
    name="tiny",
    layers=2,
    hidden=8,
    heads=4,
    kv_heads=2,
    head_dim=3,
    ffn=16,
    vocab=10,
    weight_bytes=2,
    cache_bytes=1,
    activation_bytes=4,
)


def test_flops_of_a_small_model_by_hand():
    # projections 8x12 + 8x6 + 8x6 + 12x8 = 288 weights, feed-forward 3 x 8x16 = 384, head 8x10 = 80
    parts = breakdown(TINY, [1], [5], 1).flops
    assert parts == {
        "attention projections": 2 * 2 * 288,
        "attention": 2 * 6 * (2 * 2 * 4 * 3),
        "feed-forward": 2 * 2 * 384,
        "head": 2 * 80,
    }


def test_bytes_of_a_small_model_by_hand():
    parts = breakdown(TINY, [1], [5], 1).bytes
    through = 2 * ((8 + 12) + 2 * (8 + 6) + (12 + 8) + 2 * (8 + 16) + (16 + 8)) + 8 + 10
    assert parts == {
        "weights": 2 * (288 + 384) * 2,
        "head": 80 * 2,
        "embedding": 8 * 2,
        "cache read": 2 * 5 * 12,
        "cache write": 2 * 12,
        "activations": through * 4,
    }
    assert pass_cost(TINY, [1], [5], 1) == Cost(sum(breakdown(TINY, [1], [5], 1).flops.values()), sum(parts.values()))


def test_causal_part_of_a_verify_pass():
    # 3 positions on 5 cached keys see 6, 7 and 8 keys
    assert breakdown(TINY, [3], [5], 3).flops["attention"] == 2 * (6 + 7 + 8) * 48


@pytest.mark.parametrize("context", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("new", [1, 2, 4, 7])
@pytest.mark.parametrize("window", [1, 4, 6])
def test_sliding_window_counts_as_the_mask_does(context, new, window):
    shape = ModelShape(
        name="w", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=16, vocab=10, windows=(window, None)
    )
    query, key = torch.arange(context, context + new)[:, None], torch.arange(context + new)[None]
    causal = key <= query
    seen = (causal & (query - key < window)).sum() + causal.sum()
    parts = breakdown(shape, [new], [context], 0)
    assert parts.flops["attention"] == int(seen) * 48
    touched = (causal & (query - key < window))[:, :context].any(0).sum() + context
    assert parts.bytes["cache read"] == int(touched) * 12 * 4


def test_a_packed_pass_reads_the_weights_once():
    one, three = breakdown(TINY, [4], [7], 4), breakdown(TINY, [4] * 3, [7] * 3, 12)
    assert three.bytes["weights"] == one.bytes["weights"] and three.bytes["head"] == one.bytes["head"]
    assert three.bytes["cache read"] == 3 * one.bytes["cache read"]
    assert three.cost.flops == 3 * one.cost.flops


def test_only_the_asked_rows_go_through_the_head():
    assert breakdown(TINY, [9], [0], 0).flops["head"] == 0 == breakdown(TINY, [9], [0], 0).bytes["head"]
    assert breakdown(TINY, [9], [0], 2).flops["head"] == 2 * 2 * 80


def test_grouped_queries_shrink_the_cache_but_not_the_arithmetic():
    """Known fault: key-value bytes counted with the query heads."""
    full = ModelShape(name="mha", layers=4, hidden=64, heads=8, kv_heads=8, head_dim=8, ffn=128, vocab=100)
    grouped = ModelShape(name="gqa", layers=4, hidden=64, heads=8, kv_heads=2, head_dim=8, ffn=128, vocab=100)
    a, b = breakdown(full, [1], [50], 1), breakdown(grouped, [1], [50], 1)
    assert a.bytes["cache read"] == 4 * b.bytes["cache read"]
    assert a.flops["attention"] == b.flops["attention"]


def test_embedding_is_a_lookup_not_arithmetic():
    """Known fault: the input embedding counted as a matrix product, or read whole."""
    small, large = (
        ModelShape(name="v", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=16, vocab=10),
        ModelShape(name="v", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=16, vocab=10_000),
    )
    a, b = breakdown(small, [5], [0], 0), breakdown(large, [5], [0], 0)
    assert a == b
    assert a.bytes["embedding"] == 5 * 8 * 4


def test_units_are_flops_and_bytes_not_thousands():
    """Known fault: a slip by 1000. Llama-3.1-8B in 16 bit: about 15 GFLOP and 15 GB per plain step."""
    llama = ModelShape(
        name="llama",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        ffn=14336,
        vocab=128256,
        weight_bytes=2,
        cache_bytes=2,
        activation_bytes=2,
    )
    assert llama.parameters == pytest.approx(8.03e9, rel=0.01)
    cost = pass_cost(llama, [1], [0], 1)
    assert cost.flops == pytest.approx(2 * 7.5e9, rel=0.01)
    assert cost.bytes == pytest.approx(2 * 7.5e9, rel=0.01)
    assert llama.cache_bytes_per_token == 32 * 2 * 8 * 128 * 2


def test_a_tied_head_is_one_parameter_but_read_by_the_pass():
    tied, untied = (
        ModelShape(name="t", layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, ffn=16, vocab=10, tied=t)
        for t in (True, False)
    )
    assert untied.parameters - tied.parameters == 80
    assert pass_cost(tied, [1], [0], 1) == pass_cost(untied, [1], [0], 1)


def test_more_tokens_pick_more_experts_up_to_all():
    mixture = ModelShape(
        name="moe",
        layers=1,
        hidden=8,
        heads=4,
        kv_heads=2,
        head_dim=3,
        ffn=0,
        vocab=10,
        experts=4,
        active_experts=2,
        expert_ffn=16,
    )
    expert = 3 * 8 * 16

    def read(n: int) -> int:
        return breakdown(mixture, [n], [0], 0).bytes["weights"] - (288 + 8 * 4) * 4

    assert read(1) == 2 * expert * 4
    assert read(2) == 3 * expert * 4, "4 x (1 - 1/2^2): even, independent routing"
    assert read(50) == 4 * expert * 4
    assert breakdown(mixture, [3], [0], 0).flops["feed-forward"] == 3 * 2 * (2 * expert + 8 * 4)


def test_experts_may_be_stored_smaller():
    shape = ModelShape(
        name="moe",
        layers=1,
        hidden=8,
        heads=4,
        kv_heads=2,
        head_dim=3,
        ffn=0,
        vocab=10,
        experts=4,
        active_experts=1,
        expert_ffn=16,
        weight_bytes=2,
        expert_weight_bytes=0.5,
    )
    assert shape.stored_bytes == 4 * 3 * 8 * 16 * 0.5 + 2 * (288 + 8 * 4 + 160)


def test_latent_attention_keeps_a_narrow_cache():
    """DeepSeek-V3's published sizes: 671 billion parameters, 37 billion active, 576 cached numbers a layer."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "vocab_size": 129280,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "tie_word_embeddings": False,
    }
    shape = model_shape(config, weight_bytes=1, cache_bytes=2)
    assert shape.parameters == pytest.approx(671e9, rel=0.001)
    assert shape.cache_bytes_per_token == 61 * 576 * 2
    active = pass_cost(shape, [1], [0], 1).flops / 2
    assert active == pytest.approx(37e9, rel=0.025), "less the embedding, which is no arithmetic"


def test_nothing_costs_nothing():
    assert pass_cost(TINY, [], [], 0) == Cost(0, 0) == pass_cost(TINY, [0, 0], [5, 6], 0)


@pytest.mark.parametrize("arguments", [([1], [1, 2], 1), ([1], [1], 2), ([-1], [1], 0), ([1], [-1], 1)])
def test_lengths_that_do_not_fit_are_refused(arguments):
    with pytest.raises(SettingsError):
        pass_cost(TINY, *arguments)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "mamba"},
        {"model_type": "llama", "hidden_size": 64},
        {"model_type": "llama", "hidden_size": "64", "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 3},
    ],
)
def test_an_unknown_or_incomplete_config_is_refused_in_a_sentence(config):
    with pytest.raises(SpecVizError, match=r"\.$"):
        model_shape(config)


# ---------------------------------------------------------------- against real modules and PyTorch's counter

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 200,
    "intermediate_size": 96,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES, num_key_value_heads=2),
    "mistral": transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=8),
    "qwen2": transformers.Qwen2Config(**SIZES, num_key_value_heads=2),
    "qwen3": transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=24),
    "smollm3": transformers.SmolLM3Config(
        **SIZES, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=8,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
    ),
    "gpt2": transformers.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=200, n_positions=64),
    "gpt_neox": transformers.GPTNeoXConfig(**SIZES, max_position_embeddings=64),
    "mixtral": transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        mlp_only_layers=[0],
    ),
    "gpt_oss": transformers.GptOssConfig(
        **SIZES, num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8
    ),
}


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config = CONFIGS[name]
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def test_parameters_of_latent_attention_agree_exactly_with_the_module():
    config = transformers.DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        moe_intermediate_size=32,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=10,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(p.numel() for p in model.parameters()) + 3 * 8  # the routers' balancing bias is a buffer
    assert model_shape(config).parameters == counted


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_agree_exactly_with_the_module(name):
    model = _model(name)
    assert model_shape(model.config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_agree_with_pytorch_to_one_per_cent(name):
    """Without a cache the module computes the whole square of scores, masked or not. So compare like with like:
    the linear layers and the head as they are, and attention with every position meeting every key."""
    model, tokens = _model(name), 24
    shape = model_shape(model.config)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(torch.arange(tokens)[None], use_cache=False)
    ours = breakdown(shape, [tokens], [0], tokens).flops
    square = shape.layers * tokens * tokens * 4 * shape.heads * shape.head_dim
    assert ours["attention"] < square, "causal masks and windows spare work"
    assert sum(ours.values()) - ours["attention"] + square == pytest.approx(counter.get_total_flops(), rel=0.01)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "gpt_neox", "mixtral"])
def test_one_token_on_a_cache_agrees_with_pytorch(name):
    """One position on a full cache meets every key, so here our causal count itself is checked."""
    model = _model(name)
    with torch.inference_mode():
        cache = model(torch.arange(20)[None], use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            model(torch.tensor([[3]]), cache=cache, use_cache=True)
    ours = pass_cost(model_shape(model.config), [1], [20], 1).flops
    assert ours == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_config_object_and_its_dict_agree():
    for config in CONFIGS.values():
        assert model_shape(config, name="x") == model_shape(config.to_dict(), name="x")


def test_every_known_architecture_is_tried_here():
    tried = {c.model_type for c in CONFIGS.values()}
    assert set(KNOWN) - tried == {"deepseek_v3"}


def test_text_part_of_a_nested_config_is_used():
    inner = CONFIGS["gemma3"].to_dict()
    nested = {"model_type": "gemma3", "text_config": inner | {"model_type": "gemma3_text"}}
    assert model_shape(nested, name="x") == model_shape(inner, name="x")
