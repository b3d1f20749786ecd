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
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from specviz.lazy import Rows

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


_LIKELIEST = 512
"""How many of the likeliest tokens are sorted to find the nucleus; all are if that does not hold it."""


def _nucleus(probs: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of probs [..., V] in descending order, and which of them lie past the place where their running sum
    first reaches top_p. Both [..., n] with n large enough."""
    for n in (_LIKELIEST, probs.shape[-1]):
        if n <= probs.shape[-1]:
            descending = probs.topk(n, dim=-1).values
            # the first place where the running sum reaches top_p is still kept
            reached = descending.cumsum(-1) - descending >= top_p
            if bool(reached[..., -1].all()):
                break
    return descending, reached


def draw(probs: torch.Tensor, u: float) -> int:
    """The token at which the running sum of probs [V] first exceeds u times their total (inverse CDF).
    A token of probability 0 is never drawn. probs need not be normalised, but must not be all 0."""
    running = probs.cumsum(-1)
    token = int(torch.searchsorted(running, u * running[-1:], right=True))
    if token >= len(probs):  # u * total rounded up to the total
        token = int(probs.nonzero()[-1])
    return token


def accepts(p: float, q: float, u: float) -> bool:
    """The accept rule for one drafted token: with probability min(1, p/q), decided by u in [0, 1)."""
    return u * q < p


def leftover(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
    """norm(max(0, p - q)) of [V] and [V]: what the target draws from after a rejection. Where p = q up to
    rounding nothing is left and a rejection cannot happen; p itself is returned then."""
    rest = (target_probs - draft_probs).clamp(min=0)
    total = rest.sum()
    return rest / total if total > 0 else target_probs


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
    """Judge K drafts in order and draw the bonus token.

    target_probs [K + 1, V], draft_probs [K, V], tensors or read like them; draft_tokens and accept_uniforms [K]. The
    first rejection stops the chain: the token there is drawn from the leftover and later drafts are never looked at.
    """
    for slot, token in enumerate(draft_tokens):
        p, q = float(target_probs[slot, token]), float(draft_probs[slot, token])
        if not accepts(p, q, accept_uniforms[slot]):
            rest = leftover(target_probs[slot], draft_probs[slot])
            return Judgement(slot, draw(rest, bonus_uniform), "leftover")
    return Judgement(len(draft_tokens), draw(target_probs[len(draft_tokens)], bonus_uniform), "all_accepted")
