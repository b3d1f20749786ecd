"""Speculative sampling: warping logits, drawing tokens, and the accept rule, as pure functions over tensors.

Every uniform is passed in; nothing here draws random numbers by itself. The rule is that of Leviathan et al. 2023
(arXiv 2211.17192, algorithm 1) and Chen et al. 2023 (arXiv 2302.01318); p and q are the distributions after
temperature, top-k and top-p.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, overload

import torch

from specviz.sampling.distributions import Distributions, LazyRows, OneHotRows, dense, token_probs
from specviz.sampling.transfer import index_of, offsets, to_device, to_host

STREAMS = {"draft": 0, "accept": 1, "bonus": 2}


def uniform(seed: int, round_index: int, slot: int, stream: str) -> float:
    """A counter-based uniform in [0, 1) with 53 random bits: a pure function (BLAKE2b) of its arguments.

    The counter is the row's round number and the slot in the round, not the position in the text: a position that is
    drafted again in a later round must get a fresh uniform, or the output would not follow p. stream: a key of STREAMS.
    """
    counter = struct.pack("<4q", seed, round_index, slot, STREAMS[stream])
    return (int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little") >> 11) / 2**53


def warp(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """Probabilities [..., V] in float64 from logits [..., V]: temperature, then top-k, then top-p.

    temperature 0: one-hot at the first largest logit. Ties at a cut are all kept, so that the result depends only on
    the values. top_k 0 and top_p 1 are off.
    """
    if temperature == 0:
        return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(
            -1, logits.argmax(-1, keepdim=True), 1.0
        )
    scaled = logits.double() / temperature
    if 0 < top_k < logits.shape[-1]:
        smallest_kept = logits.topk(top_k, dim=-1).values[..., -1:]
        scaled = scaled.masked_fill_(logits < smallest_kept, -torch.inf)
    probs = scaled.softmax(-1)
    if top_p < 1.0:
        descending, reached = _nucleus(probs, top_p)
        smallest_kept = descending.masked_fill(reached, torch.inf).amin(-1, keepdim=True)
        probs = probs.masked_fill(probs < smallest_kept, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def warp_rows(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Distributions:
    """`warp` of logits [K, V] as lazy distributions: one-hot at temperature 0, row by row on a CPU, else a tensor."""
    if temperature == 0:
        return OneHotRows(argmax_rows(logits), logits.shape[-1])
    if logits.device.type == "cpu":
        return LazyRows(lambda row: warp(logits[row], temperature, top_k, top_p), len(logits), logits.device)
    return warp(logits, temperature, top_k, top_p)


_CHUNK = 256


def argmax_rows(logits: torch.Tensor) -> torch.Tensor:
    """The index [K] of the first largest value of each row of logits [K, V].

    On a CPU torch's argmax is scalar while its amax is vectorised, so the largest value is located in two steps: the
    chunk of the row that contains it, then the index inside that chunk.
    """
    rows, size = logits.shape
    if logits.device.type != "cpu" or size % _CHUNK or size < 16 * _CHUNK:
        return logits.argmax(-1)
    chunks = logits.view(rows, -1, _CHUNK)
    best = chunks.amax(-1).argmax(-1)
    within = chunks.gather(1, best[:, None, None].expand(-1, 1, _CHUNK))[:, 0].argmax(-1)
    return best * _CHUNK + within


_NUCLEUS_TOKENS = 512
"""Tokens that are sorted first to find the nucleus on a CPU; if the nucleus is larger, all are sorted. On a GPU all are
sorted at once, because checking would synchronise."""


def _nucleus(probs: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest probs [..., n] in descending order, and which of them are beyond the nucleus [..., n]: the cumulative
    sum before them has reached top_p. probs [..., V]; n is large enough to contain the nucleus."""
    for n in (_NUCLEUS_TOKENS if probs.device.type == "cpu" else probs.shape[-1], probs.shape[-1]):
        if n <= probs.shape[-1]:
            descending = probs.topk(n, dim=-1).values
            # the token at which the cumulative sum first reaches top_p is kept
            reached = descending.cumsum(-1) - descending >= top_p
            if n == probs.shape[-1] or bool(reached[..., -1].all()):
                break
    return descending, reached


