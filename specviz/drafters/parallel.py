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
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

from specviz.drafters.base import Proposal, Request
from specviz.drafters.block_graphs import block_graphs_of
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.slots import Drafted
from specviz.errors import PairError
from specviz.hardware.costs import pass_cost
from specviz.models.causal import CausalModel
from specviz.sampling.transfer import offsets, to_device
from specviz.trace.records import Cost, Settings


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

    draft_ids: torch.Tensor

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
    """The hybrid's second stage: refines the state of slot k > 0 with the two tokens before it, from left to right.

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
        [..., D] -> the refined, normed state [..., D]."""
        size = state.shape[-1:]
        tokens = torch.cat([functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (previous, before)], -1)
        scaled = functional.rms_norm(state.float(), size, eps=self.norm.eps)
        inner = functional.silu(self.inner(torch.cat([tokens, scaled], -1)))
        return self.norm(self.state(scaled) + self.direct(tokens) + self.outer(inner))

    def confidence_logits(self, refined: torch.Tensor, previous: torch.Tensor, log_peak: torch.Tensor) -> torch.Tensor:
        """How sure it is that its draft survives, as a logit [...]. log_peak [...]: log of its largest q."""
        size = refined.shape[-1:]
        parts = [functional.rms_norm(t.float(), size, eps=self.norm.eps) for t in (refined, previous)]
        return self.confidence(torch.cat([*parts, log_peak.float().unsqueeze(-1)], -1))[..., 0].float()


def choose_slots(
    fused: FusedBlock,
    vocabulary: DraftVocabulary,
    settings: Settings,
    states: torch.Tensor,
    logits: torch.Tensor,
    texts: torch.Tensor,
    uniforms: torch.Tensor,
    counts: Sequence[int],
) -> Drafted:
    """The tokens of R rows with so many slots each, each slot by itself. states [sum K, D] and logits [sum K, Vd] of
    the block pass, texts [R, 2] the token before each row's anchor and the anchor, uniforms [sum K]."""
    tokens, drawn_from = vocabulary.choose(logits, settings, uniforms)
    return Drafted(tokens, logits, drawn_from)


