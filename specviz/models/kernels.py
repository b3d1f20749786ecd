"""How a CPU multiplies a few rows by a weight matrix: oneDNN on a reordered copy, or the stock product.

The stock fp32 product streams weights at a fraction of the memory's speed and gets slower from one row to two.
oneDNN's product on weights in its own blocked order is nearly flat over the rows of a verify pass, which is what
makes checking K drafts cost about as much as one step. Which of the two is faster is measured once per model and
number of rows. The operators are those that torch's own compiler uses; where they are missing the stock product
serves. Knows no model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch.nn import functional

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of rows that are measured; others go by the next larger one, more than the last by the last."""
_REPEATS = 5


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this weight can have a reordered copy: dense fp32 or bf16 on a CPU that oneDNN serves."""
    return (
        weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


class Linear:
    """Multiplies by one weight [out, in], by the stock product or on the reordered copy."""

    def __init__(self, weight: torch.Tensor, use_packed: Sequence[bool] = ()):
        """use_packed: for each of SIZES whether the reordered copy is the faster; () makes no copy."""
        self.weight = weight
        self._use_packed = tuple(use_packed)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8) if any(use_packed) else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out]"""
        if self._packed is None or not self._use_packed[_bucket(len(x))]:
            return functional.linear(x, self.weight)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")


def measure(weights: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """For each of SIZES, whether the reordered copies of these weights are faster than the weights themselves.

    Give several layers' weights, more than the processor's cache holds, so that what is measured is streaming.
    Takes some 0.1 s. Returns () where no copy can be made.
    """
    if not all(map(can_pack, weights)):
        return ()
    stock = [Linear(w) for w in weights]
    packed = [Linear(w, (True,) * len(SIZES)) for w in weights]
    faster = []
    for size in SIZES:
        x = [torch.randn(size, w.shape[1], dtype=w.dtype) for w in weights]
        seconds = []
        for layers in (stock, packed):
            best = float("inf")
            for _ in range(_REPEATS):
                started = time.perf_counter()
                for layer, rows in zip(layers, x):
                    layer(rows)
                best = min(best, time.perf_counter() - started)
            seconds.append(best)
        faster.append(seconds[1] < seconds[0])
    return tuple(faster)


def _bucket(rows: int) -> int:
    for i, size in enumerate(SIZES):
        if rows <= size:
            return i
    return len(SIZES) - 1
