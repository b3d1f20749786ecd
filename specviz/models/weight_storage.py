"""Linear layers with weights stored in int8 or float16, by torch's operators: fewer bytes to read from memory.

Each row of a result is the same bit for bit, whatever the number of rows. On a CPU only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.nn import functional


class Product(Protocol):
    """A linear layer without bias: multiplies by one weight [out, in], in whatever format it is stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[out, in]"""

    @property
    def weight_bytes(self) -> float:
        """Bytes per weight"""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """x [N, in] -> [N, out]"""


class Int8Linear:
    """Multiplies by one weight [out, in] stored as int8 with a scale per output; activations in bfloat16."""

    def __init__(self, weight: torch.Tensor):
        scale = weight.float().abs().amax(1).clamp(min=1e-12) / 127
        self.shape: tuple[int, ...] = tuple(weight.shape)
        self.weight_bytes = 1
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
    """Multiplies by one weight [out, in] stored as float16; activations, sums and results are float32.

    Inputs are padded to whole blocks of `independent_block()` rows, so that every row is summed in the same order.
    """

    def __init__(self, weight: torch.Tensor):
        self.shape: tuple[int, ...] = tuple(weight.shape)
        self.weight_bytes = 2
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out], of x's type."""
        return _in_blocks(x.float(), self._packed, independent_block()).to(x.dtype)


_BLOCKS = (1, 6, 12, 24)
"""Numbers of rows that FBGEMM's kernels are tried with: 6 are one tile with AVX2, 12 with AVX-512."""


@functools.lru_cache(maxsize=1)
def independent_block() -> int:
    """The smallest number of rows to pad to that makes FBGEMM rows independent of each other; 0: none does.

    With AVX2 the tiles of one and two rows sum in another order than those of three to six. Found by trial, since it
    depends on the instruction set that FBGEMM uses on this processor.
    """
    packed = torch.ops.quantized.linear_prepack_fp16(torch.linspace(-1, 1, 64 * 700).reshape(64, 700).sin(), None)
    x = torch.linspace(-3, 3, 48 * 700).reshape(48, 700).cos()
    for block in _BLOCKS:
        whole = _in_blocks(x, packed, block)
        if all(torch.equal(_in_blocks(x[:n], packed, block), whole[:n]) for n in range(1, len(x))):
            return block
    return 0


def _in_blocks(x: torch.Tensor, packed: torch.Tensor, block: int) -> torch.Tensor:
    """x [N, in], padded to a multiple of `block` rows, by the packed weight -> [N, out]."""
    padding = -len(x) % block
    rows = functional.pad(x, (0, 0, 0, padding)) if padding else x
    return torch.ops.quantized.linear_dynamic_fp16(rows, packed)[: len(x)]


def fits_fp16(weight: torch.Tensor) -> bool:
    """Whether Fp16Linear works with this weight: its values are in float16's range."""
    there = weight.device.type == "cpu" and {"fbgemm", "x86"} & set(torch.backends.quantized.supported_engines)
    return bool(there) and weight.abs().max().item() < torch.finfo(torch.float16).max and independent_block() > 0
