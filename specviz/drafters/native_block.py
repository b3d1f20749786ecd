"""Drafting with kernels.c: a block drafter's round (new context, block pass, head) as one call, and the serial head.

FusedBlock's steps on packed weights. Between products, Python and torch's operators would take longer than the products
themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch

from specviz.drafters.block_indices import BlockIndices
from specviz.drafters.block_weights import BlockWeights
from specviz.drafters.slots import BlockInputs
from specviz.kernels import binding
from specviz.kernels.packed import PackedLinear
from specviz.models.attention import attention_metadata
from specviz.models.cache import RaggedCache
from specviz.models.native_layers import NativeLayers
from specviz.models.weight_storage import Product


def _embedding(weights: BlockWeights) -> torch.Tensor:
    """The target's embedding [V, D] in bfloat16 or float32, which kernels.c reads."""
    kept = weights.embedding.dtype in (torch.bfloat16, torch.float32)
    return weights.embedding.contiguous() if kept else weights.embedding.float()


def _packed_address(product: Product) -> int:
    """The address of a packed product's weight. Raises ValueError if the product is not packed for kernels.c."""
    if not isinstance(product, PackedLinear):
        raise ValueError("the weights are not packed for kernels.c")
    return product.address()


class _RoundIndices(NamedTuple):
    """BlockIndices as int64 tensors, and the anchors."""

    context_slots: torch.Tensor
    context_positions: torch.Tensor
    slots: torch.Tensor
    positions: torch.Tensor
    last_seen: torch.Tensor
    row_of: torch.Tensor
    slot_of: torch.Tensor
    context_ends: torch.Tensor
    anchors: torch.Tensor

    @classmethod
    def of(cls, indices: BlockIndices, anchors: Sequence[int]) -> _RoundIndices:
        """Views of one tensor."""
        parts = (*indices, anchors)
        return cls(*torch.tensor([*chain.from_iterable(parts)]).split([len(part) for part in parts]))


class NativeBlock:
    """The block pass on packed BlockWeights."""

    def __init__(self, weights: BlockWeights):
        if not isinstance(weights.layers, NativeLayers):
            raise ValueError("the block's weights are not packed for kernels.c")
        c = self._config = weights.config
        self._weights, self._layers, self._outputs = weights, weights.layers, weights.head.shape[0]
        hidden, embedding = c.hidden_size, _embedding(weights)
        gains = [t.detach().float().contiguous() for t in (weights.fuse_gain, weights.gain, torch.ones(hidden))]
        masks = weights.masks.detach().float().contiguous()
        self._buffers = [embedding, *gains, masks]
        """Tensors that the structure points to"""
        self._block = binding.BlockDrafter(
            hidden,
            self._layers.inner,
            len(c.taps),
            c.layers,
            self._outputs,
            c.rms_eps,
            8 * embedding.element_size(),
            binding.address("embedding", embedding, (c.vocab_size, hidden), embedding.dtype),
            *(binding.address("gain", gain, (hidden,)) for gain in gains),
            binding.address("masks", masks, (c.block, hidden)),
            *(_packed_address(p) for p in (weights.fuse, weights.context, weights.inputs, weights.head)),
        )

    def draft(self, cache: RaggedCache, inputs: BlockInputs) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """As FusedBlock.draft. Raises ValueError if a row would outgrow its capacity, a row has more slots than the
        block, or a tensor has the wrong shape."""
        c, rows, counts, anchors = self._config, inputs.rows, inputs.counts, inputs.anchors
        fresh = [0 if t is None else len(t) for t in inputs.taps]
        lengths = [cache.lengths[row] for row in rows]
        extended = [length + n for length, n in zip(lengths, fresh)]
        cache.check(extended, counts)
        if max(counts) > c.block or not 0 <= min(anchors) <= max(anchors) < c.vocab_size:
            raise ValueError(f"a block has {c.block} slots and {c.vocab_size} tokens, not {counts} and {anchors}")
        indices = _RoundIndices.of(BlockIndices.of([cache.slot(row) for row in rows], lengths, fresh, counts), anchors)
        taps = [t for t in inputs.taps if t is not None]
        new_taps = torch.cat(taps).float().contiguous() if taps else None
        last = torch.stack(list(inputs.last_states))
        longest = max(map(sum, zip(extended, counts)))
        states, logits = self._run(cache, indices, new_taps, last, longest)
        cache.lengths.update(zip(rows, extended))
        return states, logits, list(last)

    def _run(
        self,
        cache: RaggedCache,
        indices: _RoundIndices,
        new_taps: torch.Tensor | None,
        last: torch.Tensor,
        longest: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The call of draft_block: states [M, D] and logits [M, Vd] of M slots. new_taps [n, len(taps) * D] or None;
        last [R, D] is overwritten with the new last states; longest: no position exceeds it."""
        c, hidden, width = self._config, self._config.hidden_size, len(self._config.taps) * self._config.hidden_size
        n, tokens, rows = len(indices.context_slots), len(indices.slots), len(last)
        layers = self._layers.bind(cache)
        capacity = cache.capacity
        positions = torch.cat([indices.context_positions, indices.positions])
        cos, sin = self._weights.rotary.rows(positions, longest)
        context, _context_buffers = attention_metadata(
            *indices[:2], None, cos[:n], sin[:n], c.heads, c.kv_heads, capacity
        )
        block, _block_buffers = attention_metadata(*indices[2:5], cos[n:], sin[n:], c.heads, c.kv_heads, capacity)
        states, logits = torch.empty(tokens, hidden), torch.empty(tokens, self._outputs)
        context_floats = n * (width + hidden + c.layers * 2 * c.kv_heads * c.head_dim)
        scratch = torch.empty((n + 4 * rows) * hidden + max(context_floats, self._layers.scratch_floats(tokens)))
        input_scratch = binding.input_scratch(max(n, tokens, rows), max(width, 2 * hidden, self._layers.most_inputs))
        binding.require(4).draft_block(
            ctypes.byref(self._block),
            layers,
            ctypes.byref(context),
            None if new_taps is None else binding.address("taps", new_taps, (n, width)),
            indices.context_ends.data_ptr(),
            rows,
            binding.address("last states", last, (rows, hidden)),
            indices.anchors.data_ptr(),
            ctypes.byref(block),
            indices.row_of.data_ptr(),
            indices.slot_of.data_ptr(),
            states.data_ptr(),
            logits.data_ptr(),
            scratch.data_ptr(),
            input_scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return states, logits


class NativeSerial:
    """The serial head on packed BlockWeights."""

    def __init__(self, weights: BlockWeights):
        serial, size = weights.serial, weights.config.hidden_size
        if serial is None:
            raise ValueError("this drafter has no serial head")
        self._size, self._inner, self._outputs = size, serial.outer.shape[1], weights.head.shape[0]
        embedding, gain = _embedding(weights), serial.gain.detach().float().contiguous()
        self._buffers = [embedding, gain, weights]
        """What the structure points to"""
        self._serial = binding.SerialHead(
            size,
            self._inner,
            self._outputs,
            serial.eps,
            8 * embedding.element_size(),
            binding.address("embedding", embedding, (weights.config.vocab_size, size), embedding.dtype),
            binding.address("gain", gain, (size,)),
            *(_packed_address(product) for product in (serial.from_tokens, serial.outer, weights.head)),
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
        binding.require(4).refine(
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
