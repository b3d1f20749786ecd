"""Host-device transfers; a round synchronises once, in `to_host`.

A GPU runs a queue of kernels asynchronously. Reading a value blocks until the queue is empty, and the GPU then idles
until new work arrives. So inputs are copied from pinned memory without blocking, and all results of a round come back
in one copy. On a CPU both are plain copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch


def to_device(values: Sequence, device: torch.device, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """An asynchronous copy of a list of numbers (or of lists of one length) to the device, as a tensor."""
    tensor = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return tensor.to(device, non_blocking=True)


def index_of(rows: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """An index of these rows of a tensor: a slice (a view, no copy) if they are consecutive, else a tensor."""
    if rows and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return to_device(rows, device)


def offsets(counts: Sequence[int]) -> list[int]:
    """The start of each segment in a packed tensor, from the segments' lengths (an exclusive prefix sum)."""
    return [end - n for end, n in zip(accumulate(counts), counts)]


def to_host(*parts: torch.Tensor | list) -> list[list]:
    """The values of one-dimensional tensors on one device, in a single synchronising copy.

    Integers up to 2^53 are exact; floating-point values come back in float64. Lists are returned as they are.
    """
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    values = iter(torch.cat([t.double() for t in tensors]).tolist() if tensors else [])

    def take(part: torch.Tensor) -> list:
        kind = float if part.is_floating_point() else int
        return [kind(next(values)) for _ in range(len(part))]

    return [take(part) if isinstance(part, torch.Tensor) else part for part in parts]
