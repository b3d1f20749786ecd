"""A decoder's layers as one call of kernels.c, without Python between the layers.

Embedding, final norm and head are the caller's (models/fused.py and the drafters).
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterable, Sequence
from typing import Self

import torch

from specviz.kernels import binding, packed
from specviz.kernels.packed import PackedLinear, move_to_huge_pages
from specviz.models.attention import Attend, PackedAttention, attention_metadata
from specviz.models.cache import RaggedCache

HEAD_DIM_MULTIPLE = 64
"""Attention reads heads in steps of this many floats."""


def supports(weights: Iterable[torch.Tensor], head_dim: int, bits: int) -> bool:
    """Whether NativeLayers runs layers with these weights and heads, rounded to that many bits."""
    return head_dim % HEAD_DIM_MULTIPLE == 0 and all(packed.supports(weight, bits) for weight in weights)


class NativeLayers:
    """As models.fused.FusedLayers, by kernels.c."""

    def __init__(
        self,
        norms: Sequence[Sequence[torch.Tensor]],
        weights: Iterable[Sequence[torch.Tensor]],
        eps: float,
        kv_heads: int,
        dim: int,
        bits: int,
        nearest: bool = False,
    ):
        """For each layer the gains [D] of its two norms, and its four weights in the order of models.fused.FusedLayer.
        dim: of a head. bits, nearest: as PackedLinear's. Raises ValueError if that cannot be."""
        if dim % HEAD_DIM_MULTIPLE:
            raise ValueError(f"it needs heads of {HEAD_DIM_MULTIPLE} values or a multiple of that, not of {dim}.")
        self._norms, self._eps, self._kv_heads, self._dim = norms, eps, kv_heads, dim
        self._bits = bits
        self._products = [[PackedLinear(weight, bits, nearest) for weight in layer] for layer in weights]
        move_to_huge_pages(self.products)
        (self._qkv_width, self.hidden), (_, self._width), _, (_, self.inner) = (p.shape for p in self._products[0])

    @property
    def products(self) -> list[PackedLinear]:
        """In the order of a pass."""
        return [product for layer in self._products for product in layer]

    @property
    def most_inputs(self) -> int:
        """Inputs of the product that has the most, for the input scratch."""
        return max(self.hidden, self._width, self.inner)

    def scratch_floats(self, tokens: int) -> int:
        """Floats of scratch that a pass of these tokens needs: queries, keys and values; attention; gate and up."""
        return tokens * (self._qkv_width + self._width + 2 * self.inner)

    def first(self, layers: int) -> Self:
        """These first layers."""
        made = copy.copy(self)
        made._norms, made._products = self._norms[:layers], self._products[:layers]
        return made

    def __call__(
        self,
        hidden: torch.Tensor,
        attend: Attend,
        cos: torch.Tensor,
        sin: torch.Tensor,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """As FusedLayers': hidden [N, D] float32 after all layers, and after the layers `taps`. cos, sin [N, 1, d].
        attend: a PackedAttention."""
        if not isinstance(attend, PackedAttention):
            raise TypeError("native layers attend to a RaggedCache only")
        tokens, plan = len(hidden), attend.plan
        hidden = hidden.clone(memory_format=torch.contiguous_format)
        tapped = {layer: torch.empty_like(hidden) for layer in taps}
        layers = self.bind(plan.cache)
        for i, layer in enumerate(layers):
            layer.tap = tapped[i].data_ptr() if i in tapped else None
        metadata, _buffers = attention_metadata(
            plan.slot_of,
            plan.position_of,
            plan.last_seen_of,
            cos,
            sin,
            self._width // self._dim,
            self._kv_heads,
            plan.cache.capacity,
        )
        scratch = torch.empty(self.scratch_floats(tokens))
        input_scratch = binding.input_scratch(tokens, self.most_inputs)
        binding.require(self._bits).decode_layers(
            layers,
            len(layers),
            ctypes.byref(metadata),
            binding.address("hidden", hidden, (tokens, self.hidden)),
            self.hidden,
            self.inner,
            self._eps,
            self._bits,
            scratch.data_ptr(),
            input_scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return hidden, tapped

    def bind(self, cache: RaggedCache) -> ctypes.Array[binding.DecoderLayer]:
        """kernels.c's layers with the addresses of weights and of this cache's keys and values; updated when the cache
        has been reallocated."""
        first, _ = cache.stores(0, self._kv_heads, self._dim)
        if cache.native is None or cache.native[0] is not first:
            cache.native = (
                first,
                (binding.DecoderLayer * len(self._products))(
                    *(binding.DecoderLayer(*self._layer(i, cache)) for i in range(len(self._products)))
                ),
            )
        return cache.native[1]

    def _layer(self, index: int, cache: RaggedCache) -> tuple[int | None, ...]:
        """The fields of one binding.DecoderLayer."""
        keys, values = cache.stores(index, self._kv_heads, self._dim)
        shape = (keys.shape[0], self._kv_heads, keys.shape[2], self._dim)
        return (
            *(binding.address("gain", gain, (self.hidden,)) for gain in self._norms[index]),
            *(product.address() for product in self._products[index]),
            binding.address("keys", keys, shape),
            binding.address("values", values, shape),
            None,
        )
