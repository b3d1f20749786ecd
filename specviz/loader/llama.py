"""A plain Llama loaded without transformers: its config, and its weights in modules of the same names.

Importing transformers' modelling code takes longer than loading a small model. A folder whose config asks for nothing
beyond what FusedLlama computes is read here. Every other one is left to transformers, which also reports what is wrong
with it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from specviz.loader.causal_module import CausalModule
from specviz.loader.model_folder import Folder, read_header, weight_files


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """A plain Llama's config, with the names of config.json and of transformers' class of this name."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: dict
    """rope_theta, and rope_type, which is default"""
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    name_or_path: str = ""
    hidden_act: str = "silu"
    model_type: str = "llama"

    @classmethod
    def from_dict(cls, raw: dict) -> Self | None:
        """The config in a config.json, with Llama's own defaults; None if it is not a plain Llama: biases, another
        activation, scaled RoPE, sizes that are missing or do not fit together."""
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, dict) or set(rope) - {"rope_type", "type", "rope_theta"}:
            return None
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        sizes = _sizes(raw)
        special = {name: raw.get(name, default) for name, default in _SPECIAL.items()}
        eps, tied = raw.get("rms_norm_eps", 1e-6), raw.get("tie_word_embeddings", False)
        plain = (
            raw.get("model_type") == "llama"
            and raw.get("hidden_act", "silu") == "silu"
            and not raw.get("attention_bias")
            and not raw.get("mlp_bias")
            and rope.get("rope_type", rope.get("type", "default")) == "default"
            and raw.get("pretraining_tp", 1) in (1, None)
            and isinstance(tied, bool)
            and all(isinstance(number, int | float) and number > 0 for number in (theta, eps))
            and all(map(_is_token, special.values()))
        )
        if sizes is None or not plain:
            return None
        return cls(
            **sizes,
            **special,
            rms_norm_eps=eps,
            tie_word_embeddings=tied,
            rope_parameters={"rope_type": "default", "rope_theta": theta},
            name_or_path=str(raw.get("name_or_path", "")),
        )

    def to_dict(self) -> dict:
        """What `from_dict` reads."""
        return dataclasses.asdict(self)

    def get_text_config(self) -> Self:
        """Itself: there is no other part."""
        return self


_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _sizes(raw: dict[str, Any]) -> dict[str, Any] | None:
    """LlamaConfig's sizes from a config.json; None if one is missing or they do not fit together."""
    sizes = {name: raw.get(name) for name in _SIZES}
    if not all(map(_is_size, sizes.values())):
        return None
    heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    if hidden % heads:
        return None
    kv_heads = raw.get("num_key_value_heads") or heads
    head_dim = raw.get("head_dim") or hidden // heads
    positions = raw.get("max_position_embeddings", 2048)
    if not all(map(_is_size, (kv_heads, head_dim, positions))) or heads % kv_heads or head_dim % 2:
        return None
    found: dict[str, Any] = {name: raw[name] for name in _SIZES}
    return found | {
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": positions,
    }


_SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_token(value: object) -> bool:
    return (
        value is None
        or isinstance(value, int)
        or (isinstance(value, list) and all(isinstance(one, int) for one in value))
    )


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Drawing weights that are then replaced takes longer than reading them."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """As in _Linear."""


class _Attention(nn.Module):
    """The four projections of attention."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.q_proj = _Linear(c.hidden_size, width, bias=False)
        self.k_proj = _Linear(c.hidden_size, kv_width, bias=False)
        self.v_proj = _Linear(c.hidden_size, kv_width, bias=False)
        self.o_proj = _Linear(width, c.hidden_size, bias=False)


class _FeedForward(nn.Module):
    """The three matrices of SwiGLU."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.gate_proj = _Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = _Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = _Linear(c.intermediate_size, c.hidden_size, bias=False)


class LlamaLayer(nn.Module):
    """The weights of one decoder layer."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.self_attn = _Attention(c)
        self.mlp = _FeedForward(c)
        self.input_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)


class LlamaDecoder(nn.Module):
    """The weights of embedding, layers and final norm."""

    def __init__(self, c: LlamaConfig):
        super().__init__()
        self.embed_tokens: nn.Embedding = _Embedding(c.vocab_size, c.hidden_size)
        # a ModuleList is no typed container: its entries are LlamaLayers
        self.layers = cast(list[LlamaLayer], nn.ModuleList(LlamaLayer(c) for _ in range(c.num_hidden_layers)))
        self.norm = nn.RMSNorm(c.hidden_size, c.rms_norm_eps)


class Llama(CausalModule):
    """The weights of a plain Llama, named and laid out as in transformers' LlamaForCausalLM. It has no forward of its
    own: models.fused.FusedLlama computes with it."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig):
        """The weights are left uninitialized, to be set by `load_state_dict`."""
        super().__init__()
        self.config = config
        self.model = LlamaDecoder(config)
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()

    @property
    def base_model(self) -> nn.Module:
        return self.model

    def tie_weights(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


def config_of(folder: Path, raw: dict) -> LlamaConfig | None:
    """The config of a model folder whose config.json holds `raw`; None if it is no plain Llama. Tokens that end a text
    are those of the config and of generation_config.json."""
    config = LlamaConfig.from_dict(raw | {"name_or_path": str(folder)})
    if config is None:
        return None
    try:
        ends = json.loads((folder / "generation_config.json").read_bytes()).get("eos_token_id")
    except (OSError, ValueError, AttributeError, RecursionError):
        ends = None
    if ends is None or ends == config.eos_token_id or not _is_token(ends):
        return config
    known: set[int] = set()
    for value in (config.eos_token_id, ends):
        known.update(value if isinstance(value, list) else [] if value is None else [value])
    return dataclasses.replace(config, eos_token_id=sorted(known))


def read(folder: Folder, device: str, dtype: torch.dtype) -> Llama | None:
    """The weights of a folder on a device; None unless it is a plain Llama with exactly the tensors that it must have.
    Raises MemoryError or torch.OutOfMemoryError."""
    config = config_of(folder.path, folder.config)
    if config is None:
        return None
    with torch.device("meta"):
        module = Llama(config)
    wanted = {name: list(tensor.shape) for name, tensor in module.state_dict().items()}
    if config.tie_word_embeddings:
        del wanted["lm_head.weight"]
    state: dict[str, torch.Tensor] = {}
    for file in weight_files(folder.path):
        header = read_header(file)
        # a tied head that is stored nevertheless, or a tensor stored twice: it is not clear which one is meant
        if header.keys() & (state.keys() | {"lm_head.weight"} - wanted.keys()):
            return None
        if any(
            header[name]["shape"] != wanted[name] or header[name]["dtype"] not in _STORED
            for name in header.keys() & wanted.keys()
        ):
            return None
        try:
            with safe_open(file, "pt") as tensors:
                state |= {name: tensors.get_tensor(name).to(device, dtype) for name in header.keys() & wanted.keys()}
        except SafetensorError:
            return None
    if state.keys() != wanted.keys():
        return None
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    module.load_state_dict(state, assign=True)
    module.tie_weights()
    return module


_STORED = ("F32", "F16", "BF16")
