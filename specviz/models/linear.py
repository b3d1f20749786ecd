"""Linear layers on CPUs without kernels.c: torch's or oneDNN's matmul, chosen per row count by a cached timing.

torch's fp32 matmul reads weights at a fraction of the memory's bandwidth and gets slower from one row to two. oneDNN's
matmul on weights in its own blocked layout takes nearly the same time for all row counts of a verify pass, so verifying
K drafts costs about as much as one step. A drafter's matrices may also be stored in bfloat16 or int8 where that is
faster: fewer bytes to stream. The operators are those of torch.compile; where they are missing torch's matmul is used.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from specviz.hardware import ceilings, facts
from specviz.hardware.machine import device_name
from specviz.hardware.memory import free_memory_bytes
from specviz.models.weight_storage import Int8Linear, fits_int8

ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Row counts that are measured; others use the next larger one's result, or the last one's."""
_REPEATS = 3
SMALL_BYTES = 16 * 2**20
"""Weights of fewer bytes fit the processor's cache: another layout is no faster."""
_BUSY = 0.25
"""Share of the processor that other programs may use while a measurement is taken that is to be cached."""
_STREAMED_BYTES = 64 * 2**20
"""Bytes of weights in a measurement: more than a processor's cache."""


def can_pack(weight: torch.Tensor) -> bool:
    """Whether oneDNN can reorder this weight: dense fp32 or bf16, on a CPU that it supports."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class Linear:
    """Multiplies by one weight [out, in]: torch's matmul, or oneDNN's on a reordered copy."""

    def __init__(self, weight: torch.Tensor, use_packed: Sequence[bool] = ()):
        """use_packed: for each of ROW_COUNTS whether the reordered copy is faster; () makes no copy."""
        self.weight = weight
        self.shape: tuple[int, ...] = tuple(weight.shape)
        self.weight_bytes = weight.itemsize
        self._use_packed = tuple(use_packed)
        self._packed = _packed(weight) if any(use_packed) else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out] in x's type."""
        rows = x.to(self.weight.dtype)
        if self._packed is None or not self._use_packed[_bucket(len(x))]:
            return functional.linear(rows, self.weight).to(x.dtype)
        return _product(rows, self._packed).to(x.dtype)


@dataclass(frozen=True)
class WeightFormat:
    """The type in which a model's matrices are stored, and the row counts for which oneDNN multiplies by them."""

    dtype: torch.dtype
    use_packed: tuple[bool, ...] = ()
    """As in Linear."""

    def linear(self, weight: torch.Tensor) -> Linear | Int8Linear:
        """A linear layer by this weight [out, in], in this format."""
        if self.dtype == torch.int8:
            return Int8Linear(weight.detach())
        return Linear(weight.detach().to(self.dtype), self.use_packed)


def pick_format(
    weights: Sequence[torch.Tensor],
    total_bytes: int,
    alternatives: Sequence[torch.dtype] = (),
    rows: Sequence[int] = (1,),
) -> WeightFormat:
    """The format for a model of total_bytes, by timing some of its weights: pass at least _STREAMED_BYTES of them if it
    has them.

    alternatives: types that float32 weights may be stored in instead, if that is faster for these row counts. Small
    models stay as they are, and so do those whose copies would take too much of the free memory. The result is cached
    for the next process, unless other programs were using the processor.
    """
    own = weights[0].dtype
    if total_bytes < SMALL_BYTES or not all(map(can_pack, weights)):
        return WeightFormat(own)
    if 2 * total_bytes > free_memory_bytes(weights[0].device.type):
        return WeightFormat(own)
    if own == torch.bfloat16:  # one kernel for all row counts: up to 32 rows, a row does not depend on the others
        return WeightFormat(own, (True,) * len(ROW_COUNTS))
    enough, size = [], 0
    for weight in weights:
        if size < _STREAMED_BYTES:
            enough.append(weight)
            size += weight.nbytes
    types = [own]
    if own == torch.float32:
        types += [t for t in alternatives if (fits_int8(weights) if t == torch.int8 else can_pack(weights[0].to(t)))]
    key = f"{_machine()}, {own} or {types[1:]}, rows {tuple(rows)}, weights {sorted({tuple(w.shape) for w in enough})}"
    if (cached := _cached(key, types)) is not None:
        return cached
    busy = ceilings.load_of_others("cpu")
    found = _fastest(enough, types, rows)
    if (busy() or 0.0) <= _BUSY:
        facts.write("products", key, {"dtype": str(found.dtype), "use_packed": list(found.use_packed)})
    return found


def _machine() -> str:
    return f"{device_name('cpu')}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _cached(key: str, types: Sequence[torch.dtype]) -> WeightFormat | None:
    """The format measured on this machine before, or None if there is none or the file is not valid."""
    fact = facts.read("products", key) or {}
    dtype = next((t for t in types if str(t) == fact.get("dtype")), None)
    packed = fact.get("use_packed")
    if dtype is None or not isinstance(packed, list) or not all(isinstance(p, bool) for p in packed):
        return None
    return WeightFormat(dtype, tuple(packed)) if len(packed) in (0, len(ROW_COUNTS)) else None


def _fastest(enough: Sequence[torch.Tensor], types: Sequence[torch.dtype], rows: Sequence[int]) -> WeightFormat:
    """The format in which these weights are multiplied fastest. types[0]: their own."""
    own = best = types[0]
    if len(types) > 1:

        def cost(dtype: torch.dtype) -> float:
            layers = [WeightFormat(dtype, (True,) * len(ROW_COUNTS)).linear(w) for w in enough]
            return sum(_seconds(layers, own, n) for n in rows)

        best = min(types, key=cost)
    return WeightFormat(best) if best == torch.int8 else WeightFormat(best, measure([w.to(best) for w in enough]))


def measure(weights: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """For each of ROW_COUNTS, whether oneDNN on reordered copies of these weights is faster than torch's matmul.

    Pass several layers' weights, more than the processor's cache, so that streaming is measured. Takes about 0.5 s.
    Returns () where oneDNN cannot reorder them.
    """
    if not all(map(can_pack, weights)):
        return ()
    stock = [Linear(w) for w in weights]
    packed = [Linear(w, (True,) * len(ROW_COUNTS)) for w in weights]
    dtype = weights[0].dtype
    return tuple(_seconds(packed, dtype, size) < _seconds(stock, dtype, size) for size in ROW_COUNTS)


def _seconds(layers: Sequence[Linear | Int8Linear], dtype: torch.dtype, rows: int) -> float:
    """The least time of one product by each of the layers, on activations of this type."""
    inputs = [torch.randn(rows, layer.weight.shape[1], dtype=dtype) for layer in layers]
    best = float("inf")
    for _ in range(_REPEATS if rows <= 8 else _REPEATS - 1):  # long computations vary less
        started = time.perf_counter()
        for x, layer in zip(inputs, layers):
            layer(x)
        best = min(best, time.perf_counter() - started)
    return best


def _packed(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8)


def _product(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def _bucket(rows: int) -> int:
    for i, size in enumerate(ROW_COUNTS):
        if rows <= size:
            return i
    return len(ROW_COUNTS) - 1
