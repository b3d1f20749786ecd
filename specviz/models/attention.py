"""Attention of a packed pass over a RaggedCache: by the kernel of kernels.c where there is one, or by torch's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from specviz.kernels import build
from specviz.models.cache import Pass

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""PackedAttention of a pass, or what stands for it"""


@dataclass(frozen=True)
class PackedAttention:
    """Attention of one pass."""

    plan: Pass

    def __call__(
        self, layer: int, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv_heads: int
    ) -> torch.Tensor:
        """Turn the queries and keys among heads [N, heads + 2 kv_heads, d] by the tables of their positions [N, 1, d]
        (models.lean.Turns), store keys and values, and attend each row's queries to its own past. Returns
        [N, heads d]."""
        kernels = build.kernels() if heads.device.type == "cpu" else None
        count, together, dim = heads.shape
        if kernels is None or heads.dtype != torch.float32 or dim % 64:
            return attend(self.plan, layer, *query_key_value(heads, kv_heads, cos, sin)).flatten(-2)
        queries = together - 2 * kv_heads
        keys, values = self.plan.cache.stores(layer, kv_heads, dim)
        of_pass, _kept = native_pass(self.plan, queries, kv_heads, dim, cos, sin, keys.shape[2])
        heads, out = heads.contiguous(), torch.empty(count, queries * dim)
        kernels.attend(
            ctypes.byref(of_pass),
            heads.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def native_pass(
    plan: Pass, heads: int, kv_heads: int, dim: int, cos: torch.Tensor, sin: torch.Tensor, capacity: int
) -> tuple[build.Pass, list[torch.Tensor]]:
    """A pass as kernels.c wants it, and what must be kept while it is used. capacity: of the stores."""
    tokens = len(plan.slot_of)
    queries = torch.empty(tokens * heads * dim)
    scores = torch.empty(torch.get_num_threads() * build.QUERIES * capacity)
    kept = [cos.contiguous(), sin.contiguous(), plan.slot_of, plan.position_of, plan.last_seen_of, queries, scores]
    pointers = [t.data_ptr() for t in kept]
    return build.Pass(tokens, heads, kv_heads, dim, *pointers[:5], capacity, *pointers[5:]), kept


def query_key_value(
    heads: torch.Tensor, kv_heads: int, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """heads [N, heads + 2 kv_heads, d] taken apart, queries and keys turned."""
    rotated = turn(heads[:, :-kv_heads], cos, sin)  # together
    return rotated[:, :-kv_heads], rotated[:, -kv_heads:], heads[:, -kv_heads:]


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [N, heads, d] at the positions of the tables [N, 1, d] from models.lean.Turns."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def attend(
    plan: Pass,
    layer: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """Store a pass's key and value [N, kv_heads, d], and attend each row's query [N, heads, d] to its own past.
    Returns [N, heads, d]."""
    plan.cache.write(plan, layer, key, value)

    def one(index: int, q: torch.Tensor) -> torch.Tensor:
        """A group's queries [G, n, heads, d] -> [G, n, heads, d]."""
        group, cache = plan.groups[index], plan.cache
        rows, count, heads, dim = q.shape
        k = cache.keys[layer][group.slots, :, : group.columns]
        v = cache.values[layer][group.slots, :, : group.columns]
        # heads that share a KV head become further queries of it: no copy of K or V is made
        shared = heads // k.shape[1]
        q = q.permute(0, 2, 1, 3).reshape(rows, k.shape[1], shared * count, dim)
        mask = cache.mask(plan, index, window, shared)
        o = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        return o.reshape(rows, heads, count, dim).permute(0, 2, 1, 3)

    if len(plan.groups) == 1:  # it holds all tokens, in their order: nothing to gather
        return one(0, query.reshape(*plan.groups[0].tokens.shape, *query.shape[1:])).reshape(query.shape)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for index, group in enumerate(plan.groups):
        out[group.tokens] = one(index, query[group.tokens])
    return out
