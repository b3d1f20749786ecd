"""The draft vocabulary: the subset of the target's tokens that a drafter proposes.

Tokens are drawn within the subset; q over the target's whole vocabulary is computed only where it is read.
"""

from __future__ import annotations

import torch

from specviz.sampling.distributions import Distributions, OneHotRows, SparseRows
from specviz.sampling.rejection import argmax_rows, draws, warp
from specviz.trace.records import Settings


class DraftVocabulary:
    """Vd of a target's V tokens."""

    def __init__(self, ids: torch.Tensor, size: int):
        """ids [Vd]: the target's tokens that can be drafted, ascending; size: V."""
        self.ids, self.size = ids, size
        self._all = len(ids) == size

    def __len__(self) -> int:
        return len(self.ids)

    def choose(
        self, logits: torch.Tensor, settings: Settings, uniforms: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw one token from each row of logits [N, Vd] by its uniform [N], after temperature, top-k and top-p; the
        likeliest at temperature 0, without a draw. Returns the target's token ids [N] and the distributions
        that they were drawn from [N, Vd] in float64, None without a draw. Does not synchronize."""
        if settings.temperature == 0:
            return self.likeliest(logits), None
        drawn_from = warp(logits, settings.temperature, settings.top_k, settings.top_p)
        return self._ids(draws(drawn_from, uniforms)), drawn_from

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """The likeliest token [N] of each row of logits [N, Vd]."""
        return self._ids(argmax_rows(logits))

    def probs(self, tokens: torch.Tensor, drawn_from: torch.Tensor | None) -> Distributions:
        """q [N, V] of what `choose` chose."""
        return OneHotRows(tokens, self.size) if drawn_from is None else self._spread(drawn_from, 0.0)

    def _ids(self, columns: torch.Tensor) -> torch.Tensor:
        return columns if self._all else self.ids[columns]

    def spread_logits(self, rows: torch.Tensor) -> Distributions:
        """[N, Vd] -> [N, V] float32, -inf for tokens that cannot be drafted."""
        return self._spread(rows.float(), -torch.inf)

    def _spread(self, rows: torch.Tensor, rest: float) -> Distributions:
        return rows if self._all else SparseRows(rows, self.ids, self.size, rest)
