"""A position of a trace as a small example of the accept rule: p and q over a few tokens, and the drafted token.

It is made from a recorded Position without a model: as judged, or recomputed from the recorded logits with another
temperature, top-k or top-p. That is exact where all tokens were recorded (the toy pair). Elsewhere the tokens that were
not recorded are assumed to be equally likely, and `exact` is False.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from specviz.sampling.rejection import draw, leftover, uniform, warp
from specviz.trace.records import Position, Settings, Trace

SHOWN = 8
"""Tokens of a case that are shown by name; the others are summed."""
CLOSE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Case:
    """p and q over `labels`; the last `sums` labels stand for sums over all other tokens."""

    labels: tuple[str, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    drafted: int | None
    """Index of the drafted label; None: not chosen yet."""
    u: float | None
    """The uniform of the verdict; None: not chosen yet."""
    sums: int = 0
    hidden: int = 0
    """Number of tokens in the sums."""
    exact: bool = True
    """False: recomputed from logits of which only a part was recorded."""

    @property
    def overlap(self) -> float:
        """The chance that a draft is accepted: the sum of min(p, q)."""
        return sum(map(min, self.p, self.q))


def drafted_positions(trace: Trace, row: int = 0) -> list[tuple[int, int, Position]]:
    """(round, slot, Position) of every position of a row where something was drafted; both counted from 0."""
    return [
        (round_.index, slot, x)
        for round_, v in trace.row_rounds(row)
        for slot, x in enumerate(v.positions)
        if x.draft_token is not None
    ]


def case_of(trace: Trace, position: Position, temperature: float, top_k: int, top_p: float) -> Case:
    """The case of a position under these settings; under the trace's own settings it is the recorded one."""
    s = trace.settings
    asked = Settings(temperature=temperature, top_k=top_k, top_p=top_p)
    if (asked.temperature, asked.top_k, asked.top_p) == (s.temperature, s.top_k, s.top_p):
        hidden = trace.vocab_size - len(position.support)
        tails = (position.tail_target, position.tail_draft, position.tail_min) if hidden else (0.0, 0.0, 0.0)
        return _fold(trace.pieces, position, position.target_probs, position.draft_probs, tails, hidden, True)
    return _warped(trace, position, asked)


def _warped(trace: Trace, position: Position, asked: Settings) -> Case:
    """p and q by the engine's own `warp`, from the recorded logits and equal shares for the other tokens."""
    hidden = max(0, trace.vocab_size - len(position.support))

    def probs(logits: tuple[float | None, ...], logsumexp: float | None) -> torch.Tensor:
        kept = torch.tensor([float("-inf") if x is None else x for x in logits], dtype=torch.float64)
        if not hidden or logsumexp is None:
            return warp(kept, asked.temperature, asked.top_k, asked.top_p)
        rest = max(0.0, 1.0 - float((kept - logsumexp).exp().sum()))
        share = torch.full((hidden,), rest / hidden, dtype=torch.float64).log() + logsumexp
        return warp(torch.cat((kept, share)), asked.temperature, asked.top_k, asked.top_p)

    n = len(position.support)
    p = probs(position.target_logits, position.target_logsumexp)
    if position.draft_logits is None:  # a lookup: its q is one-hot whatever the temperature
        q = torch.tensor([*position.draft_probs, *[0.0] * hidden], dtype=torch.float64)
    else:
        q = probs(position.draft_logits, position.draft_logsumexp)
    tails = (float(p[n:].sum()), float(q[n:].sum()), float(torch.minimum(p[n:], q[n:]).sum()))
    return _fold(trace.pieces, position, tuple(p[:n].tolist()), tuple(q[:n].tolist()), tails, hidden, not hidden)


def _fold(
    pieces: Mapping[int, str],
    position: Position,
    p: tuple[float, ...],
    q: tuple[float, ...],
    tails: tuple[float, float, float],
    hidden: int,
    exact: bool,
) -> Case:
    """Name the most probable tokens and sum the others, so that p, q, min(p, q) and the leftover keep their sums.

    tails: the sums of p, q and min(p, q) over the `hidden` tokens outside the support.
    """
    support = position.support
    at = None if position.draft_token is None else support.index(position.draft_token)
    shown = _shown(support, p, q, at, hidden)
    rest = [i for i in range(len(support)) if i not in shown]
    sum_p = tails[0] + sum(p[i] for i in rest)
    sum_q = tails[1] + sum(q[i] for i in rest)
    sum_min = min(tails[2] + sum(min(p[i], q[i]) for i in rest), sum_p, sum_q)
    labels = [pieces.get(support[i], f"[{support[i]}]") for i in shown]
    ps, qs = [p[i] for i in shown], [q[i] for i in shown]
    sums, many = 0, hidden + len(rest)
    if many and max(sum_p, sum_q) > CLOSE:
        # One sum would show min(sum of p, sum of q), which is more than the sum of min(p, q). So two: the first keeps
        # all that the two agree on and the target's surplus, the second the draft's surplus.
        over = sum_q - sum_min
        split = over > 5e-4 and sum_p - sum_min > 5e-4
        labels.append(f"{many:,} others")
        ps.append(sum_p)
        qs.append(sum_min if split else sum_q)
        sums = 1
        if split:
            labels.append("others, q > p")
            ps.append(0.0)
            qs.append(over)
            sums = 2
    total_p, total_q = sum(ps), sum(qs)
    return Case(
        labels=tuple(labels),
        p=tuple(x / total_p for x in ps),
        q=tuple(x / total_q for x in qs),
        drafted=None if at is None else shown.index(at),
        u=position.accept_uniform,
        sums=sums,
        hidden=many,
        exact=exact,
    )


def _shown(
    support: tuple[int, ...], p: tuple[float, ...], q: tuple[float, ...], drafted: int | None, hidden: int
) -> list[int]:
    """Indices of the tokens to name: the most probable by p or q, and the drafted one."""
    by_weight = sorted(range(len(support)), key=lambda i: -max(p[i], q[i]))
    shown = by_weight[:SHOWN] if hidden or len(support) > SHOWN + 1 else list(range(len(support)))
    if drafted is not None and drafted not in shown:
        shown[-1] = drafted
    if len(support) <= SHOWN and not hidden:
        shown.sort(key=lambda i: support[i])
    return shown


def two_tokens(p: tuple[float, ...], q: tuple[float, ...]) -> Case:
    """A made-up case of a few tokens named A, B, ..."""
    return Case(labels=tuple("ABCDEFGH"[: len(p)]), p=p, q=q, drafted=0, u=0.5)


def tensors(p: tuple[float, ...], q: tuple[float, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q as normalised float64 tensors [V]."""
    target, draft = torch.tensor(p, dtype=torch.float64), torch.tensor(q, dtype=torch.float64)
    return target / target.sum(), draft / draft.sum()


def chances(p: tuple[float, ...], q: tuple[float, ...]) -> tuple[list[float], list[float], list[float]]:
    """min(p, q), max(0, p - q) and the normalised leftover of each token, by the engine's own arithmetic."""
    target, draft = tensors(p, q)
    kept = torch.minimum(target, draft)
    return kept.tolist(), (target - draft).clamp(min=0).tolist(), leftover(target, draft).tolist()


def fresh(q: tuple[float, ...], seed: int, i: int) -> tuple[int, float]:
    """The i-th draft and uniform of a seed: a token sampled from q, and the u of its verdict."""
    return draw(torch.tensor(q, dtype=torch.float64), uniform(seed, i, 0, "draft")), uniform(seed, i, 0, "accept")
