"""Free memory of a device, within a container's limit. Imports torch and psutil only when called."""

from __future__ import annotations

from pathlib import Path

from specviz.errors import SpecVizError

UNLIMITED = 2**62
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Control groups, version 2 and version 1: folder, limit, use, and the part of the use that can be reclaimed."""


def free_memory_bytes(device: str) -> int:
    """Bytes that can still be allocated on a device ('cpu', 'cuda', 'cuda:1', 'mps'), now.

    On a CPU the lesser of the machine's and the container's free memory; Apple GPUs share the machine's memory.
    Raises SpecVizError if psutil is missing, which is needed on CPUs.
    """
    kind = device.partition(":")[0]
    if kind == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    try:
        import psutil
    except ImportError:
        raise SpecVizError(
            "Free memory cannot be determined without psutil: pip install -r requirements.txt."
        ) from None
    free = min(psutil.virtual_memory().available, container_room())
    if kind == "mps":
        import torch

        return max(0, min(free, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()))
    return free


def container_room() -> int:
    """Bytes left within a container's memory limit; UNLIMITED without a limit."""
    for folder, limit, used, inactive in _GROUPS:
        try:
            most = (Path(folder) / limit).read_text().strip()
            if most == "max":
                return UNLIMITED
            now = int((Path(folder) / used).read_text())
            lines = (Path(folder) / "memory.stat").read_text().splitlines()
            # cached file pages count as used but are reclaimed on demand
            spare = next((int(line.split()[1]) for line in lines if line.split()[0] == inactive), 0)
            return max(0, int(most) - now + spare)
        except (OSError, ValueError, IndexError):
            continue
    return UNLIMITED
