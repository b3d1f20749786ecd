"""How a CPU for which kernels.c has no kernels multiplies a few rows by a weight matrix: oneDNN on a reordered copy, or
the stock product.

The stock fp32 product streams weights at a fraction of the memory's speed and gets slower from one row to two.
oneDNN's product on weights in its own blocked order is nearly flat over the rows of a verify pass, which is what
makes checking K drafts cost about as much as one step. Which of the two is faster is measured once per model and
number of rows. A drafter's matrices may also be held in bfloat16 or int8, where that is faster: fewer bytes to stream.
The operators are those that torch's own compiler uses; where they are missing the stock product serves. Knows no model.
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
from specviz.models.weight_storage import Int8Linear, can_hold_int8

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of rows that are measured; others go by the next larger one, more than the last by the last."""
_REPEATS = 3
SMALL_BYTES = 16 * 2**20
"""Smaller weights fit the processor's cache: nothing to gain from another order of them."""
_BUSY = 0.25
"""Share of the processor that other programs may use if what is found is to be kept."""
_STREAMED_BYTES = 64 * 2**20
"""How much weight is timed at a time: more than a processor's cache holds."""


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this weight can have a reordered copy: dense fp32 or bf16 on a CPU that oneDNN serves."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype == torch.float32


class Linear:
    """Multiplies by one weight [out, in], by the stock product or on the reordered copy."""

    def __init__(self, weight: torch.Tensor, use_packed: Sequence[bool] = ()):
        """use_packed: for each of SIZES whether the reordered copy is the faster; () makes no copy."""
        self.weight = weight
        self.shape, self.weight_bytes = tuple(weight.shape), weight.itemsize
        self._use_packed = tuple(use_packed)
        self._packed = _packed(weight) if any(use_packed) else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out], of x's type whatever the weight's."""
        rows = x.to(self.weight.dtype)
        if self._packed is None or not self._use_packed[_bucket(len(x))]:
            return functional.linear(rows, self.weight).to(x.dtype)
        return _product(rows, self._packed).to(x.dtype)


@dataclass(frozen=True)
class Form:
    """How the matrices of a model are held and multiplied."""

    dtype: torch.dtype
    use_packed: tuple[bool, ...] = ()
    """As in Linear"""

    def linear(self, weight: torch.Tensor) -> Linear | Int8Linear:
        """A product by this weight [out, in], in this form."""
        if self.dtype == torch.int8:
            return Int8Linear(weight.detach())
        return Linear(weight.detach().to(self.dtype), self.use_packed)


def choose(
    weights: Sequence[torch.Tensor], total_bytes: int, others: Sequence[torch.dtype] = (), rows: Sequence[int] = (1,)
) -> Form:
    """The form for a model of total_bytes, found by timing some of its weights: give at least _STREAMED_BYTES of them
    where there are so many.

    others: types that float32 weights may be held in instead, if that is faster for these numbers of rows. Small models
    stay as they are, and so do those whose copies would take too much of the free memory. What was found is kept for
    the next process, unless other programs were at work meanwhile.
    """
    own = weights[0].dtype
    if total_bytes < SMALL_BYTES or not all(map(can_pack, weights)):
        return Form(own)
    if 2 * total_bytes > free_memory_bytes(weights[0].device.type):
        return Form(own)
    if own == torch.bfloat16:  # of one kernel throughout, so that up to 32 rows a row does not depend on the others
        return Form(own, (True,) * len(SIZES))
    enough, size = [], 0
    for weight in weights:
        if size < _STREAMED_BYTES:
            enough.append(weight)
            size += weight.nbytes
    types = [own]
    if own == torch.float32:
        types += [t for t in others if (can_hold_int8(weights) if t == torch.int8 else can_pack(weights[0].to(t)))]
    key = f"{_machine()}, {own} or {types[1:]}, rows {tuple(rows)}, weights {sorted({tuple(w.shape) for w in enough})}"
    if (kept := _kept(key, types)) is not None:
        return kept
    others_used = ceilings.load_of_others("cpu")
    found = _fastest(enough, types, rows)
    if (others_used() or 0.0) <= _BUSY:
        facts.write("products", key, {"dtype": str(found.dtype), "use_packed": list(found.use_packed)})
    return found


def _machine() -> str:
    return f"{device_name('cpu')}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _kept(key: str, types: Sequence[torch.dtype]) -> Form | None:
    """The form that was found here before, if there is one and it can be used."""
    fact = facts.read("products", key) or {}
    dtype = next((t for t in types if str(t) == fact.get("dtype")), None)
    packed = fact.get("use_packed")
    if dtype is None or not isinstance(packed, list) or not all(isinstance(p, bool) for p in packed):
        return None
    return Form(dtype, tuple(packed)) if len(packed) in (0, len(SIZES)) else None


def _fastest(enough: Sequence[torch.Tensor], types: Sequence[torch.dtype], rows: Sequence[int]) -> Form:
    """The form in which these weights are multiplied fastest; they are held in the first of the types."""
    own = best = types[0]
    if len(types) > 1:

        def cost(dtype: torch.dtype) -> float:
            layers = [Form(dtype, (True,) * len(SIZES)).linear(w) for w in enough]
            return sum(_seconds(layers, own, n) for n in rows)

        best = min(types, key=cost)
    return Form(best) if best == torch.int8 else Form(best, measure([w.to(best) for w in enough]))


def measure(weights: Sequence[torch.Tensor]) -> tuple[bool, ...]:
    """For each of SIZES, whether the reordered copies of these weights are faster than the weights themselves.

    Give several layers' weights, more than the processor's cache holds, so that what is measured is streaming.
    Takes some 0.5 s. Returns () where no copy can be made.
    """
    if not all(map(can_pack, weights)):
        return ()
    stock = [Linear(w) for w in weights]
    packed = [Linear(w, (True,) * len(SIZES)) for w in weights]
    dtype = weights[0].dtype
    return tuple(_seconds(packed, dtype, size) < _seconds(stock, dtype, size) for size in SIZES)


def _seconds(layers: Sequence[Linear | Int8Linear], dtype: torch.dtype, rows: int) -> float:
    """The shortest time that one product by each of the layers took, on inputs of this type."""
    inputs = [torch.randn(rows, layer.weight.shape[1], dtype=dtype) for layer in layers]
    best = float("inf")
    for _ in range(_REPEATS if rows <= 8 else _REPEATS - 1):  # what computes for long varies less
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
    for i, size in enumerate(SIZES):
        if rows <= size:
            return i
    return len(SIZES) - 1
