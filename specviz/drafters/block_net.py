"""The network of a parallel or hybrid drafter: draft layers with injected context (DFlash) and a serial head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Shape of a block drafter. hidden_size, vocab_size and the heads' size are those of its target."""

    hidden_size: int
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    taps: tuple[int, ...]
    block: int
    """Slots per block in training: the largest K."""
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5
    serial: int = 0
    """Inner width of the hybrid's serial head; 0: none."""


class Norm(nn.Module):
    """RMS norm with gain."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class BlockLayer(nn.Module):
    """One draft layer: attention of the block over context and block, then a gated feed-forward."""

    def __init__(self, c: BlockConfig):
        super().__init__()
        width, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.head_dim
        self.input_norm, self.post_norm = Norm(c.hidden_size, c.rms_eps), Norm(c.hidden_size, c.rms_eps)
        self.q_proj = nn.Linear(c.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv, bias=False)
        self.o_proj = nn.Linear(width, c.hidden_size, bias=False)
        self.gate_proj = nn.Linear(c.hidden_size, c.ffn, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.ffn, bias=False)
        self.down_proj = nn.Linear(c.ffn, c.hidden_size, bias=False)

    def keys_values(
        self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [..., T, D] (context states or block inputs), rope for its positions -> K, V [..., T, kv_heads, d]."""
        normed = self.input_norm(x)
        k = self.k_proj(normed).unflatten(-1, (self.kv_heads, self.head_dim))
        v = self.v_proj(normed).unflatten(-1, (self.kv_heads, self.head_dim))
        return rotate(k, *rope), v

    def queries(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x [..., T, D] -> [..., T, heads, d]"""
        q = self.q_proj(self.input_norm(x)).unflatten(-1, (self.heads, self.head_dim))
        return rotate(q, *rope)

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, residual, feed-forward. attended [..., T, heads, d]."""
        x = x + self.o_proj(attended.flatten(-2))
        normed = self.post_norm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(normed)) * self.up_proj(normed))


def rope_tables(positions: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [..., head_dim / 2] for positions [...]."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * theta**-steps
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x [..., T, heads, d] by tables [..., T, d / 2] (halves layout, as Llama's)."""
    a, b = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)


class BlockNet(nn.Module):
    """The trained weights of a parallel or hybrid drafter. The target's embedding and head are not among them."""

    draft_ids: torch.Tensor
    """[Vd] the target's tokens that can be proposed, ascending"""
    serial: SerialHead
    """Only if config.serial is not 0"""

    def __init__(self, config: BlockConfig, draft_ids: torch.Tensor):
        """draft_ids [Vd]: see above."""
        super().__init__()
        c = self.config = config
        self.fuse = nn.Linear(len(c.taps) * c.hidden_size, c.hidden_size, bias=False)
        self.fuse_norm = Norm(c.hidden_size, c.rms_eps)
        self.anchor_in = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        """From the anchor's embedding and the last context state to slot 0"""
        self.mask_in = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        """From the same two to every later slot, where it is added to the slot's mask vector"""
        self.masks = nn.Parameter(torch.zeros(c.block, c.hidden_size))
        """[block, D]; slot 0 has one too"""
        # a ModuleList is no typed container: its entries are BlockLayers
        self.layers = cast(list[BlockLayer], nn.ModuleList(BlockLayer(c) for _ in range(c.layers)))
        self.norm = Norm(c.hidden_size, c.rms_eps)
        self.register_buffer("draft_ids", draft_ids.clone())
        if c.serial:
            self.serial = SerialHead(c)

    def fused(self, taps: torch.Tensor) -> torch.Tensor:
        """taps [..., len(taps) * D] -> context states [..., D]."""
        c = self.config
        parts = taps.float().unflatten(-1, (len(c.taps), c.hidden_size))
        parts = functional.rms_norm(parts, (c.hidden_size,), eps=c.rms_eps)
        return self.fuse_norm(self.fuse(parts.flatten(-2)))

    def block_inputs(self, anchors: torch.Tensor, last_states: torch.Tensor, slots: int) -> torch.Tensor:
        """Embeddings of the anchors [..., D] and the context states just before them [..., D] -> [..., slots, D]."""
        # The embedding's scale is far below that of the states: both are normed, so that both have an effect.
        normed = functional.rms_norm(anchors.float(), (self.config.hidden_size,), eps=self.config.rms_eps)
        both = torch.cat([normed, last_states], dim=-1)
        first, later = self.anchor_in(both).unsqueeze(-2), self.mask_in(both).unsqueeze(-2)
        later = later.expand(*later.shape[:-2], slots - 1, later.shape[-1])
        return torch.cat([first, later], dim=-2) + self.masks[:slots]

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [..., d / 2] of positions [...]."""
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta)


class SerialHead(nn.Module):
    """The hybrid's second stage: refines the state of slot k > 0 with the two tokens before it, from left to right.

    The first stage drafts all slots at once, so no slot depends on its neighbours' tokens; this one adds that
    dependence. A Markov head of order two whose tables are the target's embedding and head, gated by the slot's state
    (the Markov, gated and recurrent heads of DSpark, arXiv 2607.05147, train their own tables).
    """

    temperatures: torch.Tensor
    """[block], of the confidence logits; see training.losses.sequential_temperatures"""

    def __init__(self, c: BlockConfig):
        super().__init__()
        self.state = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.direct = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.inner = nn.Linear(3 * c.hidden_size, c.serial)
        self.outer = nn.Linear(c.serial, c.hidden_size, bias=False)
        self.norm = Norm(c.hidden_size, c.rms_eps)
        self.confidence = nn.Linear(2 * c.hidden_size + 1, 1)
        self.register_buffer("temperatures", torch.ones(c.block))
        nn.init.eye_(self.state.weight)
        nn.init.zeros_(self.direct.weight)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.confidence.weight)
        nn.init.zeros_(self.confidence.bias)

    def forward(self, state: torch.Tensor, previous: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """state [..., D] of a slot (final-normed), the embeddings of the token before it and of the one before that
        [..., D] -> the refined, normed state [..., D]."""
        size = state.shape[-1:]
        tokens = torch.cat([functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (previous, before)], -1)
        scaled = functional.rms_norm(state.float(), size, eps=self.norm.eps)
        inner = functional.silu(self.inner(torch.cat([tokens, scaled], -1)))
        return self.norm(self.state(scaled) + self.direct(tokens) + self.outer(inner))

    def confidence_logits(self, refined: torch.Tensor, previous: torch.Tensor, log_peak: torch.Tensor) -> torch.Tensor:
        """Logit [...] of the probability that the draft survives. log_peak [...]: log of the slot's largest q."""
        size = refined.shape[-1:]
        parts = [functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (refined, previous)]
        return self.confidence(torch.cat([*parts, log_peak.float().unsqueeze(-1)], -1))[..., 0].float()
