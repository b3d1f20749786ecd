"""The parallel drafter (after DFlash, arXiv 2602.06036): K tokens from one pass over a block.

The block's inputs are the anchor's embedding and trained mask vectors, one per slot; slot k predicts the
token k + 1 places after the anchor. Outputs of several target layers ("taps") are fused once per context
token and injected into the keys and values of every draft layer, so the context costs no queries and no
feed-forward. Attention inside the block is bidirectional. Embedding and head are the target's own, frozen;
the head is restricted to a draft vocabulary.

Two deviations from the paper: each tap is RMS-normed before it is fused, and the fused state of the last
context token is also added to the block's input (small drafters gain by it). Knows no training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from specviz.costs import ModelShape, pass_cost
from specviz.drafters.base import Proposal, Request
from specviz.errors import PairError
from specviz.models.causal import CausalModel
from specviz.sampling import draw, warp
from specviz.trace import Cost, Settings


@dataclass(frozen=True)
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
    """Slots that it was trained for: the largest K."""
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
    """The trained part of a parallel or hybrid drafter. The target's embedding and head are not in it."""

    def __init__(self, config: BlockConfig, draft_ids: torch.Tensor):
        """draft_ids [Vd]: the target's tokens that can be proposed, ascending."""
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
        self.layers = nn.ModuleList(BlockLayer(c) for _ in range(c.layers))
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
        # The embedding's scale is far below that of the states: normed, so that both are heard.
        normed = functional.rms_norm(anchors.float(), (self.config.hidden_size,), eps=self.config.rms_eps)
        both = torch.cat([normed, last_states], dim=-1)
        first, later = self.anchor_in(both).unsqueeze(-2), self.mask_in(both).unsqueeze(-2)
        later = later.expand(*later.shape[:-2], slots - 1, later.shape[-1])
        return torch.cat([first, later], dim=-2) + self.masks[:slots]

    def rope(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta)


