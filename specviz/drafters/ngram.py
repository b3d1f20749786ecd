"""Prompt lookup: the drafts are what followed the last time the text's ending occurred. No model.

Saxena 2023 (prompt lookup decoding). The proposal is a function of the text alone, so q is one-hot and a
draft is accepted with probability p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import Proposal, Request
from specviz.trace import MAX_K, Cost


class NgramDrafter:
    """Looks up the longest ending of up to `longest` tokens (at least `shortest`) earlier in the text."""

    name = "ngram"
    label = "n-gram lookup: copies what followed the same words earlier in the text; no model, q is one-hot"
    taps = ()
    max_k = MAX_K
    parallel = True

    def __init__(self, vocab_size: int, device: torch.device, longest: int = 4, shortest: int = 1):
        self.vocab_size, self.device = vocab_size, device
        self.longest, self.shortest = longest, shortest
        self._texts: dict[int, list[int]] = {}

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._texts[row] = list(prompt)

    def propose(self, requests: Sequence[Request]) -> Proposal:
        tokens = [self._lookup(self._texts[r.row], r.k) for r in requests]
        probs = [torch.zeros(len(t), self.vocab_size, dtype=torch.float64, device=self.device) for t in tokens]
        for found, q in zip(tokens, probs):
            q[range(len(found)), found] = 1.0
        return Proposal(tokens, probs, [None] * len(tokens), 0, Cost(0, 0))

    def _lookup(self, text: list[int], k: int) -> list[int]:
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            ending = text[-size:]
            for at in range(len(text) - size - 1, -1, -1):
                if text[at: at + size] == ending:
                    return text[at + size: at + size + k]
        return []

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._texts[row] += emitted

    def drop(self, row: int) -> None:
        del self._texts[row]
