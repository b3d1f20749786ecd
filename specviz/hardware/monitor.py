"""Monitors a device's load during a run: one thread samples into a bounded buffer.

On NVIDIA GPUs it reads NVML (the optional package nvidia-ml-py): streaming-multiprocessor and memory utilization,
power, clock, memory in use, temperature and energy. Elsewhere psutil gives the load of each processor core and memory.
What is missing is said in a sentence (`note`), never hidden.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

CAPACITY = 1200
"""Samples kept: ten minutes at the usual two a second."""
INTERVAL_SECONDS = 0.5


@dataclass(frozen=True)
class Sample:
    """One sample of the device's load. Shares are in 0..1; None: not reported by this device."""

    seconds: float
    """Since the monitor was started."""
    compute: float | None
    """Share of the last interval in which a kernel ran (GPU), or the mean load of the cores (CPU)."""
    memory_traffic: float | None
    """Share of the last interval in which device memory was read or written (GPU only)."""
    memory_used: int | None
    memory_total: int | None
    watts: float | None = None
    clock_hertz: float | None = None
    joules: float | None = None
    """Energy since the monitor was started."""
    cores: tuple[float, ...] = ()
    """Load of each core (CPU only)."""


class Source:
    """A source of samples: `read(seconds)` returns one, `close()` frees it, `note` says what is missing."""

    name = ""
    note = ""

    def read(self, seconds: float) -> Sample:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free by default."""


class NvmlSource(Source):
    """An NVIDIA GPU by way of NVML. `library`: the module pynvml, or anything with its interface."""

    def __init__(self, library, index: int = 0):
        self._nvml = library
        library.nvmlInit()
        try:
            self._handle = library.nvmlDeviceGetHandleByIndex(index)
            self.name = _text(library.nvmlDeviceGetName(self._handle))
        except library.NVMLError:
            library.nvmlShutdown()
            raise
        self._energy_start = self._ask(library.nvmlDeviceGetTotalEnergyConsumption)
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        """Seconds and watts of the sample before"""
        absent = [
            what
            for what, value in (
                ("power", self._ask(library.nvmlDeviceGetPowerUsage)),
                ("utilization", self._ask(library.nvmlDeviceGetUtilizationRates)),
            )
            if value is None
        ]
        self.note = f"This GPU does not report its {' and '.join(absent)}." if absent else ""

    def _ask(self, question: Callable, *arguments):
        """The answer, or None where the device or the permission lacks it."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None

    def read(self, seconds: float) -> Sample:
        nvml = self._nvml
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        megahertz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        watts = None if milliwatts is None else milliwatts / 1e3
        return Sample(
            seconds=seconds,
            compute=None if rates is None else rates.gpu / 100,
            memory_traffic=None if rates is None else rates.memory / 100,
            memory_used=None if memory is None else memory.used,
            memory_total=None if memory is None else memory.total,
            watts=watts,
            clock_hertz=None if megahertz is None else megahertz * 1e6,
            joules=self._energy(seconds, watts),
        )

    def _energy(self, seconds: float, watts: float | None) -> float | None:
        """By the device's own counter (millijoules) where it has one, else power summed over time."""
        if self._energy_start is not None:
            now = self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
            return None if now is None else (now - self._energy_start) / 1e3
        if watts is None:
            return None
        if self._last is not None:
            self._joules += (seconds - self._last[0]) * (watts + self._last[1]) / 2
        self._last = (seconds, watts)
        return self._joules

    def close(self) -> None:
        self._nvml.nvmlShutdown()


class ProcessorSource(Source):
    """The processor by way of psutil: load of each core and memory in use."""

    def __init__(self, library, note: str = ""):
        self._psutil = library
        self.name = "processor"
        self.note = note
        library.cpu_percent(percpu=True)  # the first call only starts the interval

    def read(self, seconds: float) -> Sample:
        cores = tuple(load / 100 for load in self._psutil.cpu_percent(percpu=True))
        memory = self._psutil.virtual_memory()
        return Sample(
            seconds=seconds,
            compute=sum(cores) / len(cores) if cores else None,
            memory_traffic=None,
            memory_used=memory.total - memory.available,
            memory_total=memory.total,
            cores=cores,
        )


class SilentSource(Source):
    """No figures are available; `note` says why."""

    def __init__(self, note: str):
        self.name, self.note = "none", note

    def read(self, seconds: float) -> Sample:
        return Sample(seconds, None, None, None, None)


def source(device: str) -> Source:
    """The best source for a torch device name ('cuda', 'cuda:1', 'mps', 'cpu')."""
    note = ""
    if device.startswith("cuda"):
        library = _library("pynvml")
        if library is None:
            note = "For the GPU's own load, power and memory, install nvidia-ml-py. Shown is the processor."
        else:
            try:
                return NvmlSource(library, int(device.partition(":")[2] or 0))
            except library.NVMLError as error:
                note = f"NVML cannot be used here ({error}). Shown is the processor."
    elif device == "mps":
        note = "This system does not report its GPU's load. Shown is the processor."
    library = _library("psutil")
    if library is None:
        return SilentSource("To see the load of the processor, install psutil.")
    return ProcessorSource(library, note)


def _library(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


class Monitor:
    """Samples a source in a thread from `start` to `stop`; also a context manager. Keeps the last samples only.

    With `patience` it also stops once `samples` was not called for that many seconds.
    """

    def __init__(
        self,
        device: str = "cpu",
        interval: float = INTERVAL_SECONDS,
        capacity: int = CAPACITY,
        make_source: Callable[[str], Source] = source,
        patience: float | None = None,
    ):
        self._device, self._interval, self._make, self._patience = device, interval, make_source, patience
        self._asked = time.monotonic()
        self._samples: deque[Sample] = deque(maxlen=capacity)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.note = ""
        """Which figures are missing, in a sentence; empty if none."""
        self.spent_seconds = 0.0
        """Processor time that sampling itself took."""

    def start(self) -> Monitor:
        """Begin sampling; does nothing if it runs already."""
        self._asked = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._ended.clear()
            self._samples.clear()
            self.spent_seconds = 0.0
            opened = self._make(self._device)
            self.note = opened.note
            self._thread = threading.Thread(target=self._run, args=(opened,), name="specviz-monitor", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread and wait for it; the samples stay."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None

    def samples(self, since: float = -1.0) -> list[Sample]:
        """The samples that were taken later than `since` seconds after the start."""
        self._asked = time.monotonic()
        return [s for s in tuple(self._samples) if s.seconds > since]

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _run(self, opened: Source) -> None:
        began = time.perf_counter()
        try:
            while not self._ended.wait(self._interval):
                before = time.thread_time()
                self._samples.append(opened.read(time.perf_counter() - began))
                self.spent_seconds += time.thread_time() - before
                if self._patience is not None and time.monotonic() - self._asked > self._patience:
                    break
        except Exception as error:  # a device can vanish; the run that is watched must not care
            self.note = f"Watching the load ended early: {error}."
        finally:
            opened.close()

    def __enter__(self) -> Monitor:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name
