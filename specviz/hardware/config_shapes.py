"""ModelShape from a Hugging Face config: the architectures whose cost can be counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specviz.errors import SpecVizError
from specviz.hardware.costs import ModelShape

_ROTARY = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "mixtral",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v3",
    "smollm3",
)
KNOWN = (*_ROTARY, "gpt2", "gpt_neox")
"""Model types (the `model_type` of a config.json) whose cost can be counted."""
_TIED_BY_DEFAULT = ("gpt2", "gemma3_text", "smollm3")


def model_shape(
    config: object,
    weight_bytes: float = 4.0,
    cache_bytes: float = 4.0,
    activation_bytes: float | None = None,
    name: str | None = None,
) -> ModelShape:
    """The shape in a Hugging Face config (the object, or the dict of a config.json).

    `activation_bytes` follows `cache_bytes` if not given. Raises SpecVizError for an unknown architecture, and for a
    config that lacks a needed size.
    """
    return replace(
        _sizes(config, name),
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        activation_bytes=cache_bytes if activation_bytes is None else activation_bytes,
    )


def _sizes(config: object, name: str | None) -> ModelShape:
    values = _Config(config)
    kind = values.kind
    name = name or values.get("_name_or_path", "name_or_path") or kind
    if kind == "gpt2":
        return _gpt2(values, name)
    if kind == "gpt_neox":
        return _gpt_neox(values, name)
    if kind in _ROTARY:
        return _rotary(values, name)
    raise SpecVizError(f"The cost of the architecture {kind!r} cannot be counted. Known are: {', '.join(KNOWN)}.")


class _Config:
    """Access to a config that is an object or a dict; the text model's part may be in `text_config`."""

    def __init__(self, config: object):
        self._config = config
        inner, outer_tied = self.get("text_config"), self.get("tie_word_embeddings")
        if inner is not None:
            self._config = inner
        kind = self.get("model_type")
        if not isinstance(kind, str):
            raise SpecVizError("This config does not say its model_type, so the model's cost cannot be counted.")
        self.kind = {"gemma3": "gemma3_text"}.get(kind, kind)
        tied = self.get("tie_word_embeddings")
        tied = outer_tied if tied is None else tied
        self.tied = self.kind in _TIED_BY_DEFAULT if tied is None else bool(tied)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that is set, else `default`."""
        for name in names:
            config = self._config
            value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
            if value is not None:
                return value
        return default

    def need(self, *names: str) -> int:
        """The first of `names` that is set. Raises SpecVizError unless it is a whole number above 0."""
        value = self.get(*names)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecVizError(
                f"This {self.kind} config lacks a usable {names[0]} (it says {value!r}), so the model's "
                "cost cannot be counted."
            )
        return value


def _gpt2(c: _Config, name: str) -> ModelShape:
    layers, hidden, heads = (
        c.need("n_layer", "num_hidden_layers"),
        c.need("n_embd", "hidden_size"),
        c.need("n_head", "num_attention_heads"),
    )
    ffn = c.get("n_inner", default=4 * hidden)
    biases = 3 * hidden + hidden + ffn + hidden
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=c.need("vocab_size"),
        gated=False,
        tied=c.tied,
        learned_positions=c.need("n_positions", "max_position_embeddings"),
        small_weights=layers * (4 * hidden + biases) + 2 * hidden,
    )


def _gpt_neox(c: _Config, name: str) -> ModelShape:
    layers, hidden, heads, ffn = (
        c.need("num_hidden_layers"),
        c.need("hidden_size"),
        c.need("num_attention_heads"),
        c.need("intermediate_size"),
    )
    biases = (4 * hidden if c.get("attention_bias", default=True) else 0) + ffn + hidden
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        vocab=c.need("vocab_size"),
        gated=False,
        tied=c.tied,
        small_weights=layers * (4 * hidden + biases) + 2 * hidden,
    )


def _rotary(c: _Config, name: str) -> ModelShape:
    layers, hidden, heads = c.need("num_hidden_layers"), c.need("hidden_size"), c.need("num_attention_heads")
    kv_heads = c.get("num_key_value_heads", default=heads)
    head_dim = c.get("head_dim", default=256 if c.kind == "gemma3_text" else hidden // heads)
    shape = ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=c.get("intermediate_size", default=0),
        vocab=c.need("vocab_size"),
        tied=c.tied,
        windows=_windows(c, layers),
    )
    shape = _with_experts(c, shape)
    if c.kind == "deepseek_v3":
        rank = c.get("q_lora_rank", default=0)
        shape = replace(
            shape,
            kv_heads=heads,
            query_rank=rank,
            latent_rank=c.need("kv_lora_rank"),
            head_dim=c.need("qk_nope_head_dim"),
            rotary_dim=c.need("qk_rope_head_dim"),
            value_dim=c.need("v_head_dim"),
        )
    return replace(shape, small_weights=_small_weights(c, shape))


def _with_experts(c: _Config, shape: ModelShape) -> ModelShape:
    if c.kind in ("mixtral", "gpt_oss"):
        return replace(
            shape,
            ffn=0,
            experts=c.need("num_local_experts", "num_experts"),
            expert_ffn=shape.ffn,
            active_experts=c.need("num_experts_per_tok", "experts_per_token"),
        )
    if c.kind == "qwen3_moe":
        step, plain = c.get("decoder_sparse_step", default=1), c.get("mlp_only_layers", default=())
        dense = sum(i in plain or (i + 1) % step != 0 for i in range(shape.layers))
        return replace(
            shape,
            experts=c.need("num_experts", "num_local_experts"),
            dense_layers=dense,
            active_experts=c.need("num_experts_per_tok"),
            expert_ffn=c.need("moe_intermediate_size"),
        )
    if c.kind == "deepseek_v3":
        width = c.need("moe_intermediate_size")
        return replace(
            shape,
            experts=c.need("n_routed_experts", "num_local_experts"),
            expert_ffn=width,
            active_experts=c.need("num_experts_per_tok"),
            shared_ffn=width * c.get("n_shared_experts", default=0),
            dense_layers=min(shape.layers, c.get("first_k_dense_replace", default=0)),
        )
    return shape


def _windows(c: _Config, layers: int) -> tuple[int | None, ...] | None:
    window = c.get("sliding_window")
    if not window or (
        c.kind in ("qwen2", "qwen3", "qwen3_moe", "smollm3") and not c.get("use_sliding_window", default=False)
    ):
        return None
    kinds = c.get("layer_types")
    if kinds:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if c.kind == "gemma3_text":
        every = c.get("sliding_window_pattern", "_sliding_window_pattern", default=6)
        return tuple(None if (i + 1) % every == 0 else window for i in range(layers))
    if c.kind == "gpt_oss":
        return tuple(window if i % 2 == 0 else None for i in range(layers))
    if c.kind in ("qwen2", "qwen3", "qwen3_moe"):
        first = c.get("max_window_layers", default=layers)
        return tuple(window if i >= first else None for i in range(layers))
    return (window,) * layers if c.kind in ("mistral", "mixtral") else None


def _small_weights(c: _Config, s: ModelShape) -> int:
    """Norm gains, biases and attention sinks of the rotary family."""
    width, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    bias = c.get("attention_bias", default=c.kind == "gpt_oss")
    per_layer = (4 if c.kind == "gemma3_text" else 2) * s.hidden
    if c.kind == "deepseek_v3":
        per_layer += s.query_rank + s.latent_rank
        if bias:
            per_layer += s.query_rank + s.latent_rank + s.rotary_dim + s.hidden
    elif c.kind == "qwen2":
        per_layer += width + 2 * kv
    elif bias:
        per_layer += width + 2 * kv + s.hidden
    if c.kind in ("qwen3", "qwen3_moe", "gemma3_text"):
        per_layer += 2 * s.head_dim
    total = s.layers * per_layer + s.hidden
    if c.get("mlp_bias", default=False):
        total += s.layers * (2 * s.ffn + s.hidden)
    if c.kind == "gpt_oss":
        total += s.layers * (s.heads + s.experts + s.experts * (2 * s.expert_ffn + s.hidden))
    if c.kind == "deepseek_v3":
        total += s.mixture_layers * s.experts  # the balancing bias of the router
    return total
