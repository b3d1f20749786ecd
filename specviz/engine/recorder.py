"""From the tensors of one verify pass to the Positions of a Trace. Records; decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.trace.records import Position

TOP = 12
"""How many of p's and of q's most likely tokens a position keeps."""
LOWEST = torch.finfo(torch.float32).min
"""What stands for a target's logit of -inf."""


def positions(
    target_logits: torch.Tensor,
    target_probs: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_probs: torch.Tensor,
    draft_tokens: Sequence[int],
    accept_uniforms: Sequence[float],
    judged: int,
    accepted: int,
    bonus_token: int | None,
    confidence: Sequence[float] | None,
    first_guess: Sequence[int] | None,
) -> tuple[Position, ...]:
    """One row's K + 1 positions.

    target_logits and target_probs [K + 1, V]; draft_logits [K, V] raw or None; draft_probs [K, V];
    judged: how many drafts were looked at; the bonus token was drawn at position `accepted`.
    """
    k = len(draft_tokens)
    target_top = target_logits.topk(min(TOP, target_logits.shape[-1])).indices.tolist()
    target_logsumexp = target_logits.double().logsumexp(-1).tolist()
    target_entropy = torch.special.entr(torch.softmax(target_logits.double(), -1)).sum(-1).tolist()
    draft_logsumexp = None
    if k:
        draft_source = draft_probs if draft_logits is None else draft_logits
        draft_top = draft_source.topk(min(TOP, draft_source.shape[-1])).indices.tolist()
        overlap = torch.minimum(target_probs[:k], draft_probs).sum(-1).tolist()
        if draft_logits is not None:
            draft_logsumexp = draft_logits.double().logsumexp(-1).tolist()
    recorded = []
    for slot in range(k + 1):
        drafted = slot < k
        wanted = dict.fromkeys(target_top[slot])
        if drafted:
            wanted |= dict.fromkeys(t for t in draft_top[slot] if draft_probs[slot, t] > 0 or draft_logits is not None)
            wanted[draft_tokens[slot]] = None
        if slot == accepted and bonus_token is not None:
            wanted[bonus_token] = None
        support = list(wanted)
        at = torch.tensor(support, device=target_probs.device)
        p = target_probs[slot, at].tolist()
        q = draft_probs[slot, at].tolist() if drafted else [0.0] * len(support)
        raw_draft = None
        if drafted and draft_logits is not None:
            raw_draft = tuple(None if x == -torch.inf else x for x in draft_logits[slot, at].tolist())
        tail_p = max(0.0, 1.0 - sum(p))
        tail_q = max(0.0, 1.0 - sum(q)) if drafted else 0.0
        tail_min = max(0.0, overlap[slot] - sum(map(min, p, q))) if drafted else 0.0
        if not drafted:
            verdict = "bonus"
        elif slot < accepted:
            verdict = "accepted"
        else:
            verdict = "rejected" if slot < judged else "dropped"
        recorded.append(
            Position(
                draft_token=draft_tokens[slot] if drafted else None,
                verdict=verdict,
                accept_uniform=accept_uniforms[slot] if slot < judged else None,
                support=tuple(support),
                # a masked token's -inf has no place in JSON
                target_logits=tuple(max(z, LOWEST) for z in target_logits[slot, at].tolist()),
                draft_logits=raw_draft,
                target_logsumexp=target_logsumexp[slot],
                draft_logsumexp=draft_logsumexp[slot] if raw_draft is not None else None,
                target_probs=tuple(p),
                draft_probs=tuple(q),
                tail_target=tail_p,
                tail_draft=tail_q,
                tail_min=min(tail_min, tail_p, tail_q),
                tail_leftover=max(0.0, tail_p - tail_min),
                confidence=confidence[slot] if drafted and confidence is not None else None,
                first_guess=first_guess[slot] if drafted and first_guess is not None else None,
                target_entropy=target_entropy[slot],
            )
        )
    return tuple(recorded)
