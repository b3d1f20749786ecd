"""Attention of a packed pass over a RaggedCache: kernels.c's kernel where available, else torch's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from specviz.kernels import binding
from specviz.models.cache import Pass

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
"""The signature of PackedAttention.__call__."""


@dataclass(frozen=True)
class PackedAttention:
    """Attention of one pass."""

    plan: Pass

    def __call__(
        self, layer: int, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, kv_heads: int
    ) -> torch.Tensor:
        """Apply RoPE to the queries and keys among heads [N, heads + 2 kv_heads, d] by tables [N, 1, d] (of
        models.fused.RotaryTables), store keys and values, and let each query attend to its own row. Returns
        [N, heads d]."""
        kernels = binding.kernels() if heads.device.type == "cpu" else None
        tokens, together, dim = heads.shape
        if kernels is None or heads.dtype != torch.float32 or dim % 64:
            return attend(self.plan, layer, *query_key_value(heads, kv_heads, cos, sin)).flatten(-2)
        queries, plan = together - 2 * kv_heads, self.plan
        keys, values = plan.cache.stores(layer, kv_heads, dim)
        capacity = keys.shape[2]
        metadata, _buffers = attention_metadata(
            plan.slot_of, plan.position_of, plan.last_seen_of, cos, sin, queries, kv_heads, capacity
        )
        heads, out = heads.contiguous(), torch.empty(tokens, queries * dim)
        stored = (keys.shape[0], kv_heads, capacity, dim)
        kernels.attend(
            ctypes.byref(metadata),
            binding.address("heads", heads, (tokens, together, dim)),
            binding.address("keys", keys, stored),
            binding.address("values", values, stored),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def attention_metadata(
    slots: torch.Tensor,
    positions: torch.Tensor,
    last_seen: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    kv_heads: int,
    capacity: int,
) -> tuple[binding.AttentionMetadata, tuple[torch.Tensor | None, ...]]:
    """A pass of N tokens for kernels.c, and the tensors that it points to: keep them while it is used.

    slots, positions, last_seen [N] int64; last_seen None: only keys and values are stored. cos, sin [N, 1, d].
    capacity: of the cache's keys and values. Raises ValueError for other shapes or types.
    """
    tokens, dim, address, integers = len(slots), cos.shape[-1], binding.address, torch.int64
    cos, sin = cos.contiguous(), sin.contiguous()
    seen = queries = scores = None
    if last_seen is not None:
        seen = address("last_seen", last_seen, (tokens,), integers)
        queries = torch.empty(tokens * heads * dim)
        scores = torch.empty(torch.get_num_threads() * binding.QUERY_TILE * capacity)
    metadata = binding.AttentionMetadata(
        tokens,
        heads,
        kv_heads,
        dim,
        address("cos", cos, (tokens, 1, dim)),
        address("sin", sin, (tokens, 1, dim)),
        address("slots", slots, (tokens,), integers),
        address("positions", positions, (tokens,), integers),
        seen,
        capacity,
        None if queries is None else queries.data_ptr(),
        None if scores is None else scores.data_ptr(),
    )
    return metadata, (cos, sin, slots, positions, last_seen, queries, scores)


def query_key_value(
    heads: torch.Tensor, kv_heads: int, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """heads [N, heads + 2 kv_heads, d] split into queries, keys and values; queries and keys with RoPE applied."""
    rotated = apply_rope(heads[:, :-kv_heads], cos, sin)  # together
    return rotated[:, :-kv_heads], rotated[:, -kv_heads:], heads[:, -kv_heads:]


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE of x [N, heads, d] by tables [N, 1, d] of models.fused.RotaryTables."""
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
    """Store a pass's key and value [N, kv_heads, d], and let each query [N, heads, d] attend to its own row's.
    window: of sliding-window attention. Returns [N, heads, d]."""
    plan.cache.write(plan, layer, key, value)

    def one(index: int, q: torch.Tensor) -> torch.Tensor:
        """Attention of one group of rows: queries [G, n, heads, d] -> [G, n, heads, d]."""
        group, cache = plan.groups[index], plan.cache
        rows, count, heads, dim = q.shape
        keys, values = cache.stored(layer)
        k, v = keys[group.slots, :, : group.columns], values[group.slots, :, : group.columns]
        # grouped-query attention: heads that share a KV head become further queries of it, K and V are not repeated
        shared = heads // k.shape[1]
        q = q.permute(0, 2, 1, 3).reshape(rows, k.shape[1], shared * count, dim)
        mask = cache.mask(plan, index, window, shared)
        o = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
        return o.reshape(rows, heads, count, dim).permute(0, 2, 1, 3)

    if len(plan.groups) == 1:  # all tokens in their order: nothing to gather
        return one(0, query.reshape(*plan.groups[0].tokens.shape, *query.shape[1:])).reshape(query.shape)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    for index, group in enumerate(plan.groups):
        out[group.tokens] = one(index, query[group.tokens])
    return out
