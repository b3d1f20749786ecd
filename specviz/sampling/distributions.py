"""Lazy distributions [K, V]: one-hot, sparse or computed row by row, without writing out all V columns.

A round reads few values of the float64 rows of p and q (V is tens of thousands): one probability per draft, and one
whole row per sequence. `token_probs`, `dense` and `concat` take a tensor [K, V] or any of the classes below. OneHotRows
and SparseRows are read without synchronising with the device; LazyRows is for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch


class OneHotRows:
    """Rows [K, V], each with probability 1 at one token: greedy choices."""

    def __init__(self, tokens: torch.Tensor, size: int):
        """tokens [K]; size: V."""
        self.tokens, self.size, self.device = tokens, size, tokens.device

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: slice | torch.Tensor) -> OneHotRows:
        return OneHotRows(self.tokens[at], self.size)

    def token_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The probability [K] of one token per row [K]."""
        return (self.tokens == tokens).double()

    def dense(self) -> torch.Tensor:
        """The tensor [K, V]."""
        full = torch.zeros(len(self), self.size, dtype=torch.float64, device=self.tokens.device)
        return full.scatter_(1, self.tokens[:, None], 1.0)


class SparseRows:
    """Rows [K, V] that store the columns of some tokens only; all other columns have one fill value."""

    def __init__(self, values: torch.Tensor, ids: torch.Tensor, size: int, fill: float):
        """values [K, Vd]; ids [Vd]: their token ids, ascending; size: V; fill: the value of all other tokens."""
        self.values, self.ids, self.size, self.fill, self.device = values, ids, size, fill, values.device

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, at: slice | torch.Tensor) -> SparseRows:
        return SparseRows(self.values[at], self.ids, self.size, self.fill)

    def token_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The value [K] of one token per row [K]."""
        column = torch.searchsorted(self.ids, tokens).clamp(max=len(self.ids) - 1)
        found = self.values.gather(1, column[:, None])[:, 0]
        return found.masked_fill(self.ids[column] != tokens, self.fill)

    def dense(self) -> torch.Tensor:
        """The tensor [K, V]."""
        full = torch.full((len(self), self.size), self.fill, dtype=self.values.dtype, device=self.values.device)
        full[:, self.ids] = self.values
        return full


class LazyRows:
    """Rows [K, V] that are computed when first read, and cached; for the CPU, where reading does not synchronise."""

    def __init__(self, compute: Callable[[int], torch.Tensor], size: int, device: torch.device):
        """compute: row [V] by its index; size: K."""
        self._compute, self._size, self.device = cache(compute), size, device

    def __len__(self) -> int:
        return self._size

    def row(self, index: int) -> torch.Tensor:
        """One row [V]."""
        return self._compute(index)

    def __getitem__(self, at: slice | torch.Tensor) -> torch.Tensor:
        indices = at.tolist() if isinstance(at, torch.Tensor) else range(self._size)[at]
        return torch.stack([self.row(index) for index in indices])

    def token_probs(self, tokens: torch.Tensor) -> torch.Tensor:
        """The probability [K] of one token per row [K]."""
        return self.dense().gather(1, tokens[:, None])[:, 0]

    def dense(self) -> torch.Tensor:
        """The tensor [K, V]."""
        return self[:]


Distributions = torch.Tensor | OneHotRows | SparseRows | LazyRows


def token_probs(rows: Distributions, tokens: torch.Tensor) -> torch.Tensor:
    """The probability [K] that each of the rows [K, V] gives to its token [K]."""
    return rows.gather(1, tokens[:, None])[:, 0] if isinstance(rows, torch.Tensor) else rows.token_probs(tokens)


def dense(rows: Distributions) -> torch.Tensor:
    """The rows as a tensor [K, V]; a tensor is returned as it is."""
    return rows if isinstance(rows, torch.Tensor) else rows.dense()


def concat(parts: Sequence[Distributions]) -> Distributions:
    """Concatenates along K. Stays one-hot or sparse if all parts are; otherwise a tensor. At least one part."""
    first = parts[0]
    if len(parts) == 1:
        return first
    one_hot = [part for part in parts if isinstance(part, OneHotRows)]
    if len(one_hot) == len(parts):
        return OneHotRows(torch.cat([part.tokens for part in one_hot]), one_hot[0].size)
    if isinstance(first, SparseRows):
        sparse = [part for part in parts if isinstance(part, SparseRows) and part.ids is first.ids]
        if len(sparse) == len(parts):
            return SparseRows(torch.cat([part.values for part in sparse]), first.ids, first.size, first.fill)
    return torch.cat([dense(part) for part in parts])