class SerialHead(nn.Module):
    """The hybrid's second stage: mends the state of slot k > 0 with the two tokens before it, from left to right.

    The first stage cannot know which tokens its neighbours will be; here slot k learns them. A Markov head of
    order two whose tables are the target's own embedding and head, gated by the slot's state (compare the
    Markov, gated and recurrent heads of DSpark, arXiv 2607.05147, which train tables of their own).
    """

    def __init__(self, c: BlockConfig):
        super().__init__()
        self.state = nn.Linear(c.hidden_size, c.hidden_size, bias=False)
        self.direct = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.inner = nn.Linear(3 * c.hidden_size, c.serial)
        self.outer = nn.Linear(c.serial, c.hidden_size, bias=False)
        self.norm = Norm(c.hidden_size, c.rms_eps)
        self.confidence = nn.Linear(2 * c.hidden_size + 1, 1)
        self.register_buffer("temperatures", torch.ones(c.block))
        """[block], of the confidence logits; see training.losses.sequential_temperatures"""
        nn.init.eye_(self.state.weight)
        nn.init.zeros_(self.direct.weight)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.confidence.weight)
        nn.init.zeros_(self.confidence.bias)

    def forward(self, state: torch.Tensor, previous: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """state [..., D] of a slot (final-normed), the embeddings of the token before it and of the one before that
        [..., D] -> the mended, normed state [..., D]."""
        size = state.shape[-1:]
        tokens = torch.cat([functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (previous, before)], -1)
        scaled = functional.rms_norm(state.float(), size, eps=self.norm.eps)
        inner = functional.silu(self.inner(torch.cat([tokens, scaled], -1)))
        return self.norm(self.state(scaled) + self.direct(tokens) + self.outer(inner))

    def confidence_logits(self, mended: torch.Tensor, previous: torch.Tensor, log_peak: torch.Tensor) -> torch.Tensor:
        """How sure it is that its draft survives, as a logit [...]. log_peak [...]: log of its largest q."""
        size = mended.shape[-1:]
        parts = [functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (mended, previous)]
        return self.confidence(torch.cat([*parts, log_peak.float().unsqueeze(-1)], -1))[..., 0].float()


class _RowContext:
    """Keys and values of one row's context, per layer, and the state of its last token."""

    def __init__(self, net: BlockNet, capacity: int, like: torch.Tensor):
        c = net.config
        shape = (c.layers, capacity, c.kv_heads, c.head_dim)
        self.keys = torch.empty(shape, device=like.device)
        self.values = torch.empty(shape, device=like.device)
        self.length = 0
        self.last = torch.zeros(c.hidden_size, device=like.device)


class ParallelDrafter:
    """Proposes the most likely token of every slot at once; q is one-hot, so a draft is accepted with p.

    With sampled=True each slot is drawn from its own distribution instead: lossless too, but neighbours
    that do not know each other fit worse, so fewer are accepted.
    """

    name = "parallel"
    parallel = True

    def __init__(self, net: BlockNet, target: CausalModel, settings: Settings, *, sampled: bool = False):
        """net: shared weights; the target lends its embedding and head. Raises PairError if they do not fit."""
        c = net.config
        if (c.hidden_size, c.vocab_size) != (target.hidden_size, target.vocab_size) or max(c.taps) >= target.layers:
            raise PairError(
                f"This drafter was trained for a target of width {c.hidden_size} and {c.vocab_size} tokens; the target "
                f"has {target.hidden_size} and {target.vocab_size}. Choose the drafter of this target."
            )
        self.net, self.target, self.settings, self.sampled = net, target, settings, sampled
        self.taps, self.max_k = c.taps, c.block
        self.label = (
            f"parallel: {c.layers} layers draft a block at once from {len(c.taps)} of the target's layers; "
            + ("each slot drawn by itself" if sampled else "the likeliest token per slot, q is one-hot")
        )
        self.head = draft_head(target, net)
        self._rows: dict[int, _RowContext] = {}

    @torch.inference_mode()
    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._rows[row] = _RowContext(self.net, capacity, self.target.embedding)
        self._append(row, taps)

    def _append(self, row: int, taps: torch.Tensor | None) -> None:
        """Fuse the taps [n, len(taps) * D] of new context tokens into the row's keys and values."""
        if taps is None or not len(taps):
            return
        at = self._rows[row]
        states = self.net.fused(taps)
        end = at.length + len(states)
        rope = self.net.rope(torch.arange(at.length, end, device=states.device))
        for i, layer in enumerate(self.net.layers):
            at.keys[i, at.length: end], at.values[i, at.length: end] = layer.keys_values(states, rope)
        at.length, at.last = end, states[-1]

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        counts = [min(r.k, self.max_k) for r in requests]
        hidden = self._hidden(requests, counts)
        logits = functional.linear(hidden, self.head)  # [sum K, Vd]
        tokens, probs, raw = [], [], []
        for request, rows in zip(requests, logits.split(counts)):
            full = self._scatter(rows)
            if self.sampled and self.settings.temperature > 0:
                q = warp(full, self.settings.temperature, self.settings.top_k, self.settings.top_p)
                chosen = [draw(slot, u) for slot, u in zip(q, request.uniforms)]
            else:
                q, chosen = self._likeliest(rows)
            tokens.append(chosen)
            probs.append(q)
            raw.append(full)
        return Proposal(tokens, probs, raw, sum(counts), self._cost(requests, counts))

    def _likeliest(self, rows: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Logits over the draft vocabulary [K, Vd] -> one-hot q [K, V] and its tokens. No draw is needed, and to run
        one over the target's whole vocabulary would cost more than the draft itself."""
        chosen = self.net.draft_ids[rows.argmax(-1)]
        q = torch.zeros(len(rows), self.target.vocab_size, dtype=torch.float64, device=rows.device)
        q[torch.arange(len(rows), device=rows.device), chosen] = 1.0
        return q, chosen.tolist()

    def _hidden(self, requests: Sequence[Request], counts: list[int]) -> torch.Tensor:
        """The block pass over all rows, packed: final-normed states [sum K, D]."""
        net = self.net
        contexts = [self._rows[r.row] for r in requests]
        anchors = self.target.embedding[[r.anchor for r in requests]].float()
        inputs = net.block_inputs(anchors, torch.stack([c.last for c in contexts]), max(counts))
        x = torch.cat([block[:n] for block, n in zip(inputs, counts)])
        positions = torch.cat([torch.arange(c.length, c.length + n) for c, n in zip(contexts, counts)])
        rope = net.rope(positions.to(x.device))
        for i, layer in enumerate(net.layers):
            q = layer.queries(x, rope)
            k, v = layer.keys_values(x, rope)
            attended = []
            for at, qr, kr, vr in zip(contexts, q.split(counts), k.split(counts), v.split(counts)):
                keys = torch.cat([at.keys[i, : at.length], kr]).transpose(0, 1)  # [kv_heads, context + K, d]
                values = torch.cat([at.values[i, : at.length], vr]).transpose(0, 1)
                attended.append(_attend(qr, keys, values))
            x = layer.finish(x, torch.cat(attended))
        return net.norm(x)

    def _scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary [K, Vd] -> over the target's [K, V], -inf outside."""
        full = torch.full((len(rows), self.target.vocab_size), -torch.inf, device=rows.device)
        full[:, self.net.draft_ids] = rows.float()
        return full

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """Of the block pass; the injection of the few new context tokens is small beside it and left out."""
        return pass_cost(block_shape(self.net), counts, [self._rows[r.row].length for r in requests], sum(counts))

    @torch.inference_mode()
    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._append(row, taps)

    def drop(self, row: int) -> None:
        del self._rows[row]


def _attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """q [K, heads, d] over keys and values [kv_heads, T, d], nothing masked -> [K, heads, d]."""
    slots, heads, dim = q.shape
    group = heads // len(keys)
    # heads that share a KV head become further queries of it
    q = q.reshape(slots, len(keys), group, dim).permute(1, 2, 0, 3).reshape(1, len(keys), group * slots, dim)
    out = functional.scaled_dot_product_attention(q, keys[None], values[None])[0]
    return out.reshape(len(keys), group, slots, dim).permute(2, 0, 1, 3).reshape(slots, heads, dim)


def draft_head(target: CausalModel, net: BlockNet) -> torch.Tensor:
    """The target's head rows of the draft vocabulary, [Vd, D] float32: one copy per net, kept on it."""
    held = getattr(net, "_head", None)
    if held is None or held[0] is not target.head:
        held = (target.head, target.head[net.draft_ids].float().contiguous())
        net._head = held
    return held[1]


def block_shape(net: BlockNet) -> ModelShape:
    """What `costs` counts a block pass as: its layers, and a head of the draft vocabulary."""
    c = net.config
    extra = net.anchor_in.weight.numel() + net.mask_in.weight.numel() + net.masks.numel()
    return ModelShape("block drafter", c.layers, c.hidden_size, c.heads, c.kv_heads, c.head_dim, c.ffn,
                      len(net.draft_ids), small_weights=extra)
