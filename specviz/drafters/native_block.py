"""A block drafter's round as one call of kernels.c (new context, block pass, head), and one slot of a serial head.

The same as FusedBlock's steps on packed weights, where Python and torch's operators between the products would take
longer than the products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain

import torch

from specviz.drafters.block_indices import BlockIndices
from specviz.drafters.block_weights import BlockWeights
from specviz.kernels import binding
from specviz.models.attention import attention_metadata
from specviz.models.cache import RaggedCache


def _embedding(weights: BlockWeights) -> torch.Tensor:
    """The target's embedding [V, D] in bfloat16 or float32, which kernels.c reads."""
    kept = weights.embedding.dtype in (torch.bfloat16, torch.float32)
    return weights.embedding.contiguous() if kept else weights.embedding.float()


class NativeBlock:
    """The block pass on packed BlockWeights."""

    def __init__(self, weights: BlockWeights):
        c = self._config = weights.config
        self._weights, self._outputs = weights, weights.head.shape[0]
        hidden, layers, embedding = c.hidden_size, weights.layers, _embedding(weights)
        gains = [t.detach().float().contiguous() for t in (weights.fuse_gain, weights.gain, torch.ones(hidden))]
        masks = weights.masks.detach().float().contiguous()
        self._kept = [embedding, *gains, masks]
        self._block = binding.BlockDrafter(
            hidden,
            layers.inner,
            len(c.taps),
            c.layers,
            self._outputs,
            c.rms_eps,
            8 * embedding.element_size(),
            binding.address("embedding", embedding, (c.vocab_size, hidden), embedding.dtype),
            *(binding.address("gain", gain, (hidden,)) for gain in gains),
            binding.address("masks", masks, (c.block, hidden)),
            *(product.address() for product in (weights.fuse, weights.context, weights.inputs, weights.head)),
        )

    def draft(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        taps: Sequence[torch.Tensor | None],
        last_states: Sequence[torch.Tensor],
        anchors: Sequence[int],
        counts: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """As FusedBlock.draft. Raises ValueError if a row would outgrow its capacity, a row has more slots than the
        block, or a tensor has the wrong shape."""
        c, weights = self._config, self._weights
        hidden, width = c.hidden_size, len(c.taps) * c.hidden_size
        fresh = [0 if t is None else len(t) for t in taps]
        lengths = [cache.lengths[row] for row in rows]
        extended = [length + n for length, n in zip(lengths, fresh)]
        cache.check(extended, counts)
        if max(counts) > c.block or not 0 <= min(anchors) <= max(anchors) < c.vocab_size:
            raise ValueError(f"a block has {c.block} slots and {c.vocab_size} tokens, not {counts} and {anchors}")
        n, tokens = sum(fresh), sum(counts)
        context, block, row_of, slot_of, ends, anchors_at = self._indices(cache, rows, lengths, fresh, counts, anchors)
        layers = weights.layers.bind(cache)
        capacity = cache.keys[0].shape[2]
        cos, sin = weights.rotary.rows(torch.cat([context[1], block[1]]), max(map(sum, zip(extended, counts))))
        metadata = [
            attention_metadata(*context, None, cos[:n], sin[:n], c.heads, c.kv_heads, capacity),
            attention_metadata(*block, cos[n:], sin[n:], c.heads, c.kv_heads, capacity),
        ]
        new_taps = torch.cat([t for t in taps if t is not None]).float().contiguous() if n else None
        last = torch.stack(list(last_states))
        states, logits = torch.empty(tokens, hidden), torch.empty(tokens, self._outputs)
        of_context = n * (width + hidden + c.layers * 2 * c.kv_heads * c.head_dim)
        scratch = torch.empty((n + 4 * len(rows)) * hidden + max(of_context, weights.layers.scratch_floats(tokens)))
        input_scratch = binding.input_scratch(
            max(n, tokens, len(rows)), max(width, 2 * hidden, weights.layers.most_inputs)
        )
        binding.kernels(4).draft_block(
            ctypes.byref(self._block),
            layers,
            ctypes.byref(metadata[0][0]),
            None if new_taps is None else binding.address("taps", new_taps, (n, width)),
            ends.data_ptr(),
            len(rows),
            binding.address("last states", last, (len(rows), hidden)),
            anchors_at.data_ptr(),
            ctypes.byref(metadata[1][0]),
            row_of.data_ptr(),
            slot_of.data_ptr(),
            states.data_ptr(),
            logits.data_ptr(),
            scratch.data_ptr(),
            input_scratch.data_ptr(),
            torch.get_num_threads(),
        )
        cache.lengths.update(zip(rows, extended))
        return states, logits, list(last)

    @staticmethod
    def _indices(
        cache: RaggedCache,
        rows: Sequence[int],
        lengths: list[int],
        fresh: list[int],
        counts: Sequence[int],
        anchors: Sequence[int],
    ) -> tuple:
        """BlockIndices as views of one tensor: (context slots, positions), (block slots, positions, last seen), row_of,
        slot_of, context_ends, and the anchors."""
        made = BlockIndices.of([cache.slot(row) for row in rows], lengths, fresh, counts)
        parts = (*made, anchors)
        views = torch.tensor([*chain.from_iterable(parts)]).split([*map(len, parts)])
        return views[:2], views[2:5], *views[5:]


class NativeSerial:
    """The serial head on packed BlockWeights."""

    def __init__(self, weights: BlockWeights):
        serial, size = weights.serial, weights.config.hidden_size
        self._size, self._inner, self._outputs = size, serial.outer.shape[1], weights.head.shape[0]
        embedding, gain = _embedding(weights), serial.gain.detach().float().contiguous()
        self._kept = [embedding, gain, weights]
        self._serial = binding.SerialHead(
            size,
            self._inner,
            self._outputs,
            serial.eps,
            8 * embedding.element_size(),
            binding.address("embedding", embedding, (weights.config.vocab_size, size), embedding.dtype),
            binding.address("gain", gain, (size,)),
            *(product.address() for product in (serial.of_tokens, serial.outer, weights.head)),
        )

    def refine(
        self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As FusedBlock.refine. Raises ValueError for other shapes or types."""
        rows, size = len(previous), self._size
        states, logits = torch.empty(rows, size), torch.empty(rows, self._outputs)
        scratch = torch.empty(rows * (3 * size + 2 * self._inner))
        input_scratch = binding.input_scratch(rows, max(2 * size, self._inner))
        prepared, previous, before = prepared.contiguous(), previous.contiguous(), before.contiguous()
        binding.kernels(4).refine(
            ctypes.byref(self._serial),
            rows,
            binding.address("prepared", prepared, (rows, size + self._inner)),
            binding.address("previous", previous, (rows,), torch.int64),
            binding.address("before", before, (rows,), torch.int64),
            states.data_ptr(),
            logits.data_ptr(),
            scratch.data_ptr(),
            input_scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return states, logits
