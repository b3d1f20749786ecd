"""Measures the two roofs of a device: memory bandwidth and matrix-multiply throughput.

Bandwidth is a reduction (the best of sum, maximum and, where there are kernels of our own, theirs) over a buffer far
larger than any processor cache, which is the access pattern of reading weights. Throughput is a large square matrix
product in the given precision, of random numbers (a GPU draws less power, and so clocks higher, on constant ones); that
of int4 is by our kernel. Both are warm and repeated in turn. A repetition is the best of a few calls, because other
programs can only slow a call down; the result is the median of the repetitions, with the lowest and the highest. The
share of the device that other programs used meanwhile is stored too, so that a warning can be shown when the roofs are
too low.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from specviz.errors import SettingsError
from specviz.hardware import facts, monitor
from specviz.hardware.machine import device_name, synchronise
from specviz.hardware.memory import free_memory_bytes
from specviz.kernels import binding
from specviz.kernels.packed import PackedLinear
from specviz.trace.records import Ceilings
from specviz.worker import Job

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int4": torch.float32}
"""Precisions that can be measured, by the name used on screen and on the command line: the type of their inputs."""
_BUFFER_BYTES = {"cpu": 256 * 2**20, "cuda": 2**30, "mps": 512 * 2**20}
_WIDEST = {"cpu": 2048, "cuda": 8192, "mps": 4096}
_CALLS = 3
"""Calls per repetition, of which the best counts."""
_PRODUCT_SECONDS = 0.05
_SLOW_SECONDS = 0.25
_LEAST_WIDTH = 1024
"""A product is large enough once it takes `_PRODUCT_SECONDS` and has the least width, or takes `_SLOW_SECONDS`."""
_SECONDS = {False: 6.0, True: 2.0}
_REPEATS = {False: (5, 40), True: (3, 9)}
"""Least and most repetitions, the warm-up counted."""
_UNSTEADY = 1.25
_BUSY = 0.15
"""Share of the device that other programs may use before a warning is shown."""


def measure(
    device: str = "cpu",
    precision: str = "fp32",
    quick: bool = False,
    job: Job | None = None,
) -> Ceilings:
    """Measure both roofs and keep the result for `cached`; about 6 s, or 2 s if `quick`.

    A quick result is kept only where there was none. Raises SettingsError for an unknown precision, Stopped.
    """
    dtype = _dtype(precision)
    kind = torch.device(device).type
    job = job or Job()
    began, budget = time.perf_counter(), _SECONDS[quick]
    job.report("Preparing", 0.0)
    others = load_of_others(device)
    buffer, readers = _readers(device, kind, dtype)
    multiply, work = _product(device, kind, precision, job)
    reads: list[float] = []
    products: list[float] = []
    least, most = _REPEATS[quick]
    with torch.inference_mode():
        for repeat in range(most):
            spent = time.perf_counter() - began
            if repeat >= least and spent > budget:
                break
            job.check()
            job.report("Measuring streaming read and matrix product", min(0.99, max(repeat / most, spent / budget)))
            best = min(_best(device, read) for read in readers)
            reads.append(buffer.nbytes / best)
            job.check()
            products.append(work / _best(device, multiply))
    # the first of each is the warm-up
    reads, products = reads[1:], products[1:]
    result = Ceilings(
        device=device,
        precision=precision,
        bandwidth=statistics.median(reads),
        flops=statistics.median(products),
        bandwidth_spread=(min(reads), max(reads)),
        flops_spread=(min(products), max(products)),
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    if not quick or cached(device, precision) is None:
        facts.write("ceilings", _key(device, precision), dataclasses.asdict(result))
        facts.write(
            "ceilings, conditions", _key(device, precision), {"measured_at": result.measured_at, "others": others()}
        )
    job.report("Measured", 1.0)
    return result


def cached(device: str = "cpu", precision: str = "fp32") -> Ceilings | None:
    """The roofs that were measured here before with this torch and as many threads, or None."""
    _dtype(precision)
    fact = facts.read("ceilings", _key(device, precision))
    if fact is None:
        return None
    try:
        result = Ceilings(
            **{
                **fact,
                "bandwidth_spread": tuple(map(float, fact["bandwidth_spread"])),
                "flops_spread": tuple(map(float, fact["flops_spread"])),
            }
        )
        numbers = (result.bandwidth, result.flops, *result.bandwidth_spread, *result.flops_spread)
        sound = all(math.isfinite(n) and n > 0 for n in numbers) and isinstance(result.measured_at, str)
    except (TypeError, KeyError, ValueError):
        return None
    fits = (result.device, result.precision, len(numbers)) == (device, precision, 6)
    return result if sound and fits else None


def other_load(ceilings: Ceilings) -> float | None:
    """The share of the device (0..1) that other programs used while these roofs were measured here; None: not known."""
    kept = facts.read("ceilings, conditions", _key(ceilings.device, ceilings.precision)) or {}
    others = kept.get("others")
    if kept.get("measured_at") != ceilings.measured_at or not isinstance(others, int | float):
        return None
    return float(others) if 0 <= others <= 1 else None


def steady_warning(ceilings: Ceilings) -> str | None:
    """A sentence if other programs were at work, by their load or by repetitions that differ widely; else None."""
    parts = []
    if (others := other_load(ceilings)) is not None and others > _BUSY:
        parts.append(f"other programs used {100 * others:.0f} % of the device meanwhile")
    wide = max(ceilings.bandwidth_spread[1] / ceilings.bandwidth, ceilings.flops_spread[1] / ceilings.flops)
    if wide >= _UNSTEADY:
        parts.append(f"the best repetition was {wide:.1f} times the median")
    if not parts:
        return None
    return f"These roofs are too low: {' and '.join(parts)}. Measure again when the machine is idle."


def load_of_others(device: str) -> Callable[[], float | None]:
    """Start measuring the load of other programs; the returned function gives their share (0..1) since then.

    On a processor: its busy time less this program's own. On an NVIDIA GPU: its load before the work here began.
    None where neither is known.
    """
    if torch.device(device).type == "cuda":
        opened = monitor.source(device)
        before = opened.read(0.0).compute if isinstance(opened, monitor.NvmlSource) else None
        opened.close()
        return lambda: before
    try:
        import psutil
    except ImportError:
        return lambda: None

    def clocks() -> tuple[float, float]:
        everybody, mine = psutil.cpu_times(), psutil.Process().cpu_times()
        busy = sum(everybody[:]) - everybody.idle - getattr(everybody, "iowait", 0.0)
        busy -= getattr(everybody, "guest", 0.0) + getattr(everybody, "guest_nice", 0.0)  # counted within user already
        return busy, mine.user + mine.system

    start, begin = time.perf_counter(), clocks()

    def share() -> float:
        busy, mine = (now - then for now, then in zip(clocks(), begin))
        whole = (time.perf_counter() - start) * (psutil.cpu_count() or 1)
        return min(1.0, max(0.0, (busy - mine) / whole))

    return share


def _dtype(precision: str) -> torch.dtype:
    if precision not in DTYPES:
        raise SettingsError(
            f"There are no ceilings for the precision {precision!r}. Choose one of: {', '.join(DTYPES)}."
        )
    return DTYPES[precision]


def _key(device: str, precision: str) -> str:
    return f"{device_name(device)}, {device}, torch {torch.__version__}, {torch.get_num_threads()} threads, {precision}"


def _buffer_bytes(device: str, preferred: int) -> int:
    """The buffer's bytes: `preferred`, or less where memory is short."""
    free = free_memory_bytes(device)
    return max(2**25, min(preferred, free // 4))


def _readers(device: str, kind: str, dtype: torch.dtype) -> tuple[torch.Tensor, list[Callable[[], object]]]:
    """A buffer, and ways to read all of it."""
    size = _buffer_bytes(device, _BUFFER_BYTES[kind])
    kernels = binding.kernels() if kind == "cpu" else None
    if kernels is None:
        buffer = torch.empty(size, dtype=torch.uint8, device=device)
    else:
        buffer = binding.alloc_huge_pages(size)
    numbers = buffer[: size // 256 * 256].view(dtype).fill_(1)  # written once, so that every page is really there
    readers: list[Callable[[], object]] = [partial(torch.sum, numbers), partial(torch.amax, numbers)]
    if kernels:
        readers.append(partial(kernels.stream, numbers.data_ptr(), numbers.nbytes, torch.get_num_threads()))
    return numbers, readers


def _product(device: str, kind: str, precision: str, job: Job) -> tuple[Callable[[], object], int]:
    """A product of two square matrices large enough to be limited by arithmetic, and its FLOPs.

    The size grows from small, because a precision that the processor lacks can be a thousand times slower.
    """
    generator = torch.Generator().manual_seed(0)
    dtype, width = DTYPES[precision], 256
    while True:
        job.check()
        left, right = (torch.randn(width, width, generator=generator).to(device, dtype) for _ in range(2))
        by_own_kernel = precision == "int4" and kind == "cpu" and binding.kernels() is not None
        multiply = partial(torch.mm, left, right)
        if by_own_kernel:
            multiply = partial(PackedLinear(right, 4, nearest=True), left)
        took = _best(device, multiply)
        enough = _PRODUCT_SECONDS if width >= _LEAST_WIDTH else _SLOW_SECONDS
        if took >= enough or width >= _WIDEST[kind]:
            return multiply, 2 * width**3
        width *= 2


def _best(device: str, operation: Callable[[], object]) -> float:
    """Seconds of the fastest of a few calls."""
    return min(_seconds(device, operation) for _ in range(_CALLS))


def _seconds(device: str, operation: Callable[[], object]) -> float:
    """One call, from an idle device to its end.

    A GPU's launch takes microseconds, its work here milliseconds, so the host's clock serves for all devices.
    """
    synchronise(device)
    began = time.perf_counter()
    operation()
    synchronise(device)
    return time.perf_counter() - began
