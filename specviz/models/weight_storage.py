"""Linear layers that store weights in fewer bits than they multiply in, by torch's operators: fewer bytes to stream.

Each row of a result is the same bit for bit, whatever the number of rows. On a CPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Product = Callable[[torch.Tensor], torch.Tensor]


class Int8Linear:
    """Multiplies by one weight [out, in] stored as int8 with a scale per output; activations in bfloat16."""

    def __init__(self, weight: torch.Tensor):
        scale = weight.float().abs().amax(1).clamp(min=1e-12) / 127
        self.shape, self.weight_bytes = tuple(weight.shape), 1
        self.weight = (weight.float() / scale[:, None]).round().to(torch.int8)
        self._scale = scale.bfloat16()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out], of x's type."""
        return torch._weight_int8pack_mm(x.bfloat16(), self.weight, self._scale).to(x.dtype)


def fits_int8(weights: Sequence[torch.Tensor]) -> bool:
    """Whether Int8Linear works with these weights: its operator reads inputs in blocks of 32 without a check."""
    there = hasattr(torch, "_weight_int8pack_mm")
    return there and all(w.device.type == "cpu" and w.shape[1] % 32 == 0 for w in weights)


class Fp16Linear:
    """Multiplies by one weight [out, in] stored as float16; activations, sums and results are float32."""

    def __init__(self, weight: torch.Tensor):
        self.shape, self.weight_bytes = tuple(weight.shape), 2
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out], of x's type."""
        return torch.ops.quantized.linear_dynamic_fp16(x.float(), self._packed).to(x.dtype)


def fits_fp16(weight: torch.Tensor) -> bool:
    """Whether Fp16Linear works with this weight: its values are in float16's range."""
    there = weight.device.type == "cpu" and {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines)
    return bool(there) and weight.abs().max().item() < torch.finfo(torch.float16).max
