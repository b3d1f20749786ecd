"""The Llama decoder written out with few operators: the same weights and arithmetic, a third of the dispatch.

A stock module spends 20 to 30 ms a step on two cores in some 7,000 Python and operator calls. Here q, k and v
are one product, gate and up are one, and the rotary tables are read once per pass. Where kernels.c has kernels for the
weights all layers are one call of it; elsewhere each product is done by the kernel that is fastest for its number of
rows (specviz/models/linear.py). Serves LlamaForCausalLM without biases
and with plain rotary embedding (the embedded target, SmolLM2 and Llama without scaled rotary); any other module
runs as it is.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self

import torch
from torch.nn import functional

from specviz.hardware.costs import ModelShape
from specviz.kernels.packed import PackedLinear, bring_together, bytes_of, fits
from specviz.loader.llama import Llama, LlamaConfig
from specviz.models.attention import Attend
from specviz.models.linear import Linear, choose
from specviz.models.native_layers import NativeLayers
from specviz.models.weight_storage import Fp16Linear, Product, can_hold_fp16


class Block:
    """One decoder layer's products by weights, each with what stands right before and after it."""

    def __init__(self, norms: Sequence[torch.Tensor], products: Sequence[Product], eps: float):
        """norms: the gains [D] of the two; products: by the weights of q, k and v together, of what attention gives, of
        gate and up together, and of what they give."""
        self._norm_1, self._norm_2 = norms
        self._qkv, self._out, self._gate_up, self._down = self.products = tuple(products)
        self._eps = eps

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, D] -> queries, keys and values side by side [N, (heads + 2 kv_heads) d]."""
        return self._qkv(norm(hidden, self._norm_1, self._eps))

    def out(self, mixed: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What attention gave [N, heads d], added to hidden [N, D]."""
        return hidden + self._out(mixed)

    def feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, D] and what the feed-forward makes of it, added up."""
        gate, up = self._gate_up(norm(hidden, self._norm_2, self._eps)).chunk(2, dim=-1)
        return hidden + self._down(functional.silu(gate).mul_(up))


class Blocks:
    """A decoder's layers."""

    def __init__(self, blocks: Sequence[Block], kv_heads: int, dim: int):
        """dim: of a head."""
        self._blocks, self._kv_heads, self._dim = blocks, kv_heads, dim

    @property
    def products(self) -> list[Product]:
        """In the order of a pass."""
        return [product for block in self._blocks for product in block.products]

    def first(self, layers: int) -> Self:
        """These first layers."""
        return type(self)(self._blocks[:layers], self._kv_heads, self._dim)

    def __call__(
        self, hidden: torch.Tensor, attend: Attend, cos: torch.Tensor, sin: torch.Tensor, taps: Sequence[int] = ()
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """hidden [N, D] before and after all of them, and after the tapped ones. cos, sin: of Turns."""
        tapped = {}
        for layer, block in enumerate(self._blocks):
            heads = block.qkv(hidden).view(len(hidden), -1, self._dim)
            hidden = block.feed_forward(block.out(attend(layer, heads, cos, sin, self._kv_heads), hidden))
            if layer in taps:
                tapped[layer] = hidden
        return hidden, tapped


class LeanLlama:
    """A forward over packed tokens. The module's own matrices become views of the merged ones, or are given up: none is
    held twice."""

    def __init__(self, module: torch.nn.Module, narrow: bool = False, four_bit: bool = False):
        """narrow: its matrices are rounded to 8 bits where kernels.c runs them, elsewhere held in bfloat16 or int8 if
        that is faster for one row. four_bit: those of its layers are held in the 4 bits in which they were published.
        Raises ValueError if that cannot be."""
        config, base = module.config, module.model
        self.embedding = module.get_input_embeddings().weight
        own = self.embedding.dtype
        self.stream = torch.float32 if self.embedding.device.type == "cpu" else own
        """What all but the products is computed in. On a CPU 16 bits would save nothing there and cost accuracy."""
        self.norm = base.norm.weight.to(self.stream)
        self.eps: float = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim: int = config.head_dim
        head = module.get_output_embeddings().weight
        bits = 4 if four_bit else 8 if narrow else {torch.bfloat16: 16, torch.float32: 32}.get(own)
        if bits and not four_bit and not _fits(base.layers, self.dim, bits):
            bits = None
        self.bits = bits
        """Of a layer's weight where kernels.c runs the layers, else None."""
        norms = [self._norms(layer) for layer in base.layers]
        if bits:
            self.layers = NativeLayers(
                norms, _given_up(base.layers), self.eps, self.kv_heads, self.dim, bits, nearest=narrow
            )
        else:
            matrices = [p for p in base.layers.parameters() if p.ndim == 2]
            form = choose(
                matrices, sum(p.nbytes for p in module.parameters()), (torch.bfloat16, torch.int8) if narrow else ()
            )
            blocks = [
                Block(gains, map(form.linear, _weights(layer)), self.eps) for gains, layer in zip(norms, base.layers)
            ]
            self.layers = Blocks(blocks, self.kv_heads, self.dim)
        self.weight_bytes = self.layers.products[0].weight_bytes
        """Of one weight of a layer."""
        if bits:
            self.head = _head(head.detach(), 32 if bits == 32 else 8, nearest=narrow)
        else:
            self.head = form.linear(head) if own == self.stream else _head(head.detach(), 16)
        theta = config.rope_parameters["rope_theta"]
        self._turns = Turns(lambda positions: _rotary(positions, self.dim, theta, self.stream))

    def _norms(self, layer: torch.nn.Module) -> list[torch.Tensor]:
        return [n.weight.to(self.stream) for n in (layer.input_layernorm, layer.post_attention_layernorm)]

    def first(self, layers: int) -> Self:
        """These first layers, then the same norm and head."""
        made = copy.copy(self)
        made.layers = self.layers.first(layers)
        return made

    @property
    def products(self) -> list[Product]:
        """Every product by a weight that a pass makes, the head's last."""
        return [*self.layers.products, self.head]

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        taps: Sequence[int],
        keep: torch.Tensor | None,
        longest: int,
    ) -> tuple[torch.Tensor | None, dict[int, torch.Tensor]]:
        """tokens and positions [N]; keep: which of the N get logits (None: all; empty: none, the head is not run);
        longest: no position exceeds it. Returns logits [len(keep), V] or None, and the outputs [N, D] of the tapped
        layers."""
        hidden = functional.embedding(tokens, self.embedding).to(self.stream)
        cos, sin = self._turns.rows(positions, longest)
        hidden, tapped = self.layers(hidden, attend, cos, sin, taps)
        if keep is not None and len(keep) == 0:
            return None, tapped
        kept = hidden if keep is None else hidden[keep]
        if isinstance(self.head, PackedLinear):
            return self.head(kept, self.norm, self.eps), tapped
        return self.head(norm(kept, self.norm, self.eps)), tapped


