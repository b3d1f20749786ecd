"""A Llama decoder with fused operators: the weights and arithmetic of the stock module, a third of the dispatches.

A stock module spends 20 to 30 ms a step on two cores in some 7,000 Python and operator calls. Here q, k and v are one
product, gate and up are one, and the RoPE tables are read once per pass. Where kernels.c has kernels for the weights,
all layers are one call; elsewhere each product uses the operator that is fastest for its number of rows
(models/linear.py). Serves LlamaForCausalLM without biases and with plain RoPE (the embedded target, SmolLM2 and Llama
without scaled RoPE); any other module runs as it is.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Self, TypeGuard

import torch
from torch.nn import functional

from specviz.hardware.costs import ModelShape
from specviz.kernels.binding import missing_requirement
from specviz.kernels.packed import PackedLinear, bytes_per_weight, move_to_huge_pages
from specviz.loader.causal_module import CausalModule
from specviz.loader.llama import Llama, LlamaConfig, LlamaLayer
from specviz.models.attention import Attend
from specviz.models.linear import Linear, pick_format
from specviz.models.native_layers import NativeLayers, supports
from specviz.models.weight_storage import Fp16Linear, Product, fits_fp16


class FusedLayer:
    """One decoder layer in four products: each with the norm, activation or residual around it."""

    def __init__(self, norms: Sequence[torch.Tensor], products: Sequence[Product], eps: float):
        """norms: the gains [D] of both norms; products: of the merged q, k and v, the attention's output, the merged
        gate and up, and the feed-forward's output."""
        self._norm_1, self._norm_2 = norms
        self._qkv, self._out, self._gate_up, self._down = self.products = tuple(products)
        self._eps = eps

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [N, D] -> queries, keys and values side by side [N, (heads + 2 kv_heads) d]."""
        return self._qkv(norm(hidden, self._norm_1, self._eps))

    def out(self, attended: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Output projection of attention [N, heads d], and the residual hidden [N, D]."""
        return hidden + self._out(attended)

    def feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The feed-forward (SwiGLU) of hidden [N, D], and the residual."""
        gate, up = self._gate_up(norm(hidden, self._norm_2, self._eps)).chunk(2, dim=-1)
        return hidden + self._down(functional.silu(gate).mul_(up))


class FusedLayers:
    """A decoder's layers by torch's operators."""

    def __init__(self, layers: Sequence[FusedLayer], kv_heads: int, dim: int):
        """dim: of a head."""
        self._layers, self._kv_heads, self._dim = layers, kv_heads, dim

    @property
    def products(self) -> list[Product]:
        """In the order of a pass."""
        return [product for layer in self._layers for product in layer.products]

    def first(self, layers: int) -> Self:
        """These first layers."""
        return type(self)(self._layers[:layers], self._kv_heads, self._dim)

    def __call__(
        self, hidden: torch.Tensor, attend: Attend, cos: torch.Tensor, sin: torch.Tensor, taps: Sequence[int] = ()
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """hidden [N, D] after all layers, and after each of the layers `taps`. cos, sin [N, 1, d]: of RotaryTables."""
        tapped: dict[int, torch.Tensor] = {}
        for i, layer in enumerate(self._layers):
            heads = layer.qkv(hidden).view(len(hidden), -1, self._dim)
            hidden = layer.feed_forward(layer.out(attend(i, heads, cos, sin, self._kv_heads), hidden))
            if i in taps:
                tapped[i] = hidden
        return hidden, tapped


class FusedLlama:
    """A Llama's forward over packed tokens. The module's matrices become views of the merged ones, or move to the meta
    device: no weight is stored twice."""

    def __init__(self, module: Llama, quantize: bool = False, int4: bool = False):
        """module: a Llama, or transformers' LlamaForCausalLM, which has the same members.

        quantize: matrices are rounded to 8 bits where kernels.c multiplies by them, elsewhere to bfloat16 or int8 if
        that is faster for one row. int4: its layers keep the 4 bits in which they were published; raises ValueError if
        they were not, or there is no kernel."""
        config, base = module.config, module.model
        self.embedding = module.get_input_embeddings().weight
        own = self.embedding.dtype
        self.stream = torch.float32 if self.embedding.device.type == "cpu" else own
        """The type of activations. On a CPU float32: 16 bits would save nothing there and cost accuracy."""
        self.norm = base.norm.weight.to(self.stream)
        self.eps: float = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim: int = config.head_dim
        head = module.get_output_embeddings().weight
        bits = 4 if int4 else 8 if quantize else {torch.bfloat16: 16, torch.float32: 32}.get(own)
        matrices = [p for layer in base.layers for p in layer.parameters() if p.ndim == 2]
        if bits and not int4 and not supports(matrices, self.dim, bits):
            bits = None
        self.bits = bits
        """Of a layer's weight where kernels.c runs the layers, else None."""
        norms = [self._norms(layer) for layer in base.layers]
        self.layers: NativeLayers | FusedLayers
        self.head: Product
        if bits:
            del matrices  # so that each layer's memory is freed as soon as its weights are packed
            self.layers = NativeLayers(
                norms, _released(base.layers), self.eps, self.kv_heads, self.dim, bits, nearest=quantize
            )
            self.head = _head(head.detach(), 32 if bits == 32 else 8, nearest=quantize)
        else:
            weight_format = pick_format(
                matrices, sum(p.nbytes for p in module.parameters()), (torch.bfloat16, torch.int8) if quantize else ()
            )
            layers = [
                FusedLayer(gains, [weight_format.linear(weight) for weight in _weights(layer)], self.eps)
                for gains, layer in zip(norms, base.layers)
            ]
            self.layers = FusedLayers(layers, self.kv_heads, self.dim)
            self.head = weight_format.linear(head) if own == self.stream else _head(head.detach(), 16)
        self.weight_bytes = self.layers.products[0].weight_bytes
        """Bytes of one weight of a layer."""
        theta = config.rope_parameters["rope_theta"]
        self._rotary = RotaryTables(lambda positions: _rotary_tables(positions, self.dim, theta, self.stream))

    def _norms(self, layer: LlamaLayer) -> list[torch.Tensor]:
        return [n.weight.to(self.stream) for n in (layer.input_layernorm, layer.post_attention_layernorm)]

    def first(self, layers: int) -> Self:
        """These first layers, then the same norm and head."""
        made = copy.copy(self)
        made.layers = self.layers.first(layers)
        return made

    @property
    def products(self) -> list[Product]:
        """Every linear layer of a pass, the head last."""
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
        """tokens and positions [N]; keep: which of the N get logits (None: all; empty: none, the head does not run);
        longest: no position exceeds it. Returns logits [len(keep), V] or None, and the outputs [N, D] of the tapped
        layers."""
        hidden = functional.embedding(tokens, self.embedding).to(self.stream)
        cos, sin = self._rotary.rows(positions, longest)
        hidden, tapped = self.layers(hidden, attend, cos, sin, taps)
        if keep is not None and len(keep) == 0:
            return None, tapped
        kept = hidden if keep is None else hidden[keep]
        if isinstance(self.head, PackedLinear):
            return self.head(kept, self.norm, self.eps), tapped
        return self.head(norm(kept, self.norm, self.eps)), tapped


