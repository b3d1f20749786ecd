"""CUDA graphs of a block drafter's rounds: new context, block pass, head and serial head in one launch.

Sizes are rounded up as in models/graphs.py. Padding writes to a cache slot that belongs to no row, and its results are
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import NamedTuple

import torch

from specviz.drafters.block_indices import BlockIndices, Padding
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.slots import BlockInputs, BlockOutput, Drafted
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel
from specviz.models.graphs import (
    ROWS,
    TOKENS,
    GraphCache,
    Recordings,
    Store,
    bucket,
    columns_bucket,
    gathered,
    last_position,
    store_attention,
)
from specviz.models.recorder import Recorder
from specviz.sampling.transfer import to_device
from specviz.trace.records import Settings

Choose = Callable[[FusedBlock, DraftVocabulary, Settings, BlockOutput], Drafted]
"""The signature of parallel.choose_slots and hybrid.refine_slots."""


class _Sizes(NamedTuple):
    """Sizes of a padded round, which its graph is recorded for."""

    rows: int
    context: int
    """New context tokens per row"""
    slots: int
    """Block slots per row"""
    columns: int
    """Cache columns that are read"""
    gather: bool
    """As `graphs.gathered` returns it"""


class BlockGraphs(Recordings):
    """CUDA graphs of a FusedBlock."""

    def __init__(self, fused: FusedBlock, device: torch.device, longest: int, recorder: Recorder | None = None):
        c = fused.config
        super().__init__(c.layers, c.kv_heads, c.head_dim, device, torch.float32, longest, recorder)
        self.fused = fused

    def draft(
        self, cache: RaggedCache, inputs: BlockInputs, vocabulary: DraftVocabulary, settings: Settings, choose: Choose
    ) -> tuple[Drafted, list[int], list[torch.Tensor]] | None:
        """One round as FusedBlock.draft, with the choice of tokens by `choose`. Returns the drafts, the index of each
        row's first slot in them, and the rows' new last states; or None if the round must run eagerly."""
        rows, counts = inputs.rows, inputs.counts
        context = [0 if t is None else len(t) for t in inputs.taps]
        lengths = [cache.lengths[row] for row in rows]
        extended = [length + n for length, n in zip(lengths, context)]
        sizes = self._sizes(cache, inputs, context, extended)
        if sizes is None or not isinstance(cache, GraphCache):
            self.eager += 1
            return None
        store, slots = cache.store, [cache.slot(row) for row in rows]
        uniforms = _padded(inputs.uniforms, counts, sizes.rows, sizes.slots)
        tensors = [
            to_device(_indices(sizes, slots, store.slots, lengths, context, inputs), self.device),
            to_device(uniforms, self.device, torch.float64),
            torch.stack([*inputs.last_states, *list(inputs.last_states[:1]) * (sizes.rows - len(rows))]),
            *self._padded_taps(inputs, sizes),
        ]

        def chooser(block: BlockOutput) -> Drafted:
            return choose(self.fused, vocabulary, settings, block)

        found = self.launch(
            store,
            (*sizes, choose, settings.temperature, settings.top_k, settings.top_p),
            tensors,
            lambda *given: self._pass(store, sizes, chooser, *given),
            8 * sizes.rows * sizes.slots * len(vocabulary),
        )
        if found is None:
            return None
        for row, length in zip(rows, extended):
            cache.lengths[row] = length
        # copies: the next launch writes its results to the same memory
        drafts = len(rows) * sizes.slots
        kept = {name: t[: len(rows) if name == "last" else drafts].clone() for name, t in found.items()}
        last = list(kept.pop("last"))
        return Drafted(**kept), [sizes.slots * i for i in range(len(rows))], last

    def _sizes(
        self, cache: RaggedCache, inputs: BlockInputs, context: Sequence[int], extended: Sequence[int]
    ) -> _Sizes | None:
        """The sizes that a round is padded to; None if it must run eagerly. context: new tokens of each row; extended:
        the rows' lengths with them. Raises ValueError if a row would outgrow its capacity."""
        rows, fresh = bucket(len(inputs.rows), ROWS), bucket(max(context), (0, *TOKENS))
        slots = bucket(max(inputs.counts), TOKENS)
        if self.reason or not isinstance(cache, GraphCache) or rows is None or fresh is None or slots is None:
            return None
        cache.check(extended, inputs.counts)
        store = cache.store
        longest = max(length + n for length, n in zip(extended, inputs.counts))
        columns = columns_bucket(longest, store.capacity)
        gather = gathered([cache.slot(row) for row in inputs.rows], rows, store)
        return _Sizes(rows, fresh, min(slots, self.fused.config.block), columns, gather)

    def _padded_taps(self, inputs: BlockInputs, sizes: _Sizes) -> list[torch.Tensor]:
        """The rows' taps as one tensor [rows * context, taps * D]; nothing where no row has new context."""
        if not sizes.context:
            return []
        c = self.fused.config
        padded = inputs.last_states[0].new_zeros(sizes.rows * sizes.context, len(c.taps) * c.hidden_size)
        for i, taps in enumerate(inputs.taps):
            if taps is not None:
                padded[i * sizes.context : i * sizes.context + len(taps)] = taps
        return [padded]

    def _pass(
        self,
        store: Store,
        sizes: _Sizes,
        choose: Callable[[BlockOutput], Drafted],
        indices: torch.Tensor,
        uniforms: torch.Tensor,
        last: torch.Tensor,
        taps: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """One padded round from its inputs alone: the fields of a Drafted of R * K slots, and last states [R, D]."""
        rows, fresh, slots = sizes.rows, sizes.context, sizes.slots
        positions, written, ends, at, to, seen, texts, read = indices.split(
            [rows * n for n in (fresh, fresh, 1, slots, slots, slots, 2, 1)]
        )
        if taps is not None:
            states, keys, values = self.fused.context_of(taps, positions, self.longest)
            for kept, new in ((store.keys, keys), (store.values, values)):
                for layer, of_layer in zip(kept, new):
                    layer[written, :, positions] = of_layer
            last = torch.where((ends >= 0)[:, None], states[ends.clamp(min=0)], last)
        texts, counts = texts.view(rows, 2), [slots] * rows
        shared = self.fused.config.heads // self.kv_heads
        attend = store_attention(store, sizes.columns, at, to, seen, read, sizes.gather, shared)
        x = self.fused.block(texts[:, 1], last, counts, at, self.longest, attend)
        drafted = choose(
            BlockOutput(states=x, logits=self.fused.head(x), texts=texts, uniforms=uniforms, counts=counts)
        )
        found = {f.name: t for f in fields(drafted) if (t := getattr(drafted, f.name)) is not None}
        return {**found, "last": last}


def _indices(
    sizes: _Sizes,
    slots: Sequence[int],
    unused_slot: int,
    lengths: Sequence[int],
    context: Sequence[int],
    inputs: BlockInputs,
) -> list[int]:
    """All integers of a pass in one list: BlockIndices padded to `sizes`, then texts [R * 2], then the cache slots that
    are read [R]."""
    padding = Padding(sizes.rows, sizes.context, sizes.slots, unused_slot)
    made = BlockIndices.of(slots, lengths, context, inputs.counts, padding)
    missing = sizes.rows - len(slots)
    return [
        *made.context_positions,
        *made.context_slots,
        *made.context_ends,
        *made.positions,
        *made.slots,
        *made.last_seen,
        *(token for text in inputs.texts for token in text),
        *[0] * (2 * missing),
        *slots,
        *[unused_slot] * missing,
    ]


def _padded(uniforms: Sequence[float], counts: Sequence[int], rows: int, slots: int) -> list[float]:
    """The rows' uniforms, each row's padded to `slots`, and padded rows."""
    given = iter(uniforms)
    found = [u for k in counts for u in [*(next(given) for _ in range(k)), *[0.5] * (slots - k)]]
    return [*found, *[0.5] * (rows * slots - len(found))]


def block_graphs_of(fused: FusedBlock, target: CausalModel) -> BlockGraphs | None:
    """The graphs of a block drafter; None on anything but a CUDA GPU."""
    return BlockGraphs(fused, target.device, last_position(target)) if target.device.type == "cuda" else None
