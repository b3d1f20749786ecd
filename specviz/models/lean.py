"""The Llama decoder written out with few operators: the same weights and arithmetic, a third of the dispatch.

A stock module spends 20 to 30 ms a step on two cores in some 7,000 Python and operator calls. Here q, k and v
are one product, gate and up are one, and the rotary tables are read once per pass; each product is done by the
kernel that is fastest for its number of rows (specviz/models/kernels.py). Serves LlamaForCausalLM without biases
and with plain rotary embedding (the embedded target, SmolLM2 and Llama without scaled rotary); any other module
runs as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from specviz.models.kernels import Form, Linear, choose
from specviz.models.llama import Llama, LlamaConfig

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(layer, query [N, heads, d], key [N, kv_heads, d], value [N, kv_heads, d]) -> [N, heads, d]"""


@dataclass(frozen=True)
class Block:
    """One decoder layer's weights."""

    norm_1: torch.Tensor
    qkv: Linear
    out: Linear
    norm_2: torch.Tensor
    gate_up: Linear
    down: Linear


class LeanLlama:
    """A forward over packed tokens. The module's own matrices become views of the merged ones: none is held twice."""

    def __init__(self, module: torch.nn.Module, narrow: bool = False):
        """narrow: its matrices may be held in bfloat16 or int8 where that is faster for one row."""
        config, base = module.config, module.model
        self.embedding = module.get_input_embeddings().weight
        own = self.embedding.dtype
        self.stream = torch.float32 if self.embedding.device.type == "cpu" else own
        """What all but the products is computed in. On a CPU 16 bits would save nothing there and cost accuracy."""
        self.norm = base.norm.weight.to(self.stream)
        self.eps: float = config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim: int = config.head_dim
        self.form = choose([p for p in base.layers.parameters() if p.ndim == 2],
                           sum(p.nbytes for p in module.parameters()), (torch.bfloat16, torch.int8) if narrow else ())
        # logits of 16 bits would tie
        form = self.form if own == self.stream else Form(self.stream, self.form.use_packed)
        self.head = form.linear(module.get_output_embeddings().weight)
        self.blocks = [_merge(layer, self.form, self.stream) for layer in base.layers]
        theta = config.rope_parameters["rope_theta"]
        self._turns = Turns(lambda positions: _rotary(positions, self.dim, theta, self.stream))

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend, taps: Sequence[int],
        keep: torch.Tensor | None, longest: int | None = None,
    ) -> tuple[torch.Tensor | None, dict[int, torch.Tensor]]:
        """tokens and positions [N]; keep: which of the N get logits (None: all; empty: none, the head is not run);
        longest: no position exceeds it (None: they are looked through, for which a GPU must be waited for).
        Returns logits [len(keep), V] or None, and the outputs [N, D] of the tapped layers."""
        hidden = functional.embedding(tokens, self.embedding).to(self.stream)
        cos, sin = self._turns.rows(positions, int(positions.max()) if longest is None else longest)
        tapped = {}
        turned = self.heads + self.kv_heads
        for layer, block in enumerate(self.blocks):
            heads = block.qkv(norm(hidden, block.norm_1, self.eps)).view(len(tokens), -1, self.dim)
            rotated = turn(heads[:, :turned], cos, sin)  # q and k together
            mixed = attend(layer, rotated[:, : self.heads], rotated[:, self.heads:], heads[:, turned:])
            hidden = hidden + block.out(mixed.flatten(-2))
            gate, up = block.gate_up(norm(hidden, block.norm_2, self.eps)).chunk(2, dim=-1)
            hidden = hidden + block.down(functional.silu(gate).mul_(up))
            if layer in taps:
                tapped[layer] = hidden
        if keep is not None and len(keep) == 0:
            return None, tapped
        kept = hidden if keep is None else hidden[keep]
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


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [N, heads, d] at the positions of the tables [N, 1, d] from Turns.rows."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def serves(module: torch.nn.Module) -> bool:
    """Whether LeanLlama computes what this module computes."""
    if isinstance(module, Llama):
        return True
    return type(module).__name__ == "LlamaForCausalLM" and LlamaConfig.from_dict(module.config.to_dict()) is not None


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm of x [..., D], with a gain or without. In fp32 written out: on a CPU that takes half the time of the
    composite operator."""
    if x.dtype != torch.float32:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = x * scale
    return normed if weight is None else normed.mul_(weight)


def _merge(layer: torch.nn.Module, form: Form, stream: torch.dtype) -> Block:
    attention, mlp = layer.self_attn, layer.mlp
    return Block(
        layer.input_layernorm.weight.to(stream),
        form.linear(_merged([attention.q_proj, attention.k_proj, attention.v_proj])),
        form.linear(attention.o_proj.weight),
        layer.post_attention_layernorm.weight.to(stream),
        form.linear(_merged([mlp.gate_proj, mlp.up_proj])),
        form.linear(mlp.down_proj.weight),
    )


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
