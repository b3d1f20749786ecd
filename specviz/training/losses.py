"""Losses and measures of drafter training, as pure functions over tensors. Knows no model and no data.

p is the target's distribution, q the drafter's. A draft is accepted with probability sum(min(p, q)), the
overlap, so training aims at that: total variation is 1 - overlap. It has weak gradients where q is far off,
so it is mixed with KL, more of it while the overlap is small (after "LK losses", arXiv 2602.23881).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from specviz.trace.calibration import expected_error


class _Distil(torch.autograd.Function):
    """Mixed KL and total variation with its gradient written out: two passes over [N, V] instead of ten."""

    @staticmethod
    def forward(ctx, logits, target_probs, weights, share):
        q = torch.softmax(logits.float(), -1)
        overlap = torch.minimum(q, target_probs).sum(-1)
        kl_share = torch.exp(-3 * overlap) if share is None else torch.full_like(overlap, share)
        # cross entropy against p: KL up to a constant that no weight can change
        picked = -(target_probs * torch.log(q + 1e-20)).sum(-1)
        ctx.save_for_backward(q, target_probs, weights, kl_share)
        ctx.dtype = logits.dtype
        loss = (weights * (kl_share * picked + (1 - kl_share) * (1 - overlap))).sum()
        return loss, overlap

    @staticmethod
    def backward(ctx, grad_loss, _):
        q, p, weights, kl_share = ctx.saved_tensors
        below = (q < p).to(q.dtype)  # where more q would be more overlap
        mean = (q * below).sum(-1, keepdim=True)
        gradient = kl_share[:, None] * (q - p) - (1 - kl_share)[:, None] * q * (below - mean)
        gradient *= (weights * grad_loss)[:, None]
        return gradient.to(ctx.dtype), None, None, None


def distil(
    logits: torch.Tensor, target_probs: torch.Tensor, weights: torch.Tensor, kl_share: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weighted sum of losses, and each position's overlap [N] (detached).

    logits [N, V] of the drafter; target_probs [N, V], normalised over the same tokens; weights [N].
    kl_share: the share of KL, the rest is total variation; None: exp(-3 x overlap), position by position.
    """
    loss, overlap = _Distil.apply(logits, target_probs, weights, kl_share)
    return loss, overlap.detach()


def position_weights(slots: int, decay: float) -> torch.Tensor:
    """w_k = exp(-(k - 1) / decay), k = 1..slots: a later draft counts only if all before it survived."""
    return torch.exp(-torch.arange(slots) / decay)


def survival_label(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """The chance [N] that a draft drawn from q is accepted: sum(min(p, q)). The confidence head's label."""
    return torch.minimum(target_probs, draft_probs).sum(-1)


def confidence_loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted binary cross entropy against soft labels, all [N]."""
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


def sequential_temperatures(logits: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """Calibrate left to right: for slot k the T_k that makes prod over i <= k of sigmoid(logit_i / T_i) match how
    often the first k drafts all survived, earlier slots frozen. logits [N, K], accepted [N, K] of 0 / 1 (or a
    probability) given that all before survived -> [K]."""
    grid = torch.exp(torch.linspace(-2.0794, 2.0794, 97))  # 1/8 to 8
    found, product = [], torch.ones(len(logits))
    survived = accepted.float().cumprod(-1)
    for k in range(logits.shape[1]):
        happened = survived[:, k].numpy()
        said = [(product * torch.sigmoid(logits[:, k] / t)).numpy() for t in grid]
        least = torch.tensor([expected_error(chances, happened, 15) for chances in said])
        # Late slots hardly ever survive, so their error is nearly the same for every T: stay near 1 then.
        good = grid[least <= least.min() + 0.001]
        best = good[int(good.log().abs().argmin())]
        product = product * torch.sigmoid(logits[:, k] / best)
        found.append(best)
    return torch.stack(found)