class RotaryTables:
    """RoPE tables, computed once and grown by doubling."""

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


def _rotary_tables(
    positions: torch.Tensor, dim: int, theta: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [T, dim] of positions [T], by the operations of the stock module."""
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angles = positions[:, None].float() * frequencies.to(positions.device)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def is_plain_llama(module: CausalModule) -> TypeGuard[Llama]:
    """Whether FusedLlama computes what this module computes: a Llama, or transformers' module of one."""
    if isinstance(module, Llama):
        return True
    return type(module).__name__ == "LlamaForCausalLM" and LlamaConfig.from_dict(module.config.to_dict()) is not None


def with_storage_width(shape: ModelShape, precision: str) -> ModelShape:
    """A plain Llama's shape with the bytes per weight that FusedLlama stores at this precision on a CPU."""
    if precision not in ("bf16", "int4"):
        return shape
    has_kernels = not missing_requirement(16 if precision == "bf16" else 4)
    return replace(
        shape,
        weight_bytes=bytes_per_weight(16 if precision == "bf16" else 4),
        head_bytes=bytes_per_weight(8) if has_kernels else 2.0,
        cache_bytes=4.0,
        activation_bytes=4.0,
    )


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm of x [..., D] with a gain [D] or None. In fp32 by single operators: half of torch's time on a CPU."""
    if x.dtype != torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = x * scale
    return normed if weight is None else normed.mul_(weight)


def _weights(layer: LlamaLayer) -> list[torch.Tensor]:
    """A layer's weights in FusedLayer's order."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        _merged([attention.q_proj, attention.k_proj, attention.v_proj]),
        attention.o_proj.weight,
        _merged([mlp.gate_proj, mlp.up_proj]),
        mlp.down_proj.weight,
    ]


def _released(layers: Sequence[LlamaLayer]) -> Iterator[list[torch.Tensor]]:
    """Each layer's weights in FusedLayer's order; the layer's own then move to the meta device, so that no weight is
    stored twice."""
    for layer in layers:
        yield _weights(layer)
        for part in (m for m in layer.modules() if isinstance(m, torch.nn.Linear)):
            part.weight = torch.nn.Parameter(part.weight.to("meta"), requires_grad=False)


def _head(weight: torch.Tensor, bits: int, nearest: bool = False) -> Product:
    """The head in 8 bits if it was published in them (or `nearest`), in 32 if bits is 32; otherwise in float16 where it
    fits. Logits are float32: in 16 bits they would tie."""
    if bits != 16:
        with contextlib.suppress(ValueError):
            product = PackedLinear(weight, bits, nearest)
            move_to_huge_pages([product])
            return product
    return Fp16Linear(weight) if bits != 32 and fits_fp16(weight) else Linear(weight.float())


def _merged(parts: list[torch.nn.Linear]) -> torch.Tensor:
    """The parts' matrices as one [sum of outs, in]; the parts then hold views of it."""
    first = parts[0].weight
    rows = [part.weight.shape[0] for part in parts]
    # already merged, by a model that shares this layer
    if first.untyped_storage().nbytes() == sum(part.weight.nbytes for part in parts):
        together = first.as_strided((sum(rows), first.shape[1]), (first.shape[1], 1), 0)
        if all(part.weight.data_ptr() == piece.data_ptr() for part, piece in zip(parts, together.split(rows))):
            return together
    together = torch.cat([part.weight for part in parts])
    for part, piece in zip(parts, together.split(rows)):
        part.weight.data = piece
    return together
