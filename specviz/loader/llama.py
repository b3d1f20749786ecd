"""A plain Llama without transformers: its config, and its weights in modules of the stock names.

Importing transformers' modelling code takes longer than loading a small model. A folder that holds no more than what
FusedLlama computes is read here. Every other one is left to transformers, which also says what is wrong with it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from specviz.loader.model_folder import Folder, read_header, weight_files


@dataclass(frozen=True)
class LlamaConfig:
    """A plain Llama's sizes by the names of config.json, as transformers' config of that name has them."""

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
        """The config in a config.json, with Llama's own defaults; None if it says anything that is not plain: biases,
        another activation, scaled rotary positions, sizes that are missing or do not fit together."""
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, dict) or set(rope) - {"rope_type", "type", "rope_theta"}:
            return None
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        heads, hidden = raw.get("num_attention_heads"), raw.get("hidden_size")
        sizes = {
            name: raw.get(name)
            for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        }
        if not all(map(_is_size, sizes.values())) or hidden % heads:
            return None
        sizes["num_key_value_heads"] = kv_heads = raw.get("num_key_value_heads") or heads
        sizes["head_dim"] = dim = raw.get("head_dim") or hidden // heads
        sizes["max_position_embeddings"] = positions = raw.get("max_position_embeddings", 2048)
        if not all(map(_is_size, (kv_heads, dim, positions))) or heads % kv_heads or dim % 2:
            return None
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
        return (
            cls(
                **sizes,
                **special,
                rms_norm_eps=eps,
                tie_word_embeddings=tied,
                rope_parameters={"rope_type": "default", "rope_theta": theta},
                name_or_path=str(raw.get("name_or_path", "")),
            )
            if plain
            else None
        )

    def to_dict(self) -> dict:
        """What `from_dict` reads."""
        return dataclasses.asdict(self)

    def get_text_config(self) -> Self:
        """Itself: there is no other part."""
        return self


_SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def _is_size(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_token(value) -> bool:
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


class Llama(nn.Module):
    """The weights of a plain Llama, named and laid out as in transformers' LlamaForCausalLM. It has no forward of its
    own: FusedLlama computes with it."""

    def __init__(self, config: LlamaConfig):
        """The weights are left as they come, to be set by `load_state_dict`."""
        super().__init__()
        self.config = config
        self.model = nn.ModuleDict(
            {
                "embed_tokens": _Embedding(config.vocab_size, config.hidden_size),
                "layers": nn.ModuleList(_layer(config) for _ in range(config.num_hidden_layers)),
                "norm": nn.RMSNorm(config.hidden_size, config.rms_norm_eps),
            }
        )
        self.lm_head = _Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie_weights()

    @property
    def base_model(self) -> nn.Module:
        """The decoder without its head."""
        return self.model

    def tie_weights(self) -> None:
        """Let the head be the embedding, if the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def get_input_embeddings(self) -> nn.Embedding:
        """[V, D]"""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """[V, D]"""
        return self.lm_head


def _layer(c: LlamaConfig) -> nn.ModuleDict:
    def linear(inputs: int, outputs: int) -> nn.Linear:
        return _Linear(inputs, outputs, bias=False)

    width, narrow = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    return nn.ModuleDict(
        {
            "self_attn": nn.ModuleDict(
                {
                    "q_proj": linear(c.hidden_size, width),
                    "k_proj": linear(c.hidden_size, narrow),
                    "v_proj": linear(c.hidden_size, narrow),
                    "o_proj": linear(width, c.hidden_size),
                }
            ),
            "mlp": nn.ModuleDict(
                {
                    "gate_proj": linear(c.hidden_size, c.intermediate_size),
                    "up_proj": linear(c.hidden_size, c.intermediate_size),
                    "down_proj": linear(c.intermediate_size, c.hidden_size),
                }
            ),
            "input_layernorm": nn.RMSNorm(c.hidden_size, c.rms_norm_eps),
            "post_attention_layernorm": nn.RMSNorm(c.hidden_size, c.rms_norm_eps),
        }
    )


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
    state = {}
    for file in weight_files(folder.path):
        header = read_header(file)
        # a tied head that is stored all the same, or a tensor stored twice: not for us to decide which one counts
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
