"""The counterexample of the DSpark appendix: a scheduler that looks ahead changes the distribution.

One request, two tokens, p = (0.7, 0.3), q = (0.5, 0.5). The first draft survives with probability 0.8; the second
surely if the first draft was token 0, and never if it was token 1. Verifying one draft lowers throughput, verifying two
raises it if both are likely. A scheduler that looks ahead verifies the draft because it is token 0, and token 0 is then
emitted too often. The trials use the engine's own judge and schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from specviz.sampling.accept_rules import PAPER_P, PAPER_Q
from specviz.sampling.rejection import draw, judge, uniform
from specviz.serving.scheduling import PAPER_COST, PAPER_FIRST, Schedule

Scheduler = Callable[[Sequence[Sequence[float]], Callable[[int], float]], Schedule]


def survivals_after(token: int) -> list[float]:
    """Survivals of both slots, given that the first draft is `token`."""
    return [PAPER_FIRST, PAPER_FIRST if token == 0 else 0.0]


def law(schedule: Scheduler) -> tuple[float, float]:
    """The chance of each token to be emitted first, exactly."""
    chances = [0.0, 0.0]
    rest = [max(0.0, p - q) for p, q in zip(PAPER_P, PAPER_Q)]
    for drafted, q in enumerate(PAPER_Q):
        if not schedule([survivals_after(drafted)], PAPER_COST).lengths[0]:
            for token, p in enumerate(PAPER_P):
                chances[token] += q * p
            continue
        kept = min(1.0, PAPER_P[drafted] / q)
        chances[drafted] += q * kept
        for token in (0, 1):
            chances[token] += q * (1 - kept) * rest[token] / sum(rest)
    return chances[0], chances[1]


def trials(schedule: Scheduler, count: int, seed: int = 0) -> tuple[int, int]:
    """How often each token came out first in `count` runs of drawing, scheduling and judging."""
    p, q = (torch.tensor(x, dtype=torch.float64) for x in (PAPER_P, PAPER_Q))
    counts = [0, 0]
    for i in range(count):
        drafted = draw(q, uniform(seed, i, 0, "draft"))
        drafts = [drafted][: schedule([survivals_after(drafted)], PAPER_COST).lengths[0]]
        verdict = judge(
            p.repeat(len(drafts) + 1, 1),
            q.repeat(len(drafts), 1),
            drafts,
            [uniform(seed, i, 0, "accept")] * len(drafts),
            uniform(seed, i, 0, "bonus"),
        )
        counts[drafted if verdict.accepted else verdict.bonus_token] += 1
    return counts[0], counts[1]
