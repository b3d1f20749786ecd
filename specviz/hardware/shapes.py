"""Shapes of well-known models, so that they can be put on any device without their weights.

Sizes are those of the config.json that each model is published with.
"""

from __future__ import annotations

from specviz.costs import ModelShape
from specviz.errors import SettingsError


def _sixteen_bit(*sizes: int, name: str, **more) -> ModelShape:
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
    return ModelShape(name=name, **dict(zip(names, sizes)), **{"weight_bytes": 2.0, "cache_bytes": 2.0,
                                                               "activation_bytes": 2.0, **more})


SHAPES: tuple[ModelShape, ...] = (
    _sixteen_bit(30, 576, 9, 3, 64, 1536, 49152, name="SmolLM2-135M", tied=True),
    _sixteen_bit(36, 2560, 32, 8, 128, 9728, 151936, name="Qwen3-4B", tied=True),
    _sixteen_bit(32, 4096, 32, 8, 128, 14336, 32768, name="Mistral-7B-v0.3"),
    _sixteen_bit(32, 4096, 32, 8, 128, 14336, 128256, name="Llama-3.1-8B"),
    # experts in MXFP4: 4 bits and an 8-bit scale per 32 weights
    _sixteen_bit(24, 2880, 64, 8, 64, 0, 201088, name="gpt-oss-20b", windows=(128, None) * 12, experts=32,
                 active_experts=4, expert_ffn=2880, expert_weight_bytes=4.25 / 8),
    _sixteen_bit(64, 5120, 64, 8, 128, 25600, 151936, name="Qwen3-32B"),
    _sixteen_bit(80, 8192, 64, 8, 128, 28672, 128256, name="Llama-3.1-70B"),
    # published in 8 bit
    _sixteen_bit(61, 7168, 128, 128, 128, 18432, 129280, name="DeepSeek-V3", weight_bytes=1.0, query_rank=1536,
                 latent_rank=512, rotary_dim=64, value_dim=128, experts=256, active_experts=8, expert_ffn=2048,
                 shared_ffn=2048, dense_layers=3),
)


def shape(name: str) -> ModelShape:
    """The shape of this name. Raises SettingsError with the names there are."""
    for entry in SHAPES:
        if entry.name.lower() == name.strip().lower():
            return entry
    raise SettingsError(f"There is no built-in shape {name!r}. There are: {', '.join(s.name for s in SHAPES)}.")
