"""Products with weights held in the 4 bits in which they were published, by the kernel of native.c.

llama.cpp's Q4_1 cuts a row into groups of 32 weights on 16 even levels, with a scale and a lowest one of 16 bits each.
Such weights are kept as they are; inputs are rounded to 16 bits of the largest in each group of 32. Knows no model.
"""

from __future__ import annotations

import torch

from specviz.models import native

GROUP = 32
"""Weights of a row that share a scale and a lowest level."""
BYTES = 4 / 8 + 2 * 2 / GROUP
"""Of one weight: 4 bits, and two numbers of 16 bits for its group."""
_OUTPUTS, _ROOM = 16, 72
"""Rows of a weight that the kernel takes at a time; bytes of a group of inputs."""


class Int4Linear:
    """Multiplies by one weight [out, in]. A row of the result is the same, bit for bit, however many rows there are."""

    def __init__(self, weight: torch.Tensor, nearest: bool = False):
        """nearest: a weight that is not on such levels is rounded to them; otherwise raises ValueError for it. Raises
        it where there is no kernel, too."""
        self._kernel = native.int4_product()
        packed = None if self._kernel is None else pack(weight, nearest)
        if packed is None:
            raise ValueError(f"it needs {native.why_not() or 'weights published on 16 levels in groups of 32'}.")
        self._packed = packed
        self.shape = tuple(weight.shape)
        self.weight_bytes = BYTES

    def __call__(self, x: torch.Tensor, gain: torch.Tensor | None = None, eps: float = 0.0, gated: bool = False,
                 onto: torch.Tensor | None = None) -> torch.Tensor:
        """x [N, in] -> [N, out], all in float32. gain [in]: x goes through an RMS norm first. gated: x is [N, 2 in],
        gates and what they let through (SwiGLU). onto [N, out] is added to the result."""
        (outputs, inputs), rows = self.shape, x.shape[0]
        x = x.contiguous()
        out = torch.empty(rows, outputs)
        room = torch.empty(rows * (inputs // GROUP * _ROOM + 4), dtype=torch.uint8)
        self._kernel(x.data_ptr(), rows, inputs, None if gain is None else gain.data_ptr(), eps, gated,
                     self._packed.data_ptr(), outputs, None if onto is None else onto.data_ptr(), out.data_ptr(),
                     room.data_ptr(), torch.get_num_threads())
        return out


def fits(weight: torch.Tensor) -> bool:
    """Whether a weight has a shape that can be cut into blocks and groups, and there is a kernel for it."""
    return _can_be_cut(weight) and weight.device.type == "cpu" and native.int4_product() is not None


def _can_be_cut(weight: torch.Tensor) -> bool:
    return weight.ndim == 2 and weight.shape[0] % _OUTPUTS == 0 and weight.shape[1] % GROUP == 0


def pack(weight: torch.Tensor, nearest: bool = False) -> torch.Tensor | None:
    """A weight [out, in] as native.c reads it (uint8), or the nearest to it; None if it is not made of levels, or
    cannot be cut into groups. Every group must reach its first and last level, as those that llama.cpp makes do."""
    if not _can_be_cut(weight):
        return None
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    low, high = groups.aminmax(dim=-1)
    stored = ((high - low) / 15).half(), low.half()
    scale, lowest = (number.float()[..., None] for number in stored)
    level = ((groups - lowest) / scale.clamp(min=1e-30)).round_().clamp_(0, 15)
    off = (torch.addcmul(lowest, level, scale) - groups).abs().amax(-1)
    if not nearest and not bool((off <= 1e-5 * torch.maximum(low.abs(), high.abs())).all()):
        return None
    blocks = (weight.shape[0] // _OUTPUTS, _OUTPUTS, groups.shape[1])
    # [block, output, group, part, half, i] -> [block, group, part, output, i, half]
    parts = level.to(torch.uint8).view(*blocks, GROUP // 4, 2, 2).permute(0, 2, 3, 1, 5, 4)
    levels = (parts[..., 0] | parts[..., 1] << 4).flatten(2)
    numbers = [n.view(blocks).transpose(1, 2).contiguous().view(torch.uint8) for n in stored]
    return torch.cat([*numbers, levels], dim=-1).contiguous()
