"""Inputs and outputs of a block pass over many rows, and indices of its slots, which are packed row after row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.sampling.transfer import index_of, offsets, to_device


@dataclass(frozen=True, kw_only=True)
class BlockInputs:
    """Inputs of a drafting round over R rows."""

    rows: Sequence[int]
    """Row numbers in the cache"""
    taps: Sequence[torch.Tensor | None]
    """Taps [n, len(taps) * D] of each row's context tokens that are not in the cache yet; None: there are none"""
    last_states: Sequence[torch.Tensor]
    """[D] of each row's last context token in the cache"""
    texts: Sequence[Sequence[int]]
    """Of each row the token before its anchor (any, where the drafter does not use it), and the anchor"""
    counts: Sequence[int]
    """Slots to draft for each row, 1 or more"""
    uniforms: Sequence[float] = ()
    """[sum of counts] for the draws"""

    @property
    def anchors(self) -> list[int]:
        """The last emitted token of each row."""
        return [text[-1] for text in self.texts]


@dataclass(frozen=True, kw_only=True)
class BlockOutput:
    """Outputs of a block pass over R rows, and what their tokens are drawn with. M: slots of all rows."""

    states: torch.Tensor
    """[M, D] final-normed"""
    logits: torch.Tensor
    """[M, Vd]"""
    texts: torch.Tensor
    """[R, 2] as in BlockInputs"""
    uniforms: torch.Tensor
    """[M]"""
    counts: Sequence[int]
    """Slots of each row"""


@dataclass(frozen=True)
class Drafted:
    """Drafts of all rows together. M: slots of all rows, padding included."""

    tokens: torch.Tensor
    """[M] the target's ids"""
    logits: torch.Tensor
    """[M, Vd]"""
    drawn_from: torch.Tensor | None = None
    """[M, Vd] float64 distributions that the tokens were drawn from; None: they are the likeliest"""
    confidence: torch.Tensor | None = None
    """[M]"""
    first_guess: torch.Tensor | None = None
    """[M] the parallel pass's tokens, before refinement"""


Indices = slice | torch.Tensor


def slots_at(slot: int, counts: Sequence[int], device: torch.device) -> tuple[Indices, Indices]:
    """Indices of the rows' slot `slot` among the packed slots, and of the rows that have one. counts: slots per row."""
    if len(set(counts)) == 1:
        return slice(slot, None, counts[0]), slice(None)
    going = [row for row, n in enumerate(counts) if slot < n]
    starts = offsets(counts)
    return index_of([starts[row] + slot for row in going], device), index_of(going, device)


def slot_numbers(counts: Sequence[int], device: torch.device) -> torch.Tensor:
    """The number of each packed slot within its row. counts: slots of each row."""
    if len(set(counts)) == 1:
        return torch.arange(counts[0], device=device).repeat(len(counts))
    return to_device([slot for n in counts for slot in range(n)], device)
