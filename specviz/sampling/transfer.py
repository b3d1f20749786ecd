"""Numbers on their way to a device and back, and that a round waits for the device once.

A GPU works through a queue of its own; a program that asks for a value waits until the queue is empty, and the device
then idles until it is given something new. So lists go over without waiting, and what a round decided comes back in one
reading. On a processor both are plain copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch


def onto(values: Sequence, device: torch.device, dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Numbers from the host as a tensor on the device, in the order of what it has to do: nobody waits."""
    made = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return made.to(device, non_blocking=True)


def places(of: Sequence[int], device: torch.device) -> slice | torch.Tensor:
    """What reads these places of a tensor: a slice, which copies nothing, where they follow each other."""
    if of and list(of) == list(range(of[0], of[0] + len(of))):
        return slice(of[0], of[0] + len(of))
    return onto(of, device)


def starts_of(counts: Sequence[int]) -> list[int]:
    """Where each of several parts begins that lie packed one after the other, with so many entries each."""
    return [end - n for end, n in zip(accumulate(counts), counts)]


def read(*parts: torch.Tensor | list) -> list[list]:
    """The values of one-dimensional tensors of one device: the one place where a round waits for it. Whole numbers
    below 2^53 come back as they are, others in float64. Lists are here already."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if not tensors:
        return list(parts)
    flat = iter(torch.cat([t.double() for t in tensors]).tolist())
    kinds = ((part, float if isinstance(part, torch.Tensor) and part.is_floating_point() else int) for part in parts)
    return [
        [kind(next(flat)) for _ in range(len(part))] if isinstance(part, torch.Tensor) else part for part, kind in kinds
    ]
