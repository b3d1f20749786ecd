"""The arithmetic of sampling and of the accept rule, as pure functions over tensors.

Knows no model, no loop and no source of chance: every uniform is passed in. The rule is that of
Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1) and Chen et al. 2023 (arXiv 2302.01318); p and q
are the distributions after temperature, top-k and top-p.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from specviz.sampling.distributions import Made, OneHot, Rows, chosen, whole
from specviz.sampling.transfer import onto, places, read, starts_of

STREAMS = {"draft": 0, "accept": 1, "bonus": 2}


def uniform(seed: int, round_index: int, slot: int, stream: str) -> float:
    """A uniform in [0, 1) with 53 bits that is a pure function of its arguments (counter-based).

    Keyed by a row's own round number and slot, never by the position in the text: a slot that is
    redrafted in a later round must get a fresh uniform, or the output would not follow p.
    """
    counter = struct.pack("<4q", seed, round_index, slot, STREAMS[stream])
    return (int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little") >> 11) / 2**53


def warp(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """logits [..., V] -> probabilities [..., V] in float64, after temperature, then top-k, then top-p.

    temperature 0: one-hot at the (first) largest logit. Ties at a cut are all kept, so that the result
    depends on the values alone. top_k 0 and top_p 1 are off.
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


def warped(logits: torch.Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Rows:
    """`warp` of logits [K, V]; at temperature 0 without writing the zeros down, and on a processor row by row."""
    if temperature == 0:
        return OneHot(likeliest(logits), logits.shape[-1])
    if logits.device.type == "cpu":
        return Made(lambda place: warp(logits[place], temperature, top_k, top_p), len(logits), logits.device)
    return warp(logits, temperature, top_k, top_p)


_PIECE = 256


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The first largest of each row of logits [K, V]: [K].

    On a processor torch looks for places one number at a time, and for values sixteen at once: so first for the piece
    of the row that holds the largest value.
    """
    rows, size = logits.shape
    if logits.device.type != "cpu" or size % _PIECE or size < 16 * _PIECE:
        return logits.argmax(-1)
    pieces = logits.view(rows, -1, _PIECE)
    best = pieces.amax(-1).argmax(-1)
    within = pieces.gather(1, best[:, None, None].expand(-1, 1, _PIECE))[:, 0].argmax(-1)
    return best * _PIECE + within


_LIKELIEST = 512
"""How many of the likeliest tokens are sorted to find the nucleus; all are if that does not hold it, and where looking
would mean to wait for the device."""


def _nucleus(probs: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of probs [..., V] in descending order, and which of them lie past the place where their running sum
    first reaches top_p. Both [..., n] with n large enough."""
    for n in (_LIKELIEST if probs.device.type == "cpu" else probs.shape[-1], probs.shape[-1]):
        if n <= probs.shape[-1]:
            descending = probs.topk(n, dim=-1).values
            # the first place where the running sum reaches top_p is still kept
            reached = descending.cumsum(-1) - descending >= top_p
            if n == probs.shape[-1] or bool(reached[..., -1].all()):
                break
    return descending, reached


def draws(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """From each of the rows probs [N, V] the token [N] at which their running sum first exceeds the uniform [N] times
    their total (inverse CDF). A token of probability 0 is never drawn: a uniform below 1 times the total is below the
    total in float64. probs need not be normalised, but no row may be all 0. A row with NaN gives its last token: the
    loop sees such a row by its logits, and until then nothing may be read past the end of a table."""
    running = probs.cumsum(-1)
    found = torch.searchsorted(running, uniforms[:, None] * running[:, -1:], right=True)[:, 0]
    return found.clamp_(max=probs.shape[-1] - 1)


def draw(probs: torch.Tensor, u: float) -> int:
    """`draws` of one row [V]."""
    running = probs.cumsum(-1)
    return min(int(torch.searchsorted(running, u * running[-1:], right=True)), len(probs) - 1)


def accepts(p, q, u):
    """The accept rule for drafted tokens, numbers or tensors of them: with probability min(1, p/q), decided by u in
    [0, 1)."""
    return u * q < p


def leftover(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """norm(max(0, p - q)) of [..., V] and [..., V]: what the target draws from after a rejection. Where p = q up to
    rounding nothing is left and a rejection cannot happen; p itself is returned then."""
    rest = (target_probs - draft_probs).clamp_(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest.div_(total), target_probs)


@dataclass(frozen=True)
class Judgement:
    """The verdict on one row's drafts."""

    accepted: int
    bonus_token: int
    kind: str
    """leftover: drawn after a rejection; all_accepted: drawn from p past the last draft."""


def judge(
    target_probs: Rows,
    draft_probs: Rows,
    draft_tokens: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniform: float,
) -> Judgement:
    """`judge_rows` of one row. target_probs [K + 1, V], draft_probs [K, V]; draft_tokens and accept_uniforms [K]."""
    device, k = target_probs.device, len(draft_tokens)
    accepted, bonus = read(
        *judge_rows(target_probs, [0], draft_probs, onto(draft_tokens, device), [k], accept_uniforms, [bonus_uniform])
    )
    return Judgement(accepted[0], bonus[0], "leftover" if accepted[0] < k else "all_accepted")


def judge_rows(
    target_probs: Rows,
    starts: Sequence[int],
    draft_probs: Rows,
    draft_tokens: torch.Tensor,
    counts: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniforms: Sequence[float],
) -> tuple[torch.Tensor | list[int], torch.Tensor | list[int]]:
    """Judge the K_r drafts of each of R rows in order, and draw each row's bonus token; never waits for the device.

    target_probs [M, V]: those of row r from starts[r] on, K_r + 1 of them; draft_probs [N, V], draft_tokens and
    accept_uniforms [N]: counts[r] = K_r of them for one row after the other; bonus_uniforms [R]. A row's first
    rejection stops its chain: the token there is drawn from the leftover and later drafts do not count. Returns how
    many drafts were accepted [R], and the bonus tokens [R], for `transfer.read`.
    """
    if isinstance(target_probs, Made):
        return _row_by_row(target_probs, starts, draft_probs, draft_tokens, counts, accept_uniforms, bonus_uniforms)
    device = target_probs.device
    begin = onto(starts, device)
    accepted = torch.zeros_like(begin)
    if any(counts):
        drafted = places([start + slot for start, k in zip(starts, counts) for slot in range(k)], device)
        kept = accepts(
            chosen(target_probs[drafted], draft_tokens),
            chosen(draft_probs, draft_tokens),
            onto(accept_uniforms, device, torch.float64),
        )
        accepted = _leading(kept, counts)
    p = target_probs[begin + accepted]
    if isinstance(p, OneHot):  # a draft that was rejected is another token: all of p is left over
        return accepted, p.tokens
    if any(counts):
        rejected = accepted < onto(counts, device)
        first = onto(starts_of(counts), device)
        # past the last draft any q will do: it counts nothing
        q = whole(draft_probs[(first + accepted).clamp_(max=len(draft_tokens) - 1)])
        p = leftover(p, q * rejected[:, None])
    return accepted, draws(p, onto(bonus_uniforms, device, torch.float64))


def _row_by_row(
    target_probs: Made,
    starts: Sequence[int],
    draft_probs: Rows,
    draft_tokens: torch.Tensor,
    counts: Sequence[int],
    accept_uniforms: Sequence[float],
    bonus_uniforms: Sequence[float],
) -> tuple[list[int], list[int]]:
    """The same on a processor, where p is made no further than each row's first rejection."""
    accepted, bonus, first = [], [], 0
    if any(counts):
        qs, tokens = chosen(draft_probs, draft_tokens).tolist(), draft_tokens.tolist()
    for start, k, u in zip(starts, counts, bonus_uniforms):
        slot = 0
        while slot < k and accepts(
            float(target_probs.row(start + slot)[tokens[first + slot]]), qs[first + slot], accept_uniforms[first + slot]
        ):
            slot += 1
        p = target_probs.row(start + slot)
        if slot < k:
            p = leftover(p, whole(draft_probs[first + slot : first + slot + 1])[0])
        accepted.append(slot)
        bonus.append(draw(p, u))
        first += k
    return accepted, bonus


def _leading(kept: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """kept [N] of rows with so many drafts each -> how many are kept before each row's first that is not [R]."""
    most = max(counts)
    if len(set(counts)) > 1:
        ends = list(accumulate(counts))
        grid = [end - k + slot if slot < k else ends[-1] for end, k in zip(ends, counts) for slot in range(most)]
        kept = torch.cat([kept, kept.new_zeros(1)])[onto(grid, kept.device)]
    return kept.view(len(counts), most).long().cumprod(-1).sum(-1)
