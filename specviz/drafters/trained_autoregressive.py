"""The trained autoregressive drafter: a small Llama with the target's embedding and head.

When it drafts, its head is restricted to a draft vocabulary (the full head would cost more than its layers);
`export` writes it as a complete standard model folder with the full head, whose q and cost therefore differ.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specviz.drafters import checkpoints
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.block_net import BlockConfig
from specviz.errors import FetchError, PairError
from specviz.loader import load_model
from specviz.loader.llama import Llama, LlamaConfig
from specviz.models.causal import CausalModel
from specviz.trace.records import Settings

_NAMES = {
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    **{f"{n}_proj": f"self_attn.{n}_proj" for n in "qkvo"},
    **{f"{n}_proj": f"mlp.{n}_proj" for n in ("gate", "up", "down")},
}


class TrainedAutoregressiveDrafter(AutoregressiveDrafter):
    """Drafts like any autoregressive drafter; its head is cut to a draft vocabulary."""

    def __init__(self, model: CausalModel, draft_ids: torch.Tensor, target: CausalModel, settings: Settings):
        """model: from `load_module`, shared between runs; draft_ids [Vd]."""
        super().__init__(
            model,
            target.vocab_size,
            settings,
            "autoregressive",
            f"autoregressive: a trained model of {model.layers} layers drafts one token at a time",
            draft_ids,
        )


def load_module(folder: Path, target: CausalModel) -> tuple[Llama, torch.Tensor]:
    """The drafter's module, with the target's embedding (shared) and its head cut to the draft vocabulary, and the
    draft vocabulary's ids. Raises FetchError or, if it belongs to another target, PairError."""
    config, weights = _read(folder)
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise PairError(
            f"The drafter in {folder} was trained for a target of width {config.hidden_size} and "
            f"{config.vocab_size} tokens. Choose the drafter of this target."
        )
    draft_ids = weights["draft_ids"]
    state = _standard_names(weights)
    state["lm_head.weight"] = target.head.detach().float().cpu()[draft_ids].contiguous()
    state["model.embed_tokens.weight"] = target.embedding.detach()
    # One module, two vocabularies: the embedding keeps all of the target's tokens, the head only those drafted.
    with torch.device("meta"):
        module = Llama(replace(_llama_config(config), vocab_size=len(draft_ids)))
    module.model.embed_tokens = torch.nn.Embedding(
        config.vocab_size, config.hidden_size, _weight=state["model.embed_tokens.weight"]
    )
    module.load_state_dict(state, assign=True)
    return module.to(target.device, target.dtype).eval().requires_grad_(False), draft_ids


def export(folder: Path, target: CausalModel, tokenizer, to: Path) -> Path:
    """Write the drafter in `folder` as a complete standard Llama folder: config, weights with the full tied
    embedding, tokenizer (transformers' own). transformers' assisted generation and others load it as it is."""
    config, weights = _read(folder)
    special: dict[str, Any] = {
        name: getattr(target.config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    made = replace(_llama_config(config), tie_word_embeddings=True, **special)
    module = load_model.stock_like(made)
    state = _standard_names(weights)
    state["model.embed_tokens.weight"] = target.embedding.detach().float().cpu().clone()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    module.load_state_dict(state, assign=True)
    module.tie_weights()
    module.save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


def _read(folder: Path) -> tuple[BlockConfig, dict[str, torch.Tensor]]:
    kind, config, weights, _ = checkpoints.read(folder)
    if kind != "autoregressive":
        raise FetchError(f"The drafter in {folder} is {kind}, not autoregressive.")
    return config, weights


def _standard_names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names of training -> names of a stock Llama, without embedding and head."""
    out = {"model.norm.weight": weights["norm.weight"]}
    for name, tensor in weights.items():
        if name.startswith("layers."):
            _, index, part, _ = name.split(".")
            out[f"model.layers.{index}.{_NAMES[part]}.weight"] = tensor
    return out


def _llama_config(c: BlockConfig) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.ffn,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        max_position_embeddings=8192,
    )
