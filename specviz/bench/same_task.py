"""Comparison of a program's texts with our plain decoding: equal up to near ties, or the first departure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specviz.checks.lossless import NEAR_TIE
from specviz.models.causal import CausalModel

Texts = Mapping[int, Sequence[Sequence[int]]]
"""Emitted token ids by group of prompts, of each prompt in it."""
UNKNOWN_ROUNDING = 0.5
"""The near tie, in logits, of programs that round in their own way, such as llama.cpp."""


@dataclass(frozen=True)
class Departure:
    """The first token of a text that is clearly not the most probable one."""

    prompt: int
    """Which group of prompts, from 0."""
    token: int
    """Which new token, from 0."""
    gap: float | None
    """By how much the token's logit lies below the largest; None: one of the texts ended there."""

    def __str__(self) -> str:
        how = "ends elsewhere" if self.gap is None else f"takes a token {self.gap:.2g} below the likeliest"
        return f"at token {self.token + 1} of prompt {self.prompt + 1} it {how}"


def departure(
    model: CausalModel, groups: Sequence[Sequence[Sequence[int]]], plain: Texts, other: Texts, precision: str
) -> Departure | None:
    """The first place where a program's texts part from plain greedy decoding by more than rounding; None if nowhere.

    groups: the prompts, by group; plain: our texts, decoded by `model`; precision: the program's.
    """
    tie = NEAR_TIE.get(precision, UNKNOWN_ROUNDING)
    for index in sorted(plain.keys() & other.keys()):
        for prompt, ours, theirs in zip(groups[index], plain[index], other[index]):
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            if at == len(ours) == len(theirs):
                continue
            if at in (len(ours), len(theirs)):  # both decode to the same length, unless a text ends
                return Departure(index, at, None)
            gap = _gap(model, [*prompt, *ours[:at]], theirs[at])
            if gap > tie:
                return Departure(index, at, gap)
    return None


def _gap(model: CausalModel, tokens: Sequence[int], token: int) -> float:
    """By how much the logit of `token` after these tokens lies below the largest."""
    cache = model.new_cache()
    cache.add(0, len(tokens))
    logits = model.forward(cache, [0], [list(tokens)], logits=[1]).logits[0][0]
    return float(logits.max() - logits[token]) if 0 <= token < len(logits) else float("inf")