class ParallelDrafter:
    """Proposes the most likely token of every slot at once; q is one-hot, so a draft is accepted with p.

    With sampled=True each slot is drawn from its own distribution instead: lossless too, but neighbours
    that do not know each other fit worse, so fewer are accepted.
    """

    name = "parallel"
    parallel = True
    _choose = staticmethod(choose_slots)

    def __init__(self, net: BlockNet, target: CausalModel, settings: Settings, *, sampled: bool = False):
        """net: shared weights; the target lends its embedding and head. Raises PairError if they do not fit."""
        c = net.config
        if (c.hidden_size, c.vocab_size) != (target.hidden_size, target.vocab_size) or max(c.taps) >= target.layers:
            raise PairError(
                f"This drafter was trained for a target of width {c.hidden_size} and {c.vocab_size} tokens; the target "
                f"has {target.hidden_size} and {target.vocab_size}. Choose the drafter of this target."
            )
        self.net, self.target = net, target
        self.settings = settings if sampled else replace(settings, temperature=0.0)
        """How slots are chosen."""
        self.taps, self.max_k = c.taps, c.block
        self.label = (
            f"parallel: {c.layers} layers draft a block at once from {len(c.taps)} of the target's layers; "
            + ("each slot drawn by itself" if sampled else "the likeliest token per slot, q is one-hot")
        )
        self.fused = _fused(net, target)
        self.graphs = self.fused.graphs
        self.vocabulary = DraftVocabulary(net.draft_ids, target.vocab_size)
        self._cache = self.fused.new_cache()
        self._taps: dict[int, list[torch.Tensor]] = {}
        """Of context tokens that are not in the cache yet; they enter it together, when next the row drafts."""
        self._last: dict[int, torch.Tensor] = {}
        """The state of each row's last context token."""

    @torch.inference_mode()
    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._cache.add(row, capacity + self.max_k)
        self._taps[row] = []
        self._last[row] = torch.zeros(self.net.config.hidden_size, device=self.target.device)
        if taps is not None and len(taps):
            (self._last[row],) = self.fused.add_context(self._cache, [row], [taps])

    def _waiting(self, row: int) -> torch.Tensor | None:
        """The waiting taps [n, taps * D] of a row."""
        taps = self._taps[row]
        return torch.cat(taps) if len(taps) > 1 else taps[0] if taps else None

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        counts = [min(r.k, self.max_k) for r in requests]
        drafted, starts, last = self._launched(requests, counts) or self._eager(requests, counts)
        for request, state in zip(requests, last):
            self._last[request.row], self._taps[request.row] = state, []
        parts = [slice(start, start + n) for start, n in zip(starts, counts)]
        q = self.vocabulary.probs(drafted.tokens, drafted.drawn_from)
        rest = {
            name: [found[part] for part in parts]
            for name in ("confidence", "first_guess")
            if (found := getattr(drafted, name)) is not None
        }
        return Proposal(
            [drafted.tokens[part] for part in parts],
            [q[part] for part in parts],
            [self.vocabulary.spread_logits(drafted.logits[part]) for part in parts],
            sum(counts),
            self._cost(requests, counts),
            **rest,
        )

    def _eager(self, requests: Sequence[Request], counts: list[int]) -> tuple[Drafted, list[int], list[torch.Tensor]]:
        """What was drafted, where each row's slots begin, and the states of the rows' last context tokens."""
        states, logits, last = self._block(requests, counts)
        texts = to_device(self._texts(requests), states.device)
        uniforms = to_device(_uniforms(requests, counts), states.device, torch.float64)
        drafted = self._choose(self.fused, self.vocabulary, self.settings, states, logits, texts, uniforms, counts)
        return drafted, offsets(counts), last

    @torch.inference_mode()
    def _block(
        self, requests: Sequence[Request], counts: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """The block pass over all rows, packed, as FusedBlock.draft returns it."""
        rows = [r.row for r in requests]
        return self.fused.draft(
            self._cache,
            rows,
            list(map(self._waiting, rows)),
            [self._last[row] for row in rows],
            [r.anchor for r in requests],
            counts,
        )

    def _launched(
        self, requests: Sequence[Request], counts: list[int]
    ) -> tuple[Drafted, list[int], list[torch.Tensor]] | None:
        """The same as `_eager` from a CUDA graph; None where there is none."""
        if self.graphs is None:
            return None
        rows = [r.row for r in requests]
        return self.graphs.draft(
            self._cache,
            rows,
            list(map(self._waiting, rows)),
            [self._last[row] for row in rows],
            self._texts(requests),
            _uniforms(requests, counts),
            counts,
            self.vocabulary,
            self.settings,
            self._choose,
        )

    def _texts(self, requests: Sequence[Request]) -> list[list[int]]:
        """Of each row the token before its anchor, as far as it matters, and the anchor."""
        return [[r.anchor, r.anchor] for r in requests]

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """Of the block pass; the injection of the few new context tokens is small beside it and left out."""
        return pass_cost(self.fused.shape, counts, [self._cache.lengths[r.row] for r in requests], sum(counts))

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        if taps is not None and len(taps):
            self._taps[row].append(taps)

    def drop(self, row: int) -> None:
        self._cache.drop(row)
        del self._taps[row], self._last[row]


def _uniforms(requests: Sequence[Request], counts: Sequence[int]) -> list[float]:
    return [u for request, n in zip(requests, counts) for u in request.uniforms[:n]]


def _fused(net: BlockNet, target: CausalModel) -> FusedBlock:
    """One for each net and target, kept on the net; with its CUDA graphs on a GPU."""
    kept = getattr(net, "_fused", None)
    if kept is None or kept[0] is not target.head:
        kept = net._fused = (target.head, FusedBlock(net, target))
        kept[1].graphs = block_graphs_of(kept[1], target)
    return kept[1]
