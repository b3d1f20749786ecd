"""A block drafter's weights, merged and packed for drafting by fused operators, kernels.c or CUDA graphs.

Matrices with the same input are one product, and the context's keys and values are computed for all layers at once.
Where kernels.c has kernels for them, weights are rounded to 4 bits (kernels/packed.py), the head's to 8; otherwise they
are stored in bfloat16 where that is faster. Drafts are drawn from the distributions of exactly these products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from specviz.drafters.block_net import BlockNet, SerialHead, rope_tables
from specviz.hardware.costs import ModelShape
from specviz.kernels.packed import PackedLinear
from specviz.models.causal import CausalModel
from specviz.models.fused import FusedLayer, FusedLayers, RotaryTables
from specviz.models.linear import SMALL_BYTES, pick_format
from specviz.models.native_layers import NativeLayers, supports
from specviz.models.weight_storage import Product


@dataclass(frozen=True, kw_only=True)
class SerialWeights:
    """The weights of a SerialHead, split by input: the states' part is computed for all slots at once."""

    eps: float
    from_state: Product
    """[D + inner, D]: the state's part of the refined state and of the inner layer"""
    from_tokens: Product
    """[D + inner, 2 D]: the part of the embeddings of the two tokens before"""
    bias: torch.Tensor
    """[D + inner]"""
    outer: Product
    """[D, inner]"""
    gain: torch.Tensor
    """[D]"""
    confidence: torch.Tensor
    """[2 D + 1]"""
    confidence_bias: torch.Tensor
    temperatures: torch.Tensor
    """[block]"""

    @classmethod
    def of(cls, serial: SerialHead, product: Callable[[torch.Tensor], Product]) -> SerialWeights:
        """product: builds a linear layer from a weight [out, in]."""
        size, inner = serial.state.weight.shape[0], serial.inner.weight
        return cls(
            eps=serial.norm.eps,
            from_state=product(torch.cat([serial.state.weight, inner[:, 2 * size :]])),
            from_tokens=product(torch.cat([serial.direct.weight, inner[:, : 2 * size]])),
            bias=torch.cat([torch.zeros_like(serial.state.weight[:, 0]), serial.inner.bias]),
            outer=product(serial.outer.weight),
            gain=serial.norm.weight,
            confidence=serial.confidence.weight[0],
            confidence_bias=serial.confidence.bias,
            temperatures=serial.temperatures,
        )


class BlockWeights:
    """The weights of a BlockNet, and its target's embedding and head."""

    def __init__(self, net: BlockNet, target: CausalModel):
        c = self.config = net.config
        matrices = [p for p in net.parameters() if p.ndim == 2]
        size = sum(p.nbytes for p in matrices)
        self.packed = size >= SMALL_BYTES and supports((p for p in matrices if p.shape[0] > 1), c.head_dim, 4)
        """Whether the weights are packed for kernels.c."""
        weight_format = pick_format(matrices, size, (torch.bfloat16,), rows=(1, 8))
        product = partial(PackedLinear, bits=4, nearest=True) if self.packed else weight_format.linear
        self.embedding = target.embedding
        """[V, D], the target's"""
        head = target.head[net.draft_ids].float()
        self.head = PackedLinear(head, 8, nearest=True) if self.packed else weight_format.linear(head)
        """[Vd, D]"""
        self.fuse, self.fuse_gain = product(net.fuse.weight), net.fuse_norm.weight
        """[D, len(taps) * D] and [D]"""
        self.inputs = product(torch.cat([net.anchor_in.weight, net.mask_in.weight]))
        """[2 D, 2 D]: the input of slot 0, and of every later slot"""
        self.masks, self.gain = net.masks, net.norm.weight
        self.layers = self._layers(net, product)
        self.context = product(
            torch.cat(
                [
                    torch.cat([layer.k_proj.weight, layer.v_proj.weight]) * layer.input_norm.weight
                    for layer in net.layers
                ]
            )
        )
        """[layers * 2 kv_heads d, D]: keys and values of every layer, the gain of its norm included"""
        self.serial = SerialWeights.of(net.serial, product) if c.serial else None
        self.rotary = RotaryTables(lambda positions: _doubled(*rope_tables(positions, c.head_dim, c.rope_theta)))
        extra = net.anchor_in.weight.numel() + net.mask_in.weight.numel() + net.masks.numel()
        self.weight_bytes: float = self.layers.products[0].weight_bytes
        """Bytes of one weight of a layer."""
        self.shape = ModelShape(
            name="block drafter",
            layers=c.layers,
            hidden=c.hidden_size,
            heads=c.heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            ffn=c.ffn,
            vocab=len(net.draft_ids),
            weight_bytes=self.weight_bytes,
            head_bytes=self.head.weight_bytes,
            small_weights=extra,
        )
        """For the cost of a block pass: its layers, and a head of the draft vocabulary."""

    def _layers(self, net: BlockNet, product: Callable[[torch.Tensor], Product]) -> NativeLayers | FusedLayers:
        c = self.config
        norms = [(layer.input_norm.weight, layer.post_norm.weight) for layer in net.layers]
        weights = [
            (
                torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]),
                layer.o_proj.weight,
                torch.cat([layer.gate_proj.weight, layer.up_proj.weight]),
                layer.down_proj.weight,
            )
            for layer in net.layers
        ]
        if self.packed:
            return NativeLayers(norms, weights, c.rms_eps, c.kv_heads, c.head_dim, 4, nearest=True)
        layers = [FusedLayer(gains, [product(weight) for weight in of], c.rms_eps) for gains, of in zip(norms, weights)]
        return FusedLayers(layers, c.kv_heads, c.head_dim)


def _doubled(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """RoPE tables [..., d / 2] -> [..., d], each half like the other."""
    return torch.cat([cos, cos], -1), torch.cat([sin, sin], -1)