class Turns:
    """Rotary position embedding by tables that are made once and grow by doubling."""

    def __init__(self, make: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
        """make: positions [T] -> cos and sin [..., T, d], each half of d like the other (Llama's layout)."""
        self._make = make
        self._tables = (torch.empty(0), torch.empty(0))

    def rows(self, positions: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin [N, 1, d] of the positions [N], none of which exceeds `longest`."""
        if longest >= len(self._tables[0]):
            every = torch.arange(max(512, 1 << longest.bit_length()), device=positions.device)
            cos, sin = (table.reshape(len(every), -1) for table in self._make(every))
            # rotate_half(x) * sin = roll(x, d/2) * (sin with its first half negated)
            half = sin.shape[-1] // 2
            self._tables = (cos, torch.cat((-sin[:, :half], sin[:, half:]), dim=-1))
        cos, sin = self._tables
        return cos[positions][:, None], sin[positions][:, None]


def _rotary(positions: torch.Tensor, dim: int, theta: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [T, dim] of positions [T], by the very operations of the stock module."""
    turns = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = positions[:, None].float() * turns.to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def serves(module: torch.nn.Module) -> bool:
    """Whether LeanLlama computes what this module computes."""
    if isinstance(module, Llama):
        return True
    return type(module).__name__ == "LlamaForCausalLM" and LlamaConfig.from_dict(module.config.to_dict()) is not None


def held(shape: ModelShape, precision: str) -> ModelShape:
    """A plain Llama's shape with the bytes that it is held in here, on a CPU."""
    if precision not in ("bf16", "int4"):
        return shape
    return replace(
        shape,
        weight_bytes=bytes_of(16 if precision == "bf16" else 4),
        head_bytes=bytes_of(8),
        cache_bytes=4.0,
        activation_bytes=4.0,
    )


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm of x [..., D], with a gain or without. In fp32 written out: on a CPU that takes half the time of the
    composite operator."""
    if x.dtype != torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = x * scale
    return normed if weight is None else normed.mul_(weight)


def _weights(layer: torch.nn.Module) -> list[torch.Tensor]:
    """A layer's weights as Block wants them."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        _merged([attention.q_proj, attention.k_proj, attention.v_proj]),
        attention.o_proj.weight,
        _merged([mlp.gate_proj, mlp.up_proj]),
        mlp.down_proj.weight,
    ]


def _fits(layers: Sequence[torch.nn.Module], dim: int, bits: int) -> bool:
    """Whether kernels.c multiplies by these layers' weights in so many bits."""
    return dim % 64 == 0 and all(fits(p, bits) for layer in layers for p in layer.parameters() if p.ndim == 2)


def _given_up(layers: Sequence[torch.nn.Module]) -> Iterator[list[torch.Tensor]]:
    """Each layer's weights as Block wants them, which the layer then has no more: they are not held twice."""
    for layer in layers:
        yield _weights(layer)
        for part in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
            part.weight = torch.nn.Parameter(part.weight.to("meta"), requires_grad=False)


def _head(weight: torch.Tensor, bits: int, nearest: bool = False) -> Product:
    """Of weights in so many bits if they were published in 8 or are to be in 32, otherwise in float16 if they fit it;
    always with logits in float32, as in 16 bits these would tie."""
    if bits != 16:
        with contextlib.suppress(ValueError):
            product = PackedLinear(weight, bits, nearest)
            bring_together([product])
            return product
    return Fp16Linear(weight) if bits != 32 and can_hold_fp16(weight) else Linear(weight.float())


def _merged(parts: list[torch.nn.Linear]) -> torch.Tensor:
    """The parts' matrices as one [sum of outs, in], which they then view."""
    first = parts[0].weight
    rows = [part.weight.shape[0] for part in parts]
    # already merged, by a model that shares this layer
    if first.untyped_storage().nbytes() == sum(part.weight.nbytes for part in parts):
        together = first.new_empty(0).set_(first.untyped_storage(), 0, (sum(rows), first.shape[1]))
        if all(part.weight.data_ptr() == piece.data_ptr() for part, piece in zip(parts, together.split(rows))):
            return together
    together = torch.cat([part.weight for part in parts])
    for part, piece in zip(parts, together.split(rows)):
        part.weight.data = piece
    return together
