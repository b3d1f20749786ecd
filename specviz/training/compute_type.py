"""The type that training multiplies in on this processor: bfloat16 or float32, whichever is measured to be faster.

Processors without bfloat16 units emulate the product: 4 to 190 times slower than float32. The measurement takes some
milliseconds (a quarter of a second where bfloat16 is emulated); the result is kept with the machine's measured facts.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch.nn import functional

from specviz.hardware import facts
from specviz.hardware.machine import device_name

ROWS, INPUTS, OUTPUTS = 64, 576, 1536
"""The product that is timed: [64, 576] x [576, 1536]."""
REPEATS = 5
MARGIN = 1.2
"""How many times faster bfloat16 must be: autocast converts the weights at every step, which costs time as well."""
_TYPES = (torch.float32, torch.bfloat16)


def training_dtype(seconds: Callable[[torch.dtype], float] | None = None) -> torch.dtype:
    """The faster type for matrix products on the CPU: torch.bfloat16 or torch.float32.

    seconds: times one product in a given type; by default `product_seconds`. With the default, the result is read from
    the measured facts of this machine if it is there, and kept there otherwise.
    """
    return _measured(seconds) if seconds else _remembered(_key())


def autocast(dtype: torch.dtype | None = None) -> AbstractContextManager:
    """Matrix products inside run in `dtype` on the CPU (default: the faster type of this machine)."""
    dtype = dtype or training_dtype()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)


def product_seconds(dtype: torch.dtype) -> float:
    """The shortest time of one product [ROWS, INPUTS] x [INPUTS, OUTPUTS] of this type, in seconds."""
    x, weight = torch.randn(ROWS, INPUTS).to(dtype), torch.randn(OUTPUTS, INPUTS).to(dtype)
    best = math.inf
    for repeat in range(1 + REPEATS):
        started = time.perf_counter()
        functional.linear(x, weight)
        passed = time.perf_counter() - started
        if repeat:  # the first one prepares the kernel
            best = min(best, passed)
        elif passed > 0.1:  # emulated: one is enough
            return passed
    return best


@functools.cache
def _remembered(key: str) -> torch.dtype:
    fact = facts.read("training type", key) or {}
    kept = next((t for t in _TYPES if str(t) == fact.get("dtype")), None)
    if kept is not None:
        return kept
    times = {t: product_seconds(t) for t in _TYPES}
    found = _measured(times.__getitem__)
    facts.write("training type", key, {"dtype": str(found), "seconds": {str(t): s for t, s in times.items()}})
    return found


def _measured(seconds: Callable[[torch.dtype], float]) -> torch.dtype:
    return torch.bfloat16 if MARGIN * seconds(torch.bfloat16) < seconds(torch.float32) else torch.float32


def _key() -> str:
    """What the result depends on: the processor, the library, the threads and a limit set on oneDNN's instructions."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "no limit"
    return f"{device_name('cpu')}, torch {torch.__version__}, {torch.get_num_threads()} threads, {limit}"
