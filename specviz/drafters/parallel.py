"""The parallel drafter (after DFlash, arXiv 2602.06036): K tokens from one pass over a block.

The block's inputs are the anchor's embedding and trained mask vectors, one per slot; slot k predicts the
token k + 1 places after the anchor. Outputs of several target layers ("taps") are fused once per context
token and injected into the keys and values of every draft layer, so the context costs no queries and no
feed-forward. Attention inside the block is bidirectional. Embedding and head are the target's own, frozen;
the head is restricted to a draft vocabulary.

Two deviations from the paper: each tap is RMS-normed before it is fused, and the fused state of the last
context token is also added to the block's input (small drafters gain by it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from specviz.drafters.base import Proposal, Request
from specviz.drafters.block_graphs import block_graphs_of
from specviz.drafters.block_net import BlockNet
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.slots import BlockInputs, BlockOutput, Drafted
from specviz.errors import PairError
from specviz.hardware.costs import pass_cost
from specviz.models.causal import CausalModel
from specviz.sampling.transfer import offsets, to_device
from specviz.trace.records import Cost, Settings


def choose_slots(
    fused: FusedBlock,
    vocabulary: DraftVocabulary,
    settings: Settings,
    block: BlockOutput,
) -> Drafted:
    """Choose every slot's token from its own logits, independently of the others."""
    tokens, drawn_from = vocabulary.choose(block.logits, settings, block.uniforms)
    return Drafted(tokens, block.logits, drawn_from)


class ParallelDrafter:
    """Proposes the most likely token of every slot at once; q is one-hot, so a draft is accepted with p.

    With sampled=True each slot is drawn from its own distribution instead: lossless too, but independent draws of
    neighbouring slots fit together worse, so fewer are accepted.
    """

    name = "parallel"
    parallel = True
    _choose = staticmethod(choose_slots)

    def __init__(self, net: BlockNet, target: CausalModel, settings: Settings, *, sampled: bool = False):
        """net: shared weights; the target supplies embedding and head. Raises PairError if they do not fit."""
        c = net.config
        if (c.hidden_size, c.vocab_size) != (target.hidden_size, target.vocab_size) or max(c.taps) >= target.layers:
            raise PairError(
                f"This drafter was trained for a target of width {c.hidden_size} and {c.vocab_size} tokens; the target "
                f"has {target.hidden_size} and {target.vocab_size}. Choose the drafter of this target."
            )
        self.net, self.target = net, target
        self.settings = settings if sampled else replace(settings, temperature=0.0)
        """Temperature, top-k and top-p of the draws."""
        self.taps, self.max_k = c.taps, c.block
        self.label = (
            f"parallel: {c.layers} layers draft a block at once from {len(c.taps)} of the target's layers; "
            + ("each slot drawn independently" if sampled else "the likeliest token per slot, q is one-hot")
        )
        shared = _shared_forms(net, target)
        self.fused, self.graphs = shared.fused, shared.graphs
        self.vocabulary = DraftVocabulary(net.draft_ids, target.vocab_size)
        self._cache = self.fused.new_cache() if self.graphs is None else self.graphs.new_cache()
        self._taps: dict[int, list[torch.Tensor]] = {}
        """Taps of context tokens that are not in the cache yet; they are added when the row drafts next."""
        self._last: dict[int, torch.Tensor] = {}
        """The state of each row's last context token."""

    @torch.inference_mode()
    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._cache.add(row, capacity + self.max_k)
        self._taps[row] = []
        self._last[row] = torch.zeros(self.net.config.hidden_size, device=self.target.device)
        if taps is not None and len(taps):
            (self._last[row],) = self.fused.add_context(self._cache, [row], [taps])

    def _pending_taps(self, row: int) -> torch.Tensor | None:
        """Taps [n, taps * D] of a row's context tokens that are not in the cache yet."""
        taps = self._taps[row]
        return torch.cat(taps) if len(taps) > 1 else taps[0] if taps else None

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        counts = [min(r.k, self.max_k) for r in requests]
        inputs = self._inputs(requests, counts)
        drafted, starts, last = self._graphed(inputs) or self._eager(inputs)
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

    def _inputs(self, requests: Sequence[Request], counts: list[int]) -> BlockInputs:
        rows = [r.row for r in requests]
        return BlockInputs(
            rows=rows,
            taps=[self._pending_taps(row) for row in rows],
            last_states=[self._last[row] for row in rows],
            texts=self._texts(requests),
            counts=counts,
            uniforms=[u for request, n in zip(requests, counts) for u in request.uniforms[:n]],
        )

    @torch.inference_mode()
    def _eager(self, inputs: BlockInputs) -> tuple[Drafted, list[int], list[torch.Tensor]]:
        """The drafts, the index of each row's first slot in them, and the states of the rows' last context tokens."""
        states, logits, last = self.fused.draft(self._cache, inputs)
        block = BlockOutput(
            states=states,
            logits=logits,
            texts=to_device(inputs.texts, states.device),
            uniforms=to_device(inputs.uniforms, states.device, torch.float64),
            counts=inputs.counts,
        )
        return self._choose(self.fused, self.vocabulary, self.settings, block), offsets(inputs.counts), last

    def _graphed(self, inputs: BlockInputs) -> tuple[Drafted, list[int], list[torch.Tensor]] | None:
        """As `_eager`, from a CUDA graph; None where there is none."""
        if self.graphs is None:
            return None
        return self.graphs.draft(self._cache, inputs, self.vocabulary, self.settings, self._choose)

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


class _SharedForms:
    """The fused form and the CUDA graphs of a net for one target, shared by its drafters."""

    def __init__(self, net: BlockNet, target: CausalModel):
        self.head = target.head
        self.fused = FusedBlock(net, target)
        self.graphs = block_graphs_of(self.fused, target)


_SHARED: WeakKeyDictionary[BlockNet, _SharedForms] = WeakKeyDictionary()
"""Of each net, for the target that it was used with last."""


def _shared_forms(net: BlockNet, target: CausalModel) -> _SharedForms:
    kept = _SHARED.get(net)
    if kept is None or kept.head is not target.head:
        kept = _SHARED[net] = _SharedForms(net, target)
    return kept
