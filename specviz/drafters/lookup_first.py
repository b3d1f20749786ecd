"""Prompt lookup with a fallback drafter: rows with a match copy what followed it, the others are drafted.

A lookup costs nothing and gives long correct drafts where a text repeats itself, and no drafts elsewhere (compare
SuffixDecoding, arXiv 2411.04975, which combines a lookup with a draft model).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import Drafter, Proposal, Request
from specviz.drafters.ngram import NgramDrafter
from specviz.trace.records import Cost


class LookupFirst:
    """Rows whose ending of two tokens or more occurred earlier copy what followed; the others use `fallback`.

    Which of the two a row gets depends on its text alone. Confidences are not passed on: copied drafts have none.
    """

    def __init__(self, fallback: Drafter, vocab_size: int, device: torch.device):
        self.name = f"lookup+{fallback.name}"
        self.label = f"n-gram lookup where the text's last words occurred before, otherwise {fallback.label}"
        self.taps, self.max_k, self.parallel = fallback.taps, fallback.max_k, fallback.parallel
        self.graphs = getattr(fallback, "graphs", None)
        self._fallback, self._lookup = fallback, NgramDrafter(vocab_size, device, shortest=2)

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._lookup.start(row, prompt, None, capacity)
        self._fallback.start(row, prompt, taps, capacity)

    def propose(self, requests: Sequence[Request]) -> Proposal:
        copied = self._lookup.propose(requests)
        drafted_rows = [i for i, tokens in enumerate(copied.tokens) if not tokens]
        tokens, probs, logits = list(copied.tokens), list(copied.draft_probs), list(copied.draft_logits)
        if not drafted_rows:
            return Proposal(tokens, probs, logits, 0, Cost(0, 0))
        drafted = self._fallback.propose([requests[i] for i in drafted_rows])
        for at, i in enumerate(drafted_rows):
            tokens[i], probs[i], logits[i] = drafted.tokens[at], drafted.draft_probs[at], drafted.draft_logits[at]
        return Proposal(tokens, probs, logits, drafted.draft_tokens, drafted.cost)

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._lookup.commit(row, emitted, None)
        self._fallback.commit(row, emitted, taps)

    def drop(self, row: int) -> None:
        self._lookup.drop(row)
        self._fallback.drop(row)
