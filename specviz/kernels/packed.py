"""Products with weights packed for the kernel of kernels.c: in float32, bfloat16, or on even levels of 8 or 4 bits.

llama.cpp cuts a row into groups of 32 weights. Its Q4_1 puts each on 16 even levels, with a scale and a lowest one of
16 bits each; its Q8_0 on 255 about zero, with a scale. Weights published so are kept as they are, and exact. Inputs are
rounded to bfloat16 for weights in bfloat16; for levels, in each group of 32, the four around the largest to 16 bits and
the others to 8. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.kernels import build

GROUP = 32
"""Weights of a row that share a scale and a lowest level."""
OUTPUTS = 16
"""Rows of a weight that the kernel takes at a time."""
_GROUP_ROOM, _ROWS = GROUP * 4, 16
"""Bytes that the kernel needs at most for a group of inputs of a row; rows are rounded up to so many."""


def bytes_of(bits: int) -> float:
    """Of one weight: of levels also two numbers of 16 bits for its group."""
    return bits / 8 + (2 * 2 / GROUP if bits < 16 else 0)


def room_for(rows: int, inputs: int) -> torch.Tensor:
    """What a product needs beside its inputs and outputs."""
    return torch.empty(-(-rows // _ROWS) * _ROWS * (inputs // GROUP) * _GROUP_ROOM, dtype=torch.uint8)


class PackedLinear:
    """Multiplies by one weight [out, in]. A row of the result is the same, bit for bit, however many rows there are."""

    def __init__(self, weight: torch.Tensor, bits: int, nearest: bool = False):
        """bits: 4, 8, 16 or 32. nearest: a weight that is not on levels of so many bits is rounded to them; otherwise
        raises ValueError for it. Raises it where there is no kernel, too."""
        self._kernel = build.kernels(bits)
        packed = None if self._kernel is None else pack(weight, bits, nearest)
        if packed is None:
            levels = f"weights published on {2**bits} levels in groups of {GROUP}"
            raise ValueError(f"it needs {build.why_not(bits) or levels}.")
        self.packed, self.bits = packed, bits
        self.shape = tuple(weight.shape)
        self.weight_bytes = bytes_of(bits)

    def __call__(self, x: torch.Tensor, gain: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        """x [N, in] -> [N, out], all in float32. gain [in]: x goes through an RMS norm first."""
        (outputs, inputs), rows = self.shape, x.shape[0]
        x = x.float().contiguous()
        out = torch.empty(rows, outputs)
        room = room_for(rows, inputs)
        self._kernel.product(
            x.data_ptr(),
            rows,
            inputs,
            None if gain is None else gain.data_ptr(),
            eps,
            self.bits,
            self.packed.data_ptr(),
            outputs,
            out.data_ptr(),
            room.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def fits(weight: torch.Tensor, bits: int) -> bool:
    """Whether a weight has a shape that can be cut into blocks and groups, and there is a kernel for it."""
    return _can_be_cut(weight) and weight.device.type == "cpu" and build.kernels(bits) is not None


def _can_be_cut(weight: torch.Tensor) -> bool:
    return weight.ndim == 2 and weight.shape[0] % OUTPUTS == 0 and weight.shape[1] % GROUP == 0


def pack(weight: torch.Tensor, bits: int, nearest: bool = False) -> torch.Tensor | None:
    """A weight [out, in] as kernels.c reads it (uint8), or the nearest to it; None if it is not made of levels of so
    many bits, or cannot be cut into groups. Every group must reach its outermost levels, as those that llama.cpp makes
    do. Any weight is rounded to 16 bits, and kept in 32."""
    if not _can_be_cut(weight):
        return None
    weight = weight.detach()
    blocks = (weight.shape[0] // OUTPUTS, OUTPUTS, weight.shape[1] // GROUP)
    if bits == 16:  # [block, output, group, part, i] -> [block, group, part, output, i]
        parts = weight.bfloat16().view(*blocks, GROUP // 2, 2).permute(0, 2, 3, 1, 4)
        return parts.contiguous().view(torch.uint8).flatten(2)
    if bits == 32:  # [block, output, group, input] -> [block, group, input, output]
        return weight.float().view(*blocks, GROUP).permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2)
    groups = weight.float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=-1)
    most = torch.maximum(low.abs(), high.abs())
    if bits == 4:
        stored = ((high - low) / 15).half(), low.half()
    else:  # level 128 is zero
        scale = (most / 127).half()
        stored = scale, -128 * scale
    scale, lowest = (number.float()[..., None] for number in stored)
    level = ((groups - lowest) / scale.clamp(min=1e-30)).round_().clamp_(0, 2**bits - 1)
    off = (torch.addcmul(lowest, level, scale) - groups).abs()
    # of weights in bfloat16, what these were rounded by
    allowed = 1e-5 * most[..., None] if weight.dtype == torch.float32 else 2**-7 * groups.abs()
    if not bool((off <= allowed).all()) and not (nearest and bool(off.isfinite().all())):
        return None
    if bits == 4:  # [block, output, group, half, part, i] -> [block, group, part, output, i, half]
        parts = level.to(torch.uint8).view(*blocks, 2, 4, 4).permute(0, 2, 4, 1, 5, 3)
        levels = (parts[..., 0] | parts[..., 1] << 4).flatten(2)
    else:  # [block, output, group, part, i] -> [block, group, part, output, i]
        levels = level.to(torch.uint8).view(*blocks, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)
    numbers = [n.view(blocks).transpose(1, 2).contiguous().view(torch.uint8) for n in stored]
    return torch.cat([*numbers, levels], dim=-1).contiguous()


def bring_together(products: Sequence[PackedLinear]) -> None:
    """Move the weights of these products, in their order, into one stretch of large pages."""
    whole = build.large_pages(sum(product.packed.numel() for product in products))
    for product in products:
        place, whole = whole[: product.packed.numel()], whole[product.packed.numel() :]
        product.packed = place.view(product.packed.shape).copy_(product.packed)
