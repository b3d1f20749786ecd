"""Positions of a Trace from the tensors of one row's verify pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.trace.records import Position, PositionVerdict

TOP = 12
"""How many of p's and of q's most likely tokens a position keeps."""
LOWEST = torch.finfo(torch.float32).min
"""Replaces a target's logit of -inf, which JSON cannot hold."""


@dataclass(frozen=True, kw_only=True)
class JudgedRow:
    """One row's verify pass and the result of the accept rule; K drafts, vocabulary V."""

    target_logits: torch.Tensor
    """[K + 1, V] raw."""
    target_probs: torch.Tensor
    """p [K + 1, V]."""
    draft_logits: torch.Tensor | None
    """[K, V] raw; None if the drafter has none."""
    draft_probs: torch.Tensor
    """q [K, V]."""
    draft_tokens: Sequence[int]
    accept_uniforms: Sequence[float]
    judged: int
    """Drafts that the accept rule was applied to."""
    accepted: int
    bonus_token: int | None
    """Drawn at position `accepted`; None if the text ended on an accepted draft."""
    confidence: Sequence[float] | None
    first_guess: Sequence[int] | None

    def verdict(self, slot: int) -> PositionVerdict:
        """The verdict on the draft at a slot, or `bonus` after the last."""
        if slot == len(self.draft_tokens):
            return "bonus"
        if slot < self.accepted:
            return "accepted"
        return "rejected" if slot < self.judged else "dropped"


@dataclass(frozen=True)
class _Summaries:
    """What is computed for all positions of a row at once."""

    target_top: list[list[int]]
    target_logsumexp: list[float]
    target_entropy: list[float]
    draft_top: list[list[int]]
    draft_logsumexp: list[float] | None
    overlap: list[float]


def positions(row: JudgedRow) -> tuple[Position, ...]:
    """The row's K + 1 positions."""
    summaries = _summaries(row)
    return tuple(_position(row, summaries, slot) for slot in range(len(row.draft_tokens) + 1))


def _summaries(row: JudgedRow) -> _Summaries:
    k, logits = len(row.draft_tokens), row.target_logits
    draft_top: list[list[int]] = []
    overlap: list[float] = []
    draft_logsumexp = None
    if k:
        draft_source = row.draft_probs if row.draft_logits is None else row.draft_logits
        draft_top = _top(draft_source)
        overlap = torch.minimum(row.target_probs[:k], row.draft_probs).sum(-1).tolist()
        if row.draft_logits is not None:
            draft_logsumexp = row.draft_logits.double().logsumexp(-1).tolist()
    return _Summaries(
        _top(logits),
        logits.double().logsumexp(-1).tolist(),
        torch.special.entr(torch.softmax(logits.double(), -1)).sum(-1).tolist(),
        draft_top,
        draft_logsumexp,
        overlap,
    )


def _top(rows: torch.Tensor) -> list[list[int]]:
    """The most likely tokens of each row, at most TOP."""
    return rows.topk(min(TOP, rows.shape[-1])).indices.tolist()


def _support(row: JudgedRow, summaries: _Summaries, slot: int) -> list[int]:
    """The tokens that a position keeps: the top of p and of q, the drafted and the drawn token."""
    tokens = dict.fromkeys(summaries.target_top[slot])
    if slot < len(row.draft_tokens):
        has_logits = row.draft_logits is not None
        tokens |= dict.fromkeys(t for t in summaries.draft_top[slot] if has_logits or row.draft_probs[slot, t] > 0)
        tokens[row.draft_tokens[slot]] = None
    if slot == row.accepted and row.bonus_token is not None:
        tokens[row.bonus_token] = None
    return list(tokens)


def _position(row: JudgedRow, summaries: _Summaries, slot: int) -> Position:
    support = _support(row, summaries, slot)
    at = torch.tensor(support, device=row.target_probs.device)
    drafted = slot < len(row.draft_tokens)
    p = row.target_probs[slot, at].tolist()
    q = row.draft_probs[slot, at].tolist() if drafted else [0.0] * len(support)
    draft_logits = None
    if drafted and row.draft_logits is not None:
        draft_logits = tuple(None if x == -torch.inf else x for x in row.draft_logits[slot, at].tolist())
    tail_p = max(0.0, 1.0 - sum(p))
    tail_q = max(0.0, 1.0 - sum(q)) if drafted else 0.0
    tail_min = max(0.0, summaries.overlap[slot] - sum(map(min, p, q))) if drafted else 0.0
    logsumexp = summaries.draft_logsumexp
    return Position(
        draft_token=row.draft_tokens[slot] if drafted else None,
        verdict=row.verdict(slot),
        accept_uniform=row.accept_uniforms[slot] if slot < row.judged else None,
        support=tuple(support),
        target_logits=tuple(max(z, LOWEST) for z in row.target_logits[slot, at].tolist()),
        draft_logits=draft_logits,
        target_logsumexp=summaries.target_logsumexp[slot],
        draft_logsumexp=logsumexp[slot] if drafted and logsumexp is not None else None,
        target_probs=tuple(p),
        draft_probs=tuple(q),
        tail_target=tail_p,
        tail_draft=tail_q,
        tail_min=min(tail_min, tail_p, tail_q),
        tail_leftover=max(0.0, tail_p - tail_min),
        confidence=row.confidence[slot] if drafted and row.confidence is not None else None,
        first_guess=row.first_guess[slot] if drafted and row.first_guess is not None else None,
        target_entropy=summaries.target_entropy[slot],
    )
