"""Models cut to their first layers, and rotary positions that change in the middle of a text."""

import pytest
import torch
import transformers

from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.engine.loop import decode
from specviz.errors import SettingsError
from specviz.models.causal import CausalModel
from specviz.models.config_limits import first_layers_config, position_limit
from specviz.trace.records import Settings

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "smollm3": {"no_rope_layer_interval": 2},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "mlp_only_layers": [3],
    },
    "gpt_neox": {},
    "gpt2": {},
}


def causal(kind: str, **options) -> CausalModel:
    """A random model of a family, with weights large enough that its texts vary."""
    config = transformers.AutoConfig.for_model(kind, **SIZES | FAMILIES.get(kind, {}) | options)
    torch.manual_seed(3)
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.3)
    return CausalModel(module)


def texts(target: CausalModel, k: int, prompts: list[list[int]], new: int) -> tuple[list[list[int]], int]:
    """Greedy texts of these prompts with the first-layers drafter, and how many drafts were verified."""
    settings = Settings(k=k, temperature=0.0, max_new_tokens=new)
    drafter = first_layers(target, target.first(2), settings) if k else None
    found, drafts = [[] for _ in prompts], 0
    for round_ in decode(target, drafter, prompts, settings, eos_ids=frozenset()):
        for verdict in round_.rows:
            found[verdict.row] += verdict.emitted
            drafts += verdict.verified
    return found, drafts


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_first_layers_of_a_family_draft_and_greedy_text_stays_plain(kind):
    target = causal(kind)
    assert target.first(2).layers == 2
    prompts = [[5, 6, 7, 8, 9], [40, 41]]
    plain, none = texts(target, 0, prompts, 16)
    fast, drafts = texts(target, 3, prompts, 16)
    assert fast == plain and none == 0 and drafts > 0


def test_every_per_layer_list_is_cut_and_no_other():
    raw = {
        "num_hidden_layers": 4,
        "layer_types": ["a", "b", "a", "b"],
        "kv_heads_of": (1, 2, 3, 4),
        "mlp_only_layers": [1, 3],
        "eos_token_id": [1, 2, 3, 4],
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4},
        "architectures": ["A"],
        "text_config": {"num_hidden_layers": 6, "no_rope_layers": [1, 1, 0, 1, 1, 0]},
    }
    cut = first_layers_config(raw, 2)
    assert cut["num_hidden_layers"] == cut["text_config"]["num_hidden_layers"] == 2
    assert cut["layer_types"] == ["a", "b"] and cut["kv_heads_of"] == (1, 2) and cut["mlp_only_layers"] == [1]
    assert cut["text_config"]["no_rope_layers"] == [1, 1]
    assert all(cut[name] == raw[name] for name in ("eos_token_id", "rope_parameters", "architectures"))


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": 24,
    "factor": 128 / 24,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@pytest.mark.parametrize("rope, limit", [(LONGROPE, 24), (DYNAMIC, 32)], ids=["longrope", "dynamic"])
def test_texts_end_where_rotary_positions_would_change_and_are_exact_up_to_there(rope, limit):
    target = causal("llama", rope_parameters=rope, max_position_embeddings=max(limit, 32))
    assert target.max_positions == limit and str(limit) in target.position_note
    prompts = [[5, 6, 7, 8, 9], [40, 41, 42]]
    new = limit - 5
    assert texts(target, 4, prompts, new)[0] == texts(target, 0, prompts, new)[0]
    before = target.forwards
    with pytest.raises(SettingsError, match=f"room for 4.*Beyond {limit} tokens"):
        texts(target, 4, prompts, new + 1)
    assert target.forwards == before, "it is refused before anything runs"


def test_longrope_with_equal_lists_never_changes():
    """As Llama 3.1's frequencies come out of a GGUF file."""
    same = LONGROPE | {"long_factor": LONGROPE["short_factor"]}
    config = transformers.LlamaConfig(**SIZES, rope_parameters=same)
    assert position_limit(config) == (128, "")


def test_rotary_positions_by_type_of_layer_are_looked_through():
    config = transformers.AutoConfig.for_model("gemma3_text", **SIZES | FAMILIES["gemma3_text"])
    config.rope_parameters["full_attention"] = LONGROPE
    assert position_limit(config)[0] == 24


def test_other_rotary_positions_set_no_limit_of_their_own():
    for rope in ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0}):
        config = transformers.LlamaConfig(**SIZES, rope_parameters=rope | {"rope_theta": 1e4})
        assert position_limit(config) == (128, "")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_drafter_with_a_shorter_context_stops_drafting_where_it_ends(kind):
    """Each row by itself: the longer prompt stops first, and a prompt beyond the drafter's context is never drafted."""
    target = causal(kind)
    short = causal(kind, max_position_embeddings=24, num_hidden_layers=2)
    settings = Settings(k=4, temperature=0.0, max_new_tokens=40)
    prompts = [[5, 6, 7], list(range(20)), list(range(30))]
    plain = texts(target, 0, prompts, 40)[0]
    drafter = AutoregressiveDrafter(short, target.vocab_size, settings)
    found, last_drafted = [list(p) for p in prompts], [0, 0, 0]
    for round_ in decode(target, drafter, prompts, settings, eos_ids=frozenset()):
        for verdict in round_.rows:
            if verdict.proposed:
                last_drafted[verdict.row] = len(found[verdict.row]) + verdict.proposed
            found[verdict.row] += verdict.emitted
    assert [text[len(p) :] for text, p in zip(found, prompts)] == plain
    assert last_drafted[0] == last_drafted[1] == short.max_positions + 1 and last_drafted[2] == 0
