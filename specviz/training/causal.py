"""The autoregressive drafter: its training form and the loss over whole conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from specviz.drafters.block_net import BlockConfig, BlockLayer, Norm, rope_tables
from specviz.training.compute_type import autocast
from specviz.training.features import Batch
from specviz.training.losses import distil
from specviz.training.target_parts import TargetParts


class CausalNet(nn.Module):
    """A small Llama-like causal LM without embedding and head (both are the target's). For training; decoding
    runs the same weights as a stock module."""

    def __init__(self, config: BlockConfig, draft_ids: torch.Tensor):
        """config.taps is empty; config.block is unused."""
        super().__init__()
        self.config = config
        # a ModuleList is no typed container: its entries are BlockLayers
        self.layers = cast(list[BlockLayer], nn.ModuleList(BlockLayer(config) for _ in range(config.layers)))
        self.norm = Norm(config.hidden_size, config.rms_eps)
        self.register_buffer("draft_ids", draft_ids.clone())

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """Embedded tokens [B, T, D] -> final-normed states [B, T, D]."""
        x = embedded
        rope = rope_tables(torch.arange(x.shape[1]), self.config.head_dim, self.config.rope_theta)
        group = self.config.heads // self.config.kv_heads
        for layer in self.layers:
            q = layer.queries(x, rope).transpose(1, 2)
            k, v = (t.transpose(1, 2).repeat_interleave(group, 1) for t in layer.keys_values(x, rope))
            o = functional.scaled_dot_product_attention(q, k.to(q.dtype), v.to(q.dtype), is_causal=True)
            x = layer.finish(x, o.transpose(1, 2))
        return self.norm(x)


@dataclass(frozen=True)
class CausalRecipe:
    """How the autoregressive drafter is trained."""

    rows: int = 6
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    prompt_weight: float = 0.5
    """Weight of positions before the answer (the user's turn, which the target wrote too)."""
    seed: int = 0


def causal_loss(
    net: CausalNet, parts: TargetParts, head: torch.Tensor, batch: Batch, recipe: CausalRecipe, skip: int = 22
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss over all positions but the template's first `skip`, and the answers' mean overlap."""
    place = torch.arange(batch.tokens.shape[1])
    inside = (place < batch.lengths[:, None] - 1) & (place >= skip)
    with autocast():
        hidden = net(parts.embedding[batch.tokens])[inside]
    answer = batch.before_answer[inside]
    weights = torch.where(answer, 1.0, recipe.prompt_weight)
    targets = parts.states(batch.taps[:, :, -1][inside])
    loss, overlap, _ = distil([hidden], targets, head, (weights / weights.sum())[None])
    return loss, {"autoregressive": overlap[0, answer].mean()[None]}
