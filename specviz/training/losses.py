"""Losses and measures of drafter training, as pure functions over tensors. Knows no model and no data.

p is the target's distribution, q the drafter's. A draft is accepted with probability sum(min(p, q)), the
overlap, so training aims at that: total variation is 1 - overlap. It has weak gradients where q is far off,
so it is mixed with KL, more of it while the overlap is small (after "LK losses", arXiv 2602.23881).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from specviz.trace.calibration import expected_error
from specviz.training.compute_type import training_dtype

ROWS = 64
"""Positions whose distributions are made at a time: [64, V] in float32 stays in the processor's cache."""


class _Distil(torch.autograd.Function):
    """Loss and gradient by states, a few positions at a time: no [N, V] tensor is stored."""

    @staticmethod
    def forward(ctx, targets, head, weights, kl_share, dtype, *states):
        head = head.to(dtype)
        gradients = [torch.empty(s.shape, dtype=torch.float32) for s in states]
        overlaps, log_peaks = (torch.empty(len(states), len(targets)) for _ in range(2))
        loss = torch.zeros(())
        for at in range(0, len(targets), ROWS):
            rows = slice(at, at + ROWS)
            p = torch.softmax(functional.linear(targets[rows].to(dtype), head).float(), -1)
            for i, s in enumerate(states):
                logits = functional.linear(s[rows].to(dtype), head).float()
                found = _distil_rows(logits, p, weights[i, rows], kl_share)
                loss += found[0]
                overlaps[i, rows], log_peaks[i, rows] = found[1:3]
                gradients[i][rows] = found[3].to(dtype) @ head
        ctx.save_for_backward(*gradients)
        ctx.dtypes = [s.dtype for s in states]
        ctx.mark_non_differentiable(overlaps, log_peaks)
        return loss, overlaps, log_peaks

    @staticmethod
    def backward(ctx, grad_loss, *_):
        gradients = [(g * grad_loss).to(dtype) for g, dtype in zip(ctx.saved_tensors, ctx.dtypes)]
        return None, None, None, None, None, *gradients


def _distil_rows(
    logits: torch.Tensor, p: torch.Tensor, weights: torch.Tensor, kl_share: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of logits and p [n, V]: the weighted loss, overlap [n], log of the largest q [n], gradient by the logits."""
    normalizer = torch.logsumexp(logits, -1)
    cross_entropy = normalizer - (p * logits).sum(-1)  # KL up to a constant that no weight can change
    log_peak = logits.amax(-1) - normalizer
    q = logits.sub_(normalizer[:, None]).exp_()
    overlap = torch.minimum(q, p).sum(-1)
    kl = torch.exp(-3 * overlap) if kl_share is None else torch.full_like(overlap, kl_share)
    loss = (weights * (kl * cross_entropy + (1 - kl) * (1 - overlap))).sum()
    below = (q < p).float()  # where more q is more overlap
    mean = (q * below).sum(-1)
    # kl (q - p) - (1 - kl) q (below - mean), times the weight
    factor = below.mul_((kl - 1)[:, None]).add_((kl + (1 - kl) * mean)[:, None]).mul_(q)
    gradient = torch.addcmul(factor, p, kl[:, None], value=-1).mul_(weights[:, None])
    return loss, overlap, log_peak, gradient


def distil(
    states: Sequence[torch.Tensor],
    targets: torch.Tensor,
    head: torch.Tensor,
    weights: torch.Tensor,
    kl_share: float | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The weighted sum of losses of M drafters' states against one target: (loss, overlap [M, N], log of the largest q
    [M, N]), the last two without gradient.

    states: M tensors [N, D], whose products with head [V, D] are the logits of q; targets [N, D]: the same for p;
    weights [M, N]; the head is frozen. kl_share: the share of KL, the rest is total variation; None: exp(-3 x overlap),
    position by position. dtype: of the products, by default the faster one of this machine.
    """
    return _Distil.apply(targets, head, weights, kl_share, dtype or training_dtype(), *states)


def position_weights(slots: int, decay: float) -> torch.Tensor:
    """w_k = exp(-(k - 1) / decay), k = 1..slots: a later draft counts only if all before it survived."""
    return torch.exp(-torch.arange(slots) / decay)


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
        happened = survived[:, k].tolist()
        said = [(product * torch.sigmoid(logits[:, k] / t)).tolist() for t in grid]
        least = torch.tensor([expected_error(chances, happened, 15) for chances in said])
        # Late slots hardly ever survive, so their error is nearly the same for every T: stay near 1 then.
        good = grid[least <= least.min() + 0.001]
        best = good[int(good.log().abs().argmin())]
        product = product * torch.sigmoid(logits[:, k] / best)
        found.append(best)
    return torch.stack(found)
