"""The available devices, their names, and a timer for each kind."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import torch

from specviz.errors import SettingsError
from specviz.trace.records import Ceilings, Machine


def available_devices() -> tuple[str, ...]:
    """The devices that torch can use here, fastest kind first; 'cpu' is always the last."""
    found = []
    if torch.cuda.is_available():
        found += ["cuda"] + [f"cuda:{i}" for i in range(1, torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return (*found, "cpu")


def resolve_device(name: str = "auto") -> str:
    """The torch device for a name: auto (the fastest that is available), cpu, cuda, cuda:1, ..., mps.

    Raises SettingsError, with what to do, if it is not available or not a device.
    """
    found = available_devices()
    if name == "auto":
        return found[0]
    name = "cuda" if name == "cuda:0" else name
    if name in found:
        return name
    if name == "cuda":
        raise SettingsError(
            f"No CUDA GPU can be used by this PyTorch ({torch.__version__}): choose cpu or auto, or "
            "install a CUDA build of torch and a driver."
        )
    if name == "mps":
        raise SettingsError("No Apple GPU (mps) can be used by this PyTorch: choose cpu or auto.")
    raise SettingsError(f"There is no device {str(name)[:40]!r}: choose one of auto, {', '.join(found)}.")


def device_name(device: str) -> str:
    """The device's name, e.g. 'NVIDIA L4' or the processor's model name."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()} (GPU)" if kind == "mps" else _processor()


@lru_cache(maxsize=1)
def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        try:
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
            if answer:
                return answer
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine() or "unknown processor"


def describe(device: str, precision: str, ceilings: Ceilings | None = None) -> Machine:
    """The Machine record of a run on `device`."""
    return Machine(
        device=device,
        name=device_name(device),
        precision=precision,
        torch=torch.__version__,
        transformers=_version("transformers"),
        threads=torch.get_num_threads(),
        ceilings=ceilings,
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def synchronise(device: str) -> None:
    """Wait until the device has finished all queued work."""
    kind = torch.device(device).type
    if kind == "cuda":
        torch.cuda.synchronize(device)
    elif kind == "mps":
        torch.mps.synchronize()


class Timer:
    """A stopwatch of named sections: `with timer.section("verify"): ...`, then `timer.seconds("verify")`.

    On a CPU it is the wall clock. On a CUDA device a section is two events on the stream, so that timing does
    not stall the device; `seconds` waits once for the last event. On MPS it waits at both ends of a section.
    """

    def __init__(self, device: str):
        self.device = device
        self._kind = torch.device(device).type
        self._done: dict[str, float] = defaultdict(float)
        self._pending: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = defaultdict(list)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time what happens inside; sections of one name add up."""
        if self._kind == "cuda":
            with torch.cuda.device(self.device):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
            try:
                yield
            finally:
                with torch.cuda.device(self.device):
                    end.record()
                self._pending[name].append((begin, end))
            return
        if self._kind == "mps":
            torch.mps.synchronize()
        began = time.perf_counter()
        try:
            yield
        finally:
            if self._kind == "mps":
                torch.mps.synchronize()
            self._done[name] += time.perf_counter() - began

    def seconds(self, name: str) -> float:
        """Seconds spent in the sections of this name since the last reset (0.0 if there were none)."""
        if events := self._pending.pop(name, None):
            events[-1][1].synchronize()
            self._done[name] += sum(begin.elapsed_time(end) for begin, end in events) / 1000.0
        return self._done.get(name, 0.0)

    def reset(self) -> None:
        """Discard all sections."""
        self._pending.clear()
        self._done.clear()


def clock(device: str) -> Timer:
    """A fresh Timer for the device."""
    return Timer(device)


def has_bf16_units() -> bool:
    """Whether the processor has bfloat16 instructions (AVX-512 or AMX) that torch uses."""
    able = torch.cpu.get_capabilities()
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and bool(able.get("avx512_bf16") or able.get("amx_bf16"))
