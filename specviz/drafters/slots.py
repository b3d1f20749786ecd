"""The slots of a block pass over many rows, packed one row after the other: what came of them, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.sampling.transfer import index_of, offsets, to_device


@dataclass(frozen=True)
class Drafted:
    """What came of a block pass, of all rows together; [M] stands for their slots, and padding where there is any."""

    tokens: torch.Tensor
    """[M] the target's ids"""
    logits: torch.Tensor
    """[M, Vd]"""
    drawn_from: torch.Tensor | None = None
    """[M, Vd] float64; None: chosen without chance"""
    confidence: torch.Tensor | None = None
    """[M]"""
    first_guess: torch.Tensor | None = None
    """[M] what the parallel pass alone says"""


Places = slice | torch.Tensor


def slots_at(slot: int, counts: Sequence[int], device: torch.device) -> tuple[Places, Places]:
    """Where the slots of this number lie among those of rows that have `counts` each, and which rows have one."""
    if len(set(counts)) == 1:
        return slice(slot, None, counts[0]), slice(None)
    going = [row for row, n in enumerate(counts) if slot < n]
    starts = offsets(counts)
    return index_of([starts[row] + slot for row in going], device), index_of(going, device)


def numbers_of(counts: Sequence[int], device: torch.device) -> torch.Tensor:
    """The number of each slot within its block, of rows that have `counts` each."""
    if len(set(counts)) == 1:
        return torch.arange(counts[0], device=device).repeat(len(counts))
    return to_device([slot for n in counts for slot in range(n)], device)
