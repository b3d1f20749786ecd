"""Linear layers on weights packed for kernels.c: float32, bfloat16, or quantized to 8 or 4 bits in groups of 32.

llama.cpp's Q4_1 has 16 levels per group, with a scale and a minimum in float16; its Q8_0 has 255 levels about zero,
with a scale. Weights published in these formats keep their exact values. Activations are rounded to bfloat16 for
bfloat16 weights; for quantized ones 32 share a scale, the 4 around the largest get 16 bits, the others 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.kernels import binding
from specviz.kernels.binding import GROUP, OUTPUTS


def bytes_per_weight(bits: int) -> float:
    """Bytes of one packed weight, including its share of its group's scale and minimum."""
    return bits / 8 + (2 * 2 / GROUP if bits < 16 else 0)


class PackedLinear:
    """Multiplies by one packed weight [out, in]. Each row of the result is the same bit for bit, whatever the number of
    rows."""

    def __init__(self, weight: torch.Tensor, bits: int, nearest: bool = False):
        """bits: 4, 8, 16 or 32. nearest: quantize a weight that was not published in that format; otherwise ValueError
        is raised for it. ValueError too where there are no kernels for these bits."""
        self._kernels = binding.require(bits)
        packed = pack(weight, bits, nearest)
        if packed is None:
            raise ValueError(f"it needs weights published on {2**bits} levels in groups of {GROUP}.")
        self.packed, self.bits = packed, bits
        self.shape: tuple[int, ...] = tuple(weight.shape)
        self.weight_bytes = bytes_per_weight(bits)
        outputs, inputs = self.shape
        self._layout = (outputs // OUTPUTS, inputs // GROUP, round(self.weight_bytes * GROUP * OUTPUTS))

    def address(self) -> int:
        """Of the packed weight, for C. Raises ValueError if it is not what `pack` makes of this shape."""
        return binding.address("weight", self.packed, self._layout, torch.uint8)

    def __call__(self, x: torch.Tensor, gain: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        """x [N, in] -> [N, out] float32. gain [in] float32: x goes through an RMS norm first. Raises ValueError for
        other shapes or devices."""
        (outputs, inputs), rows = self.shape, x.shape[0]
        x = x.float().contiguous()
        out, scratch = torch.empty(rows, outputs), binding.input_scratch(rows, inputs)
        self._kernels.product(
            binding.address("x", x, (rows, inputs)),
            rows,
            inputs,
            None if gain is None else binding.address("gain", gain, (inputs,)),
            eps,
            self.bits,
            self.address(),
            outputs,
            out.data_ptr(),
            scratch.data_ptr(),
            torch.get_num_threads(),
        )
        return out


def supports(weight: torch.Tensor, bits: int) -> bool:
    """Whether PackedLinear(weight, bits, nearest=True) works: shape, device and kernels."""
    return _has_whole_blocks(weight) and weight.device.type == "cpu" and binding.kernels(bits) is not None


def _has_whole_blocks(weight: torch.Tensor) -> bool:
    return weight.ndim == 2 and weight.shape[0] % OUTPUTS == 0 and weight.shape[1] % GROUP == 0


def pack(weight: torch.Tensor, bits: int, nearest: bool = False) -> torch.Tensor | None:
    """A weight [out, in] in products.h's layout: uint8 [out / 16, in / 32, bytes of a group].

    None if out or in is not a multiple of 16 or 32, or if 4 or 8 bits do not represent the weight exactly and `nearest`
    is False. The levels are exact if every group uses the lowest and the highest level, as in files by llama.cpp.
    """
    if not _has_whole_blocks(weight):
        return None
    weight = weight.detach()
    blocks = (weight.shape[0] // OUTPUTS, OUTPUTS, weight.shape[1] // GROUP)
    if bits == 16:  # [block, output, group, pair, i] -> [block, group, pair, output, i]
        pairs = weight.bfloat16().view(*blocks, GROUP // 2, 2).permute(0, 2, 3, 1, 4)
        return pairs.contiguous().view(torch.uint8).flatten(2)
    if bits == 32:  # [block, output, group, input] -> [block, group, input, output]
        return weight.float().view(*blocks, GROUP).permute(0, 2, 3, 1).contiguous().view(torch.uint8).flatten(2)
    groups = weight.float().unflatten(1, (-1, GROUP))
    stored, level, error = _quantize(groups, bits)
    # weights in bfloat16 were rounded to it after they were dequantized
    allowed = 1e-5 * groups.abs().amax(-1, keepdim=True) if weight.dtype == torch.float32 else 2**-7 * groups.abs()
    if not bool((error <= allowed).all()) and not (nearest and bool(error.isfinite().all())):
        return None
    if bits == 4:  # [block, output, group, half, quad, i] -> [block, group, quad, output, i, half]
        quads = level.to(torch.uint8).view(*blocks, 2, 4, 4).permute(0, 2, 4, 1, 5, 3)
        levels = (quads[..., 0] | quads[..., 1] << 4).flatten(2)
    else:  # [block, output, group, quad, i] -> [block, group, quad, output, i]
        levels = level.to(torch.uint8).view(*blocks, 8, 4).permute(0, 2, 3, 1, 4).flatten(2)
    header = [n.view(blocks).transpose(1, 2).contiguous().view(torch.uint8) for n in stored]
    return torch.cat([*header, levels], dim=-1).contiguous()


def _quantize(groups: torch.Tensor, bits: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor, torch.Tensor]:
    """Groups of weights [out, in / 32, 32] on 2^bits levels: scale and minimum [out, in / 32] float16, the levels, and
    the absolute error of each weight."""
    low, high = groups.aminmax(dim=-1)
    if bits == 4:
        stored = ((high - low) / 15).half(), low.half()
    else:  # level 128 is zero
        scale = (torch.maximum(low.abs(), high.abs()) / 127).half()
        stored = scale, -128 * scale
    scale, minimum = (number.float()[..., None] for number in stored)
    level = ((groups - minimum) / scale.clamp(min=1e-30)).round_().clamp_(0, 2**bits - 1)
    return stored, level, (torch.addcmul(minimum, level, scale) - groups).abs()


def move_to_huge_pages(products: Sequence[PackedLinear]) -> None:
    """Move the weights of these products, in their order, into one allocation of huge pages."""
    whole = binding.alloc_huge_pages(sum(product.packed.numel() for product in products))
    for product in products:
        part, whole = whole[: product.packed.numel()], whole[product.packed.numel() :]
        product.packed = part.view(product.packed.shape).copy_(product.packed)
