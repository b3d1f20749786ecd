"""Checks that a converted config keeps every value of a GGUF file's metadata; adds missing ones or refuses the file.

transformers converts the values it knows and silently drops the rest. A dropped value (scaled RoPE, a soft cap, biases)
makes a different model of the same weights.
"""

from __future__ import annotations

import math
from typing import Any

from specviz.errors import FetchError

_ATTRIBUTES = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "block_count": ("num_hidden_layers",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "ffn_hidden_size", "n_inner"),
    "vocab_size": ("vocab_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "attention.key_length": ("head_dim",),
    "attention.value_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "use_parallel_residual": ("use_parallel_residual",),
}
"""Keys of an architecture -> names that the same value has in configs of transformers."""
_SETTABLE = ("context_length", "attention.key_length", "attn_logit_softcapping", "final_logit_softcapping")
"""Keys that transformers drops for some architectures and that mean the same in every config."""
_NEUTRAL = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "nextn_predict_layers": 0,
    "attention.sliding_window": 0,
    "tensor_data_layout": "Meta AI original pth",
    "rope.scaling.finetuned": True,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Values without effect in any config."""
_ROPE = (
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scale_linear",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "attention.scale",
)
"""Keys handled by `_set_rope` and `_fits`."""
_TOKENIZER = {
    "model",
    "pre",
    "tokens",
    "scores",
    "token_type",
    "token_type_count",
    "merges",
    "add_space_prefix",
    "add_bos_token",
    "add_eos_token",
    "remove_extra_whitespaces",
    *(
        f"{name}_token_id"
        for name in (
            "bos",
            "eos",
            "eot",
            "eom",
            "unknown",
            "padding",
            "seperator",
            "cls",
            "mask",
            "prefix",
            "suffix",
            "middle",
            "fim_pre",
            "fim_suf",
            "fim_mid",
            "fim_pad",
            "fim_rep",
            "fim_sep",
        )
    ),
}
_OUTSIDE = ("general.", "GGUF.", "quantize.", "tokenizer.chat_template", "tokenizer.huggingface")
"""Beginnings of keys that do not bear on what the model computes."""
ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
)
"""Control tokens at which llama.cpp ends a text, by their spelling."""
_CONTROL = 3
FACTORS = "rope_freqs.weight"
"""A tensor that divides the rotary frequencies, one factor each, as in Llama 3.1."""


def end_tokens(facts: dict[str, Any], tokens: list[str]) -> list[int]:
    """Ids that end a text: of the keys for it, and control tokens of a known spelling."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom")]
    found: set[int] = {facts[key] for key in keys if facts.get(key) is not None}
    kinds = facts.get("tokenizer.ggml.token_type") or []
    named = {text: i for i, (text, kind) in enumerate(zip(tokens, kinds)) if kind == _CONTROL and text in ENDS}
    if {"<|return|>", "<|call|>"} <= named.keys():  # there <|end|> ends a part of an answer only
        named.pop("<|end|>", None)
    return sorted(found | set(named.values()))


def complete(config, facts: dict[str, Any], factors: list[float] | None, ends: list[int], name: str) -> None:
    """Add to transformers' config of a GGUF file what it left out. Raises FetchError with the key for what cannot be.

    factors: of FACTORS, if the file has it. ends: ids that end a text. name: of the file.
    """
    prefix = f"{facts['general.architecture']}."
    own = {key.removeprefix(prefix): value for key, value in facts.items() if key.startswith(prefix)}
    for key, value in facts.items():
        if not key.startswith((prefix, *_OUTSIDE)) and not _outside_is_known(key, value):
            _refuse(name, key, value)
    heads = own.get("attention.head_count")
    if isinstance(heads, int) and getattr(config, "head_dim", None) and "attention.key_length" not in own:
        own["attention.key_length"] = own["embedding_length"] // heads
    for key in _SETTABLE:
        for attribute in _ATTRIBUTES[key]:
            if key in own and hasattr(config, attribute):
                setattr(config, attribute, own[key])
    _set_rope(config, own, factors, name, prefix)
    for key, value in own.items():
        if not _fits(config, key, value, own):
            _refuse(name, prefix + key, value)
    if ends:
        config.eos_token_id = ends[0] if len(ends) == 1 else ends


def _outside_is_known(key: str, value) -> bool:
    """Whether a key of no architecture is one that is dealt with elsewhere, or of no effect."""
    if key.startswith("tokenizer.ggml."):
        short = key.removeprefix("tokenizer.ggml.")
        return short in _TOKENIZER or (short == "add_sep_token" and not value)
    return key == "split.tensors.count" or (key.startswith("split.") and value in (0, 1))


def _fits(config, key: str, value, own: dict[str, Any]) -> bool:
    """Whether the config has the same value, or the value has no effect."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if key in _NEUTRAL and _same(value, _NEUTRAL[key]):
        return True
    if key == "attention.scale":
        return _same(value, head**-0.5)
    if key == "rope.dimension_count":
        return value == int(head * (_rope_of(config).get("partial_rotary_factor") or 1.0))
    if key in _ROPE:
        return True
    if key in ("attention.key_length", "attention.value_length"):
        return value == head
    if key == "attention.sliding_window" and value >= own.get("context_length", math.inf):
        return True
    values = [getattr(config, attribute) for attribute in _ATTRIBUTES.get(key, ()) if hasattr(config, attribute)]
    if key == "feed_forward_length" and all(found is None for found in values):
        return value == 4 * config.hidden_size
    if key == "attention.head_count_kv" and not values:
        return value == config.num_attention_heads
    return any(_same(found, value) for found in values)


def _set_rope(config, own: dict[str, Any], factors: list[float] | None, name: str, prefix: str) -> None:
    """Write rotary base and scaling into rope_parameters as transformers reads them."""
    kind = own.get("rope.scaling.type", "linear")
    factor = own.get("rope.scaling.factor", own.get("rope.scale_linear", 0.0)) or 1.0
    scaled = kind not in ("none", "linear") or (kind == "linear" and factor != 1.0)
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        full = _rope_of(config).get("rope_theta")
        if scaled or factors or ("rope.freq_base" in own and not _same(full, own["rope.freq_base"])):
            _refuse(name, FACTORS if factors else prefix + "rope", own.get("rope.freq_base", kind))
        return
    made: dict[str, Any] = {"rope_type": "default"}
    if scaled and kind == "linear":
        made = {"rope_type": "linear", "factor": factor}
    elif scaled and kind == "yarn":
        made = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": own.get("rope.scaling.original_context_length", own["context_length"]),
            "beta_fast": own.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": own.get("rope.scaling.yarn_beta_slow", 1.0),
        }
    elif scaled:
        _refuse(name, prefix + "rope.scaling.type", kind)
    if factors and any(factor != 1.0 for factor in factors):
        if scaled:
            _refuse(name, f"{FACTORS} with {prefix}rope.scaling.type", kind)
        # The same factors for short and for long texts: positions keep their meaning at every length.
        made = {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": own["context_length"],
        }
    kept = {key: rope[key] for key in ("partial_rotary_factor",) if key in rope}
    config.rope_parameters = made | kept | {"rope_theta": own.get("rope.freq_base", 10000.0)}


def _rope_of(config) -> dict:
    """The rotary settings of a config; of its full attention where layers differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("full_attention", rope) if isinstance(rope, dict) else {}


def _same(one, other) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-6) if numbers else one == other


def _refuse(name: str, key: str, value) -> None:
    raise FetchError(
        f"{name} sets {key} ({str(value)[:40]}), which would be lost in the conversion, so the model "
        "would be another: choose the same model as safetensors, or another one."
    )
