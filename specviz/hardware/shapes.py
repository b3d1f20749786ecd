"""Model shapes without weights: built-in ones, and those of any config.json.

The cost of a pass depends on the shape only, so it can be modelled for any device. The built-in shapes are given by the
relevant keys of the config.json that each model is published with.
"""

from __future__ import annotations

import json
from dataclasses import replace

from specviz.errors import SettingsError
from specviz.hardware.config_shapes import model_shape
from specviz.hardware.costs import ModelShape
from specviz.hardware.quantised import stored

LARGEST_CONFIG = 1_000_000
"""Bytes of a config.json that are read at most."""


def _dense(
    kind: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    tied: bool = False,
    positions: int = 32768,
    **more,
) -> dict:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": positions,
        "dtype": "bfloat16",
        **more,
    }


CONFIGS: dict[str, dict] = {
    "SmolLM2-135M": _dense("llama", 30, 576, 9, 3, 64, 1536, 49152, tied=True, positions=8192),
    "Qwen3-4B": _dense("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, tied=True, positions=40960),
    "Mistral-7B-v0.3": _dense("mistral", 32, 4096, 32, 8, 128, 14336, 32768, sliding_window=None),
    "Llama-3.1-8B": _dense("llama", 32, 4096, 32, 8, 128, 14336, 128256, positions=131072),
    "gpt-oss-20b": _dense(
        "gpt_oss",
        24,
        2880,
        64,
        8,
        64,
        2880,
        201088,
        positions=131072,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 12,
        num_local_experts=32,
        num_experts_per_tok=4,
        quantization_config={"quant_method": "mxfp4"},
    ),
    "Qwen3-32B": _dense("qwen3", 64, 5120, 64, 8, 128, 25600, 151936, positions=40960),
    "Llama-3.1-70B": _dense("llama", 80, 8192, 64, 8, 128, 28672, 128256, positions=131072),
    "DeepSeek-V3": _dense(
        "deepseek_v3",
        61,
        7168,
        128,
        128,
        128,
        18432,
        129280,
        positions=163840,
        q_lora_rank=1536,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_routed_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=2048,
        n_shared_experts=1,
        first_k_dense_replace=3,
        quantization_config={"quant_method": "fp8"},
    ),
}
"""Well-known models by name, smallest first."""


def from_config(config: dict, name: str | None = None) -> ModelShape:
    """The shape of a config.json, with the bytes per weight of its dtype and quantisation. Raises SpecVizError."""
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    width = {"float32": 4.0}.get(str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype")), 2.0)
    shape = model_shape(config, weight_bytes=width, cache_bytes=max(2.0, width), name=name)
    found = stored(config if text is config else text | config, width)
    if found is None:
        return shape
    return replace(shape, weight_bytes=found.layers or width, expert_weight_bytes=found.experts, head_bytes=found.head)


SHAPES: tuple[ModelShape, ...] = tuple(from_config(config, name) for name, config in CONFIGS.items())


def shape(name: str) -> ModelShape:
    """The built-in shape of this name. Raises SettingsError with the names there are."""
    for entry in SHAPES:
        if entry.name.lower() == name.strip().lower():
            return entry
    raise SettingsError(f"There is no built-in shape {name[:60]!r}. There are: {', '.join(CONFIGS)}.")


def parse_config(text: str | bytes) -> dict:
    """A config.json that was pasted or uploaded. Raises SettingsError for anything that is no model's config."""
    if len(text) > LARGEST_CONFIG:
        raise SettingsError("This file is larger than any config.json: give the config, not the weights.")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise SettingsError("This is no JSON: give the text of a model's config.json, braces included.") from None
    if not isinstance(config, dict) or not (config.get("model_type") or config.get("text_config")):
        raise SettingsError("This JSON names no model_type, so it is no model's config.json.")
    return config
