"""Distributions over a whole vocabulary that are made only where they are looked at.

A round looks at few of the K + 1 rows of tens of thousands of float64 that p and q are: at one probability per accepted
draft, and at a whole row only after a rejection or past the last draft. Both classes are read as a tensor [K, V] is:
by [slot], which gives a row [V], and by [slot, token].
"""

from __future__ import annotations

from functools import cache

import torch

from specviz.sampling import warp
from specviz.trace import Settings


class Warped:
    """p: logits [K, V] after temperature, top-k and top-p, in float64."""

    def __init__(self, logits: torch.Tensor, settings: Settings):
        self._logits, self._warp = logits, (settings.temperature, settings.top_k, settings.top_p)
        self._row = cache(lambda slot: warp(logits[slot], *self._warp))

    def __getitem__(self, at: int | tuple[int, int]) -> torch.Tensor:
        return self._row(at[0])[at[1]] if isinstance(at, tuple) else self._row(at)

    def whole(self) -> torch.Tensor:
        """[K, V]"""
        return warp(self._logits, *self._warp)


class Spread:
    """Rows [K, V] of which only the columns of some tokens are held; all others have one value."""

    def __init__(self, values: torch.Tensor, ids: torch.Tensor, size: int, rest: float):
        """values [K, Vd]; ids [Vd]: their tokens, ascending; size: V; rest: what all other tokens have."""
        self.values, self.ids, self.size, self.rest = values, ids, size, rest

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: int | slice | tuple[int, int]) -> torch.Tensor | float | Spread:
        """A row, fewer rows that are spread as well, or one value."""
        if isinstance(at, slice):
            return Spread(self.values[at], self.ids, self.size, self.rest)
        if isinstance(at, tuple):
            slot, token = at
            column = int(torch.searchsorted(self.ids, token))
            held = column < len(self.ids) and int(self.ids[column]) == token
            return float(self.values[slot, column]) if held else self.rest
        return self._spread(self.values[at])

    def whole(self) -> torch.Tensor:
        """[K, V]"""
        return self._spread(self.values)

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        shape = (*values.shape[:-1], self.size)
        full = torch.full(shape, self.rest, dtype=values.dtype, device=values.device)
        full[..., self.ids] = values
        return full


Rows = torch.Tensor | Warped | Spread


def whole(rows: Rows) -> torch.Tensor:
    """The tensor [K, V] of such rows."""
    return rows if isinstance(rows, torch.Tensor) else rows.whole()