def draws(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """One token [N] from each of the rows probs [N, V], by inverting the CDF at the uniforms [N].

    The token is the first at which the cumulative sum exceeds u times the row's total; a token of probability 0 is
    never drawn, since u < 1. probs need not be normalised, but no row may be all 0. A row with NaN gives its last
    token: the decoding loop raises NotFiniteError for it later, and until then the index must be valid.
    """
    running = probs.cumsum(-1)
    found = torch.searchsorted(running, uniforms[:, None] * running[:, -1:], right=True)[:, 0]
    return found.clamp_(max=probs.shape[-1] - 1)


def draw(probs: torch.Tensor, u: float) -> int:
    """One token from one row probs [V]; see `draws`."""
    running = probs.cumsum(-1)
    return min(int(torch.searchsorted(running, u * running[-1:], right=True)), len(probs) - 1)


@overload
def accepts(p: float, q: float, u: float) -> bool: ...
@overload
def accepts(p: torch.Tensor, q: torch.Tensor, u: torch.Tensor) -> torch.Tensor: ...
def accepts(p: float | torch.Tensor, q: float | torch.Tensor, u: float | torch.Tensor) -> bool | torch.Tensor:
    """Whether a drafted token is accepted: u < p / q, thus with probability min(1, p/q) for a uniform u in [0, 1).
    Numbers, or tensors of one shape."""
    return u * q < p


def leftover(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """The leftover distribution norm(max(0, p - q)) [..., V], from which the target draws after a rejection.

    Where p = q up to rounding its sum is 0 and a rejection cannot happen; p itself is returned there."""
    rest = (target_probs - draft_probs).clamp_(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest.div_(total), target_probs)


@dataclass(frozen=True)
class Judgement:
    """The result of the accept rule for one row."""

    accepted: int
    """Drafts before the first rejection."""
    bonus_token: int
    kind: Literal["leftover", "all_accepted"]
    """leftover: drawn from norm(max(0, p - q)) after a rejection; all_accepted: drawn from p after the last draft."""


def judge(
    target_probs: Distributions,
    draft_probs: Distributions,
    draft_tokens: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniform: float,
) -> Judgement:
    """The accept rule for one row. target_probs [K + 1, V], draft_probs [K, V]; draft_tokens, accept_uniforms [K]."""
    device, k = target_probs.device, len(draft_tokens)
    accepted, bonus = to_host(
        *judge_rows(
            target_probs, [0], draft_probs, to_device(draft_tokens, device), [k], accept_uniforms, [bonus_uniform]
        )
    )
    return Judgement(accepted[0], bonus[0], "leftover" if accepted[0] < k else "all_accepted")


def judge_rows(
    target_probs: Distributions,
    starts: Sequence[int],
    draft_probs: Distributions | None,
    draft_tokens: torch.Tensor | None,
    counts: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniforms: Sequence[float],
) -> tuple[torch.Tensor | list[int], torch.Tensor | list[int]]:
    """The accept rule for R rows, and one bonus token per row; does not synchronise with the device.

    Row r has K_r = counts[r] drafts. target_probs [M, V]: row r's K_r + 1 positions begin at starts[r]. draft_probs
    [N, V], draft_tokens [N] and accept_uniforms [N]: the rows' drafts packed in order, N = sum of counts (draft_probs
    and draft_tokens may be None if N is 0). bonus_uniforms [R]. A row's first rejection ends its chain: the bonus token
    is drawn from the leftover there, and later drafts are dropped. Returns the numbers of accepted drafts [R] and the
    bonus tokens [R], to be read by `transfer.to_host`.
    """
    if not any(counts):
        draft_probs = draft_tokens = None
    if isinstance(target_probs, LazyRows):
        return _judge_lazily(target_probs, starts, draft_probs, draft_tokens, counts, accept_uniforms, bonus_uniforms)
    device = target_probs.device
    first_position = to_device(starts, device)
    accepted = torch.zeros_like(first_position)
    if draft_probs is not None and draft_tokens is not None:
        drafted = index_of([start + slot for start, k in zip(starts, counts) for slot in range(k)], device)
        kept = accepts(
            token_probs(target_probs[drafted], draft_tokens),
            token_probs(draft_probs, draft_tokens),
            to_device(accept_uniforms, device, torch.float64),
        )
        accepted = _accepted_prefixes(kept, counts)
    p = target_probs[first_position + accepted]
    if isinstance(p, OneHotRows):  # a rejected draft is another token than p's, so the leftover is p
        return accepted, p.tokens
    p = dense(p)
    if draft_probs is not None:
        rejected = accepted < to_device(counts, device)
        first_draft = to_device(offsets(counts), device)
        # after the last draft q counts as 0, so any row of it will do
        q = dense(draft_probs[(first_draft + accepted).clamp_(max=len(draft_probs) - 1)])
        p = leftover(p, q * rejected[:, None])
    return accepted, draws(p, to_device(bonus_uniforms, device, torch.float64))


def _judge_lazily(
    target_probs: LazyRows,
    starts: Sequence[int],
    draft_probs: Distributions | None,
    draft_tokens: torch.Tensor | None,
    counts: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniforms: Sequence[float],
) -> tuple[list[int], list[int]]:
    """`judge_rows` on a CPU: rows of p are computed only up to each row's first rejection."""
    accepted, bonus, first = [], [], 0
    qs: list[float] = []
    tokens: list[int] = []
    if draft_probs is not None and draft_tokens is not None:
        qs, tokens = token_probs(draft_probs, draft_tokens).tolist(), draft_tokens.tolist()
    for start, k, u in zip(starts, counts, bonus_uniforms):
        slot = 0
        while slot < k and accepts(
            float(target_probs.row(start + slot)[tokens[first + slot]]), qs[first + slot], accept_uniforms[first + slot]
        ):
            slot += 1
        p = target_probs.row(start + slot)
        if slot < k and draft_probs is not None:
            p = leftover(p, dense(draft_probs[first + slot : first + slot + 1])[0])
        accepted.append(slot)
        bonus.append(draw(p, u))
        first += k
    return accepted, bonus


def _accepted_prefixes(kept: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """The drafts before each row's first rejection [R], from kept [N]: the rows' counts[r] drafts packed in order."""
    most = max(counts)
    if len(set(counts)) > 1:
        ends = list(accumulate(counts))
        grid = [end - k + slot if slot < k else ends[-1] for end, k in zip(ends, counts) for slot in range(most)]
        kept = torch.cat([kept, kept.new_zeros(1)])[to_device(grid, kept.device)]
    return kept.view(len(counts), most).long().cumprod(-1).sum(-1)
