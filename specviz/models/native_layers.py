"""A decoder's layers by kernels.c: all of them in one call, without a step of Python between.

Knows products, caches and attention; what stands before and after the layers is models/lean.py's and the drafters'.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterable, Sequence
from typing import Self

import torch

from specviz.kernels import build
from specviz.kernels.packed import PackedLinear, bring_together, room_for
from specviz.models.attention import PackedAttention, native_pass
from specviz.models.cache import RaggedCache


class NativeLayers:
    """As models.lean.Blocks."""

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
        """For each layer the gains [D] of its two norms, and its four weights as models.lean.Block wants them. dim: of
        a head. bits, nearest: as PackedLinear's. Raises ValueError if the weights cannot be held in so many bits."""
        if dim % 64:
            raise ValueError(f"it needs heads of 64 numbers, or twice as many, not of {dim}.")
        self._norms, self._eps, self._kv_heads, self._dim = norms, eps, kv_heads, dim
        self._bits = bits
        self._products = [[PackedLinear(weight, bits, nearest) for weight in layer] for layer in weights]
        bring_together(self.products)

    @property
    def products(self) -> list[PackedLinear]:
        """In the order of a pass."""
        return [product for layer in self._products for product in layer]

    def first(self, layers: int) -> Self:
        """These first layers."""
        made = copy.copy(self)
        made._norms, made._products = self._norms[:layers], self._products[:layers]
        return made

    def __call__(
        self,
        hidden: torch.Tensor,
        attend: PackedAttention,
        cos: torch.Tensor,
        sin: torch.Tensor,
        taps: Sequence[int] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        tokens, width = hidden.shape
        qkv, out, gate_up, _ = (product.shape for product in self._products[0])
        inner = gate_up[0] // 2
        hidden = hidden.clone(memory_format=torch.contiguous_format)
        tapped = {layer: torch.empty_like(hidden) for layer in taps}
        layers = self.on(attend.plan.cache)
        for i, layer in enumerate(layers):
            layer.tap = tapped[i].data_ptr() if i in tapped else None
        of_pass, _kept = native_pass(
            attend.plan, out[1] // self._dim, self._kv_heads, self._dim, cos, sin, attend.plan.cache.keys[0].shape[2]
        )
        numbers = torch.empty(tokens * (qkv[0] + out[1] + 2 * inner))
        room = room_for(tokens, max(width, out[1], inner))
        build.kernels(self._bits).decode_layers(
            layers,
            len(layers),
            ctypes.byref(of_pass),
            hidden.data_ptr(),
            width,
            inner,
            self._eps,
            self._bits,
            numbers.data_ptr(),
            room.data_ptr(),
            torch.get_num_threads(),
        )
        return hidden, tapped

    def on(self, cache: RaggedCache) -> ctypes.Array[build.Layer]:
        """The layers as kernels.c wants them, with a cache's stores: made anew when these have grown."""
        first, _ = cache.stores(0, self._kv_heads, self._dim)
        if cache.native is None or cache.native[0] is not first:
            stores = [cache.stores(i, self._kv_heads, self._dim) for i in range(len(self._products))]
            cache.native = (
                first,
                (build.Layer * len(stores))(
                    *(
                        (
                            *(gain.data_ptr() for gain in norms),
                            *(product.packed.data_ptr() for product in products),
                            keys.data_ptr(),
                            values.data_ptr(),
                            None,
                        )
                        for norms, products, (keys, values) in zip(self._norms, self._products, stores)
                    )
                ),
            )
        return cache.native[1]
