"""Models by family: their first layers as drafter, where their rotary positions change, and which cannot run."""

import json

import pytest
import torch
import transformers

from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.engine.loop import decode
from specviz.errors import FetchError, SettingsError
from specviz.hardware import shapes
from specviz.loader import model_folder
from specviz.models.causal import CausalModel
from specviz.models.configs import check_runs, first_layers_of
from specviz.trace.records import Settings

PROMPTS = [[1, 2, 3], [7] * 9, [4]]
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "smollm3": {"no_rope_layer_interval": 2},
    "mistral": {"sliding_window": 6, "head_dim": 8},
    "gemma3_text": {"sliding_window": 6, "head_dim": 8, "query_pre_attn_scalar": 8},
    "qwen2-sliding": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3},
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": 24,
    "factor": 4.0,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def model(family: str = "llama", layers: int = 4, seed: int = 0, **more) -> CausalModel:
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(
        family.split("-")[0],
        **{
            "vocab_size": 60,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 96,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            **more,
        },
    )
    module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weight in module.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.15)
    return CausalModel(module)


def texts(target, drafter, prompts=PROMPTS, new=20, k=4):
    """The rows' texts, and how many tokens were drafted for each round's rows by the row's length."""
    found, drafted = [[] for _ in prompts], [[] for _ in prompts]
    for round_ in decode(target, drafter, prompts, Settings(k=k, max_new_tokens=new)):
        for v in round_.rows:
            drafted[v.row].append((len(prompts[v.row]) + len(found[v.row]), v.proposed))
            found[v.row] += v.emitted
    return found, drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_of_every_family_draft_and_leave_the_greedy_text_as_it_is(family):
    target = model(family, **FAMILIES[family])
    settings = Settings(k=4, max_new_tokens=20)
    found, drafted = texts(target, first_layers(target, target.first(2), settings))
    assert found == texts(target, None)[0]
    assert all(sum(n for _, n in row) > 0 for row in drafted)


def test_every_list_with_one_entry_per_layer_is_cut_whatever_its_name():
    config = {
        "num_hidden_layers": 4,
        "any_name": [1, 2, 3, 4],
        "eos_token_id": [5, 6],
        "mlp_only_layers": [0, 3],
        "max_window_layers": 4,
        "text_config": {"num_hidden_layers": 4, "layer_types": ("a", "b", "c", "d")},
    }
    assert first_layers_of(config, 2) == {
        "num_hidden_layers": 2,
        "any_name": [1, 2],
        "eos_token_id": [5, 6],
        "mlp_only_layers": [0],
        "max_window_layers": 2,
        "text_config": {"num_hidden_layers": 2, "layer_types": ("a", "b")},
    }
    assert config["any_name"] == [1, 2, 3, 4]


@pytest.mark.parametrize("rope, border", [(LONGROPE, 24), (DYNAMIC, 96)])
def test_a_text_that_would_cross_the_border_of_its_rotary_positions_is_refused_before_anything_runs(rope, border):
    target = model(rope_parameters=rope)
    prompt = [3] * (border - 19)
    with pytest.raises(SettingsError, match="has room for"):
        texts(target, AutoregressiveDrafter(target, target.vocab_size, Settings()), [[1], prompt])
    assert target.forwards == 0


@pytest.mark.parametrize("rope, border", [(LONGROPE, 24), (DYNAMIC, 96)])
def test_rows_up_to_the_border_are_those_of_plain_decoding_alone(rope, border):
    target, draft = model(rope_parameters=rope), model(layers=1, seed=1)
    prompts = [[3, 5] * ((border - 20) // 2), [1, 2]]
    drafter = AutoregressiveDrafter(draft, target.vocab_size, Settings(k=4))
    assert texts(target, drafter, prompts)[0] == [texts(target, None, [p])[0][0] for p in prompts]


@pytest.mark.parametrize("more", [{"max_position_embeddings": 16}, {"rope_parameters": LONGROPE}])
def test_a_drafter_stops_drafting_where_its_own_context_ends(more):
    target, draft = model(), model(layers=1, seed=1, **more)
    settings = Settings(k=4, max_new_tokens=40)
    prompts = [[1, 2, 3], [4] * 30]
    found, drafted = texts(target, AutoregressiveDrafter(draft, target.vocab_size, settings), prompts, new=40)
    assert found == texts(target, None, prompts, new=40)[0]
    assert all(n <= max(0, draft.max_positions - length + 1) for row in drafted for length, n in row)
    assert sum(n for _, n in drafted[0]) > 0 and sum(n for _, n in drafted[1]) == 0


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "deepseek_v3", "kv_lora_rank": 512},
        {"model_type": "opt"},
        {"model_type": "new", "kv_lora_rank": 16},
        {"model_type": "gemma2", "attn_logit_softcapping": 50.0},
        {"model_type": "falcon", "alibi": True},
    ],
)
def test_models_that_cannot_run_are_refused_from_their_config_alone(config, tmp_path):
    with pytest.raises(FetchError, match="SpecViz cannot run"):
        check_runs(config, "it")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FetchError, match="SpecViz cannot run"):
        model_folder.inspect(tmp_path)


@pytest.mark.parametrize(
    "quantised, bytes_",
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + 2.5 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0 + 4 / 128**2),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": True}}
                },
            },
            0.5 + 2 / 128,
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            0.5 + 4 / 64,
        ),
    ],
)
def test_bytes_of_a_quantised_weight_are_read_from_the_config_and_the_head_stays_as_it_is(quantised, bytes_):
    config = shapes.CONFIGS["Llama-3.1-8B"]
    plain, shape = shapes.from_config(config), shapes.from_config(config | {"quantization_config": quantised})
    tables = 2 * plain.vocab * plain.hidden
    assert shape.weight_bytes == pytest.approx(bytes_) and shape.head_bytes == 2
    assert shape.stored_bytes == pytest.approx((plain.parameters - tables) * bytes_ + 2 * tables)


def test_mlx_quantises_the_tables_too():
    shape = shapes.from_config(shapes.CONFIGS["Llama-3.1-8B"] | {"quantization": {"bits": 4, "group_size": 64}})
    assert shape.weight_bytes == shape.head_bytes == 0.5 + 4 / 64
    assert shape.stored_bytes == pytest.approx(shape.parameters * (0.5 + 4 / 64))


@pytest.mark.parametrize(
    "quantised",
    [
        {"quant_method": "torchao"},
        {"quant_method": "unheard-of"},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "compressed-tensors"},
        {"bits": 4, "group_size": 64, "model.layers.0": {"bits": 8}},
        "int4",
    ],
)
def test_bits_that_a_config_does_not_tell_are_not_known(quantised):
    with pytest.raises(SettingsError, match="not known"):
        shapes.from_config(shapes.CONFIGS["Llama-3.1-8B"] | {"quantization_config": quantised})
