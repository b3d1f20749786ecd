"""Prompt lookup (n-gram): copies what followed the last earlier occurrence of the text's final tokens. No model.

Saxena 2023 (prompt lookup decoding). The proposal is a function of the text alone, so q is one-hot and a
draft is accepted with probability p.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import Proposal, Request
from specviz.sampling.distributions import OneHotRows
from specviz.sampling.transfer import to_device
from specviz.trace.records import MAX_K, Cost


class NgramDrafter:
    """Looks up the longest ending of up to `longest` tokens (at least `shortest`) earlier in the text."""

    name = "ngram"
    label = "n-gram lookup: copies what followed the same words earlier in the text; no model, q is one-hot"
    taps: tuple[int, ...] = ()
    max_k = MAX_K
    parallel = True

    def __init__(self, vocab_size: int, device: torch.device, longest: int = 4, shortest: int = 1):
        self.vocab_size, self.device = vocab_size, device
        self.longest, self.shortest = longest, shortest
        self._texts: dict[int, list[int]] = {}
        self._followed: dict[int, dict[tuple[int, ...], int]] = {}
        """For each row: n-gram -> the position in its text after the n-gram's last occurrence."""

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._texts[row], self._followed[row] = [], {}
        self.commit(row, prompt, None)

    def propose(self, requests: Sequence[Request]) -> Proposal:
        tokens = [self._lookup(r.row, r.k) for r in requests]
        probs = [OneHotRows(to_device(t, self.device), self.vocab_size) for t in tokens]
        return Proposal(tokens, probs, [None] * len(tokens), 0, Cost(0, 0))

    def _lookup(self, row: int, k: int) -> list[int]:
        text, followed = self._texts[row], self._followed[row]
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            if (at := followed.get(tuple(text[-size:]))) is not None:
                return text[at : at + k]
        return []

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        text, followed = self._texts[row], self._followed[row]
        for token in emitted:
            for size in range(self.shortest, min(self.longest, len(text)) + 1):
                followed[tuple(text[-size:])] = len(text)
            text.append(token)

    def drop(self, row: int) -> None:
        del self._texts[row], self._followed[row]
