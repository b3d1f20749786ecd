"""Prompt lookup with another drafter behind it: what the text says again is copied, the rest is drafted.

The two complement each other: a lookup costs nothing and is right for long where a text repeats itself, and has nothing
to say where it does not (compare SuffixDecoding, arXiv 2411.04975, which pairs a lookup with a draft model).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.drafters.base import Drafter, Proposal, Request
from specviz.drafters.ngram import NgramDrafter
from specviz.trace.records import Cost


class LookupFirst:
    """Rows whose ending of two tokens or more occurred earlier copy what followed; the others ask `behind`.

    Which of the two a row gets depends on its text alone. Confidences are not passed on: what is copied has none.
    """

    def __init__(self, behind: Drafter, vocab_size: int, device: torch.device):
        self.name = f"lookup+{behind.name}"
        self.label = f"n-gram lookup where the text's last words occurred before, otherwise {behind.label}"
        self.taps, self.max_k, self.parallel = behind.taps, behind.max_k, behind.parallel
        self.graphs = getattr(behind, "graphs", None)
        self._behind, self._lookup = behind, NgramDrafter(vocab_size, device, shortest=2)

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._lookup.start(row, prompt, None, capacity)
        self._behind.start(row, prompt, taps, capacity)

    def propose(self, requests: Sequence[Request]) -> Proposal:
        copied = self._lookup.propose(requests)
        asking = [i for i, tokens in enumerate(copied.tokens) if not tokens]
        tokens, probs, logits = (list(part) for part in (copied.tokens, copied.draft_probs, copied.draft_logits))
        if not asking:
            return Proposal(tokens, probs, logits, 0, Cost(0, 0))
        drafted = self._behind.propose([requests[i] for i in asking])
        for at, i in enumerate(asking):
            tokens[i], probs[i], logits[i] = drafted.tokens[at], drafted.draft_probs[at], drafted.draft_logits[at]
        return Proposal(tokens, probs, logits, drafted.draft_tokens, drafted.cost)

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._lookup.commit(row, emitted, None)
        self._behind.commit(row, emitted, taps)

    def drop(self, row: int) -> None:
        self._lookup.drop(row)
        self._behind.drop(row)
