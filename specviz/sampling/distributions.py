"""Distributions over a whole vocabulary that are made only where they are looked at.

A round looks at few of the rows of tens of thousands of float64 that p and q are: at one probability for each draft,
and at one row for each text. OneHot and Spread stand for a tensor [K, V]; the functions below read all three alike,
many rows at once and without waiting for the device. Made is read row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch


class OneHot:
    """Rows [K, V] with one token each that has probability 1: what is chosen without chance."""

    def __init__(self, tokens: torch.Tensor, size: int):
        """tokens [K]; size: V."""
        self.tokens, self.size, self.device = tokens, size, tokens.device

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: slice | torch.Tensor) -> OneHot:
        return OneHot(self.tokens[at], self.size)

    def chosen(self, tokens: torch.Tensor) -> torch.Tensor:
        return (self.tokens == tokens).double()

    def whole(self) -> torch.Tensor:
        full = torch.zeros(len(self), self.size, dtype=torch.float64, device=self.tokens.device)
        return full.scatter_(1, self.tokens[:, None], 1.0)


class Spread:
    """Rows [K, V] of which only the columns of some tokens are held; all others have one value."""

    def __init__(self, values: torch.Tensor, ids: torch.Tensor, size: int, rest: float):
        """values [K, Vd]; ids [Vd]: their tokens, ascending; size: V; rest: what all other tokens have."""
        self.values, self.ids, self.size, self.rest, self.device = values, ids, size, rest, values.device

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: slice | torch.Tensor) -> Spread:
        return Spread(self.values[at], self.ids, self.size, self.rest)

    def chosen(self, tokens: torch.Tensor) -> torch.Tensor:
        column = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        found = self.values.gather(1, column[:, None])[:, 0]
        return found.masked_fill(self.ids[column] != tokens, self.rest)

    def whole(self) -> torch.Tensor:
        full = torch.full((len(self), self.size), self.rest, dtype=self.values.dtype, device=self.values.device)
        full[:, self.ids] = self.values
        return full


class Made:
    """Rows [K, V] that are made one by one where they are first looked at, for a processor: there to look is free."""

    def __init__(self, make: Callable[[int], torch.Tensor], size: int, device: torch.device):
        """make: one of the K rows [V] by its place; size: K."""
        self._make, self._size, self.device = cache(make), size, device

    def __len__(self) -> int:
        return self._size

    def row(self, place: int) -> torch.Tensor:
        """[V]"""
        return self._make(place)

    def __getitem__(self, at: slice) -> torch.Tensor:
        return torch.stack([self.row(place) for place in range(self._size)[at]])

    def whole(self) -> torch.Tensor:
        return self[:]


Rows = torch.Tensor | OneHot | Spread | Made


def chosen(rows: Rows, tokens: torch.Tensor) -> torch.Tensor:
    """The probability [K] that each of the rows [K, V] gives to its token [K]."""
    return rows.gather(1, tokens[:, None])[:, 0] if isinstance(rows, torch.Tensor) else rows.chosen(tokens)


def whole(rows: Rows) -> torch.Tensor:
    """The tensor [K, V] of such rows."""
    return rows if isinstance(rows, torch.Tensor) else rows.whole()


def together(parts: Sequence[Rows]) -> Rows:
    """One after the other, as lazy as they are if they are of one kind."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(isinstance(part, OneHot) for part in parts):
        return OneHot(torch.cat([part.tokens for part in parts]), first.size)
    if all(isinstance(part, Spread) and part.ids is first.ids for part in parts):
        return Spread(torch.cat([part.values for part in parts]), first.ids, first.size, first.rest)
    return torch.cat([whole(part) for part in parts])
