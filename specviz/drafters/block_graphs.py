"""Rounds of a block drafter on a GPU as CUDA graphs: new context, block pass, head and serial head in one launch.

Sizes are rounded up as in models/graphs.py; a slot or a row that is padding writes to no row's place, and nobody looks
at its results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from specviz.drafters.draft_vocabulary import DraftVocabulary
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
from specviz.sampling.transfer import onto
from specviz.trace.records import Settings

if TYPE_CHECKING:
    from specviz.drafters.fused_block import LeanBlock


class BlockGraphs(Recordings):
    """The graphs of a LeanBlock."""

    def __init__(self, lean: LeanBlock, device: torch.device, longest: int, recorder: Recorder | None = None):
        c = lean.config
        super().__init__(c.layers, c.kv_heads, c.head_dim, device, torch.float32, longest, recorder)
        self.lean = lean

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
        """Bring the waiting taps [n, taps * D] of the rows into their context and draft counts[i] slots for rows[i].

        last_states: [D] each, of the last context token before. texts: of each row the token before its anchor, and
        the anchor; uniforms [sum of counts]; choose: what makes tokens of the block's states. Returns what was drafted,
        where in it each row's slots begin, and the rows' new last states; or None where it must be done eagerly.
        """
        c, fresh = self.lean.config, [0 if t is None else len(t) for t in taps]
        most_rows, most_fresh = bucket(len(rows), ROWS), bucket(max(fresh), (0, *TOKENS))
        most_slots = bucket(max(counts), TOKENS)
        if self.reason or not isinstance(cache, GraphCache) or None in (most_rows, most_fresh, most_slots):
            self.eager += 1
            return None
        most_slots = min(most_slots, c.block)
        store, slots = cache.store, [cache.slot(row) for row in rows]
        old = [cache.lengths[row] for row in rows]
        now = [length + n for length, n in zip(old, fresh)]
        cache.check(now, counts)
        columns = columns_bucket(max(length + n for length, n in zip(now, counts)), store.capacity)
        sizes = (most_rows, most_fresh, most_slots, columns, gathered(slots, most_rows, store))
        inputs = [
            onto(_numbers(sizes, slots, store.slots, old, fresh, counts, texts), self.device),
            onto(_padded(uniforms, counts, most_rows, most_slots), self.device, torch.float64),
            torch.stack([*last_states, *last_states[:1] * (most_rows - len(rows))]),
        ]
        if most_fresh:
            waiting = inputs[-1].new_zeros(most_rows * most_fresh, len(c.taps) * c.hidden_size)
            for i, of_row in enumerate(taps):
                if of_row is not None:
                    waiting[i * most_fresh : i * most_fresh + len(of_row)] = of_row
            inputs.append(waiting)
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
        for row, length in zip(rows, now):
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
        numbers: torch.Tensor,
        uniforms: torch.Tensor,
        last: torch.Tensor,
        taps: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """All of it, from its inputs alone: the parts of a Drafted of R * K slots, and the last states [R, D]."""
        rows, fresh, slots, columns, gather = sizes
        positions, written, end, texts, at, to, seen, read = numbers.split(
            [rows * n for n in (fresh, fresh, 1, 2, slots, slots, slots, 1)]
        )
        if fresh:
            states, keys, values = self.lean.context_of(taps, positions, self.longest)
            for kept, new in ((store.keys, keys), (store.values, values)):
                for layer, of_layer in zip(kept, new):
                    layer[written, :, positions] = of_layer
            last = torch.where((end >= 0)[:, None], states[end.clamp(min=0)], last)
        texts = texts.view(rows, 2)
        attend = store_attention(store, columns, at, to, seen, read, gather, self.lean.config.heads // self.kv_heads)
        x = self.lean.block(texts[:, 1], last, [slots] * rows, at, self.longest, attend)
        drafted = choose(self.lean, vocabulary, settings, x, self.lean.head(x), texts, uniforms, [slots] * rows)
        found = {f.name: t for f in fields(drafted) if (t := getattr(drafted, f.name)) is not None}
        return {**found, "last": last}


def _numbers(
    sizes: tuple,
    slots: Sequence[int],
    nowhere: int,
    old: Sequence[int],
    fresh: Sequence[int],
    counts: Sequence[int],
    texts: Sequence[Sequence[int]],
) -> list[int]:
    """All whole numbers of a pass: of the new context tokens positions [R * F] and slots that are written [R * F], and
    which of them is each row's last [R] (-1: none); texts [R * 2]; of the block's slots positions, slots that are
    written and the last position that is seen [R * K] each; the rows' slots [R]."""
    rows, most_fresh, most_slots, _, _ = sizes
    positions, written, end, at, to, seen = ([] for _ in range(6))
    for i, (slot, length, n, k) in enumerate(zip(slots, old, fresh, counts)):
        now, last = length + n, length + n + k - 1
        positions += [*range(length, now), *[0] * (most_fresh - n)]
        written += [slot] * n + [nowhere] * (most_fresh - n)
        end.append(i * most_fresh + n - 1 if n else -1)
        at += [*range(now, last + 1), *[last] * (most_slots - k)]
        to += [slot] * k + [nowhere] * (most_slots - k)
        seen += [last] * most_slots
    lists = (
        (positions, most_fresh, 0),
        (written, most_fresh, nowhere),
        (end, 1, -1),
        ([token for text in texts for token in text], 2, 0),
        (at, most_slots, 0),
        (to, most_slots, nowhere),
        (seen, most_slots, 0),
        (list(slots), 1, nowhere),
    )
    return [number for of, each, spare in lists for number in [*of, *[spare] * (rows * each - len(of))]]


def _padded(uniforms: Sequence[float], counts: Sequence[int], rows: int, slots: int) -> list[float]:
    """The rows' uniforms, each row's filled up to so many slots."""
    given = iter(uniforms)
    found = [u for k in counts for u in [*(next(given) for _ in range(k)), *[0.5] * (slots - k)]]
    return [*found, *[0.5] * (rows * slots - len(found))]


def block_graphs_of(lean: LeanBlock, target: CausalModel) -> BlockGraphs | None:
    """The graphs of a block drafter: None on anything but a CUDA GPU."""
    return BlockGraphs(lean, target.device, last_position(target)) if target.device.type == "cuda" else None
