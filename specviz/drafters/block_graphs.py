"""A block drafter's rounds on a GPU as CUDA graphs: new context, block pass, head and serial head in one launch.

Sizes are rounded up as in models/graphs.py. Padding writes to a cache slot that belongs to no row, and its results are
not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch

from specviz.drafters.block_indices import BlockIndices, Padding
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.slots import Drafted
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel
from specviz.models.graphs import (
    ROWS,
    TOKENS,
    GraphCache,
    Recorder,
    Recordings,
    Store,
    bucket,
    columns_bucket,
    gathered,
    last_position,
    store_attention,
)
from specviz.sampling.transfer import to_device
from specviz.trace.records import Settings


class BlockGraphs(Recordings):
    """The graphs of a FusedBlock."""

    def __init__(self, fused: FusedBlock, device: torch.device, longest: int, recorder: Recorder | None = None):
        c = fused.config
        super().__init__(c.layers, c.kv_heads, c.head_dim, device, torch.float32, longest, recorder)
        self.fused = fused

    def draft(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        taps: Sequence[torch.Tensor | None],
        last_states: Sequence[torch.Tensor],
        texts: Sequence[Sequence[int]],
        uniforms: Sequence[float],
        counts: Sequence[int],
        vocabulary: DraftVocabulary,
        settings: Settings,
        choose: Callable[..., Drafted],
    ) -> tuple[Drafted, list[int], list[torch.Tensor]] | None:
        """Append the rows' pending taps [n, taps * D] (or None) to their context and draft counts[i] slots for rows[i].

        last_states: [D] each, of the last context token before. texts: of each row the token before its anchor, and
        the anchor; uniforms [sum of counts]; choose: picks tokens from the block's states. Returns the drafts, where
        each row's slots begin in them, and the rows' new last states; or None if the round must run eagerly.
        """
        c, fresh = self.fused.config, [0 if t is None else len(t) for t in taps]
        most_rows, most_fresh = bucket(len(rows), ROWS), bucket(max(fresh), (0, *TOKENS))
        most_slots = bucket(max(counts), TOKENS)
        if self.reason or not isinstance(cache, GraphCache) or None in (most_rows, most_fresh, most_slots):
            self.eager += 1
            return None
        most_slots = min(most_slots, c.block)
        store, slots = cache.store, [cache.slot(row) for row in rows]
        lengths = [cache.lengths[row] for row in rows]
        extended = [length + n for length, n in zip(lengths, fresh)]
        cache.check(extended, counts)
        columns = columns_bucket(max(length + n for length, n in zip(extended, counts)), store.capacity)
        sizes = (most_rows, most_fresh, most_slots, columns, gathered(slots, most_rows, store))
        inputs = [
            to_device(_indices(sizes, slots, store.slots, lengths, fresh, counts, texts), self.device),
            to_device(_padded(uniforms, counts, most_rows, most_slots), self.device, torch.float64),
            torch.stack([*last_states, *last_states[:1] * (most_rows - len(rows))]),
        ]
        if most_fresh:
            pending = inputs[-1].new_zeros(most_rows * most_fresh, len(c.taps) * c.hidden_size)
            for i, of_row in enumerate(taps):
                if of_row is not None:
                    pending[i * most_fresh : i * most_fresh + len(of_row)] = of_row
            inputs.append(pending)
        key = (*sizes, choose, settings.temperature, settings.top_k, settings.top_p)
        found = self.launch(
            store,
            key,
            inputs,
            lambda *given: self._pass(store, sizes, vocabulary, settings, choose, *given),
            8 * most_rows * most_slots * len(vocabulary),
        )
        if found is None:
            return None
        for row, length in zip(rows, extended):
            cache.lengths[row] = length
        # copies: the next launch writes its results to the same place
        kept = {name: t[: len(rows) if name == "last" else len(rows) * most_slots].clone() for name, t in found.items()}
        last = list(kept.pop("last"))
        return Drafted(**kept), [most_slots * i for i in range(len(rows))], last

    def _pass(
        self,
        store: Store,
        sizes: tuple,
        vocabulary: DraftVocabulary,
        settings: Settings,
        choose: Callable[..., Drafted],
        indices: torch.Tensor,
        uniforms: torch.Tensor,
        last: torch.Tensor,
        taps: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """One padded round from its inputs alone: the fields of a Drafted of R * K slots, and last states [R, D]."""
        rows, fresh, slots, columns, gather = sizes
        positions, written, ends, at, to, seen, texts, read = indices.split(
            [rows * n for n in (fresh, fresh, 1, slots, slots, slots, 2, 1)]
        )
        if fresh:
            states, keys, values = self.fused.context_of(taps, positions, self.longest)
            for kept, new in ((store.keys, keys), (store.values, values)):
                for layer, of_layer in zip(kept, new):
                    layer[written, :, positions] = of_layer
            last = torch.where((ends >= 0)[:, None], states[ends.clamp(min=0)], last)
        texts = texts.view(rows, 2)
        attend = store_attention(store, columns, at, to, seen, read, gather, self.fused.config.heads // self.kv_heads)
        x = self.fused.block(texts[:, 1], last, [slots] * rows, at, self.longest, attend)
        drafted = choose(self.fused, vocabulary, settings, x, self.fused.head(x), texts, uniforms, [slots] * rows)
        found = {f.name: t for f in fields(drafted) if (t := getattr(drafted, f.name)) is not None}
        return {**found, "last": last}


def _indices(
    sizes: tuple,
    slots: Sequence[int],
    unused_slot: int,
    lengths: Sequence[int],
    fresh: Sequence[int],
    counts: Sequence[int],
    texts: Sequence[Sequence[int]],
) -> list[int]:
    """All integers of a pass in one list: BlockIndices padded to `sizes`, then texts [R * 2], then the cache slots that
    are read [R]."""
    rows, most_fresh, most_slots, _, _ = sizes
    made = BlockIndices.of(slots, lengths, fresh, counts, Padding(rows, most_fresh, most_slots, unused_slot))
    missing = rows - len(slots)
    return [
        *made.context_positions,
        *made.context_slots,
        *made.context_ends,
        *made.positions,
        *made.slots,
        *made.last_seen,
        *(token for text in texts for token in text),
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
