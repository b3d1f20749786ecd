"""A drafter's vocabulary within its target's: drawing happens on the few thousand tokens that can be drafted, and q is
spread over all of the target's tokens only where it is looked at. Knows no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.lazy import Rows, Spread
from specviz.sampling import draw, warp
from specviz.trace import Settings


class DraftVocabulary:
    """Vd of a target's V tokens."""

    def __init__(self, ids: torch.Tensor, size: int):
        """ids [Vd]: the target's tokens that can be drafted, ascending; size: V."""
        self.ids, self.size = ids, size
        self._ids: list[int] = ids.tolist()

    def __len__(self) -> int:
        return len(self._ids)

    def choose(
        self, logits: torch.Tensor, settings: Settings, uniforms: Sequence[float]
    ) -> tuple[list[int], torch.Tensor]:
        """Draw one token from each row of logits [N, Vd] by its uniform, after temperature, top-k and top-p; the
        likeliest at temperature 0, without a draw. Returns the target's token ids and q [N, Vd] in float64."""
        if settings.temperature == 0:
            return self.likeliest(logits)
        q = warp(logits, settings.temperature, settings.top_k, settings.top_p)
        return [self._ids[draw(row, u)] for row, u in zip(q, uniforms)], q

    def likeliest(self, logits: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        """The likeliest token of each row of logits [N, Vd], and its one-hot q [N, Vd]."""
        best = logits.argmax(-1)
        q = torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(1, best[:, None], 1.0)
        return [self._ids[i] for i in best.tolist()], q

    def spread_logits(self, rows: torch.Tensor) -> Rows:
        """[N, Vd] -> [N, V] float32, -inf for tokens that cannot be drafted."""
        return self._spread(rows.float(), -torch.inf)

    def spread_probs(self, rows: torch.Tensor) -> Rows:
        """[N, Vd] -> [N, V], 0 for tokens that cannot be drafted."""
        return self._spread(rows, 0.0)

    def _spread(self, rows: torch.Tensor, rest: float) -> Rows:
        return rows if len(self) == self.size else Spread(rows, self.ids, self.size, rest)
