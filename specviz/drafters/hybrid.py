"""The hybrid drafter (after DSpark, arXiv 2607.05147): a parallel pass, then a small serial pass that mends it.

The first stage is the parallel drafter's block pass. The second walks the slots from left to right: from the second
on, each slot's state is mended with the two tokens just before it, and its token is drawn from the mended logits, so
q is the exact distribution that the token came from. A confidence per slot estimates the chance that the draft
survives, given that all before it did. Knows no training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch

from specviz.drafters.base import Proposal, Request
from specviz.drafters.parallel import BlockNet, ParallelDrafter, split
from specviz.errors import PairError
from specviz.models.causal import CausalModel
from specviz.trace import Cost, Settings


class HybridDrafter(ParallelDrafter):
    """A parallel drafter with a serial head. q follows the run's temperature, top-k and top-p."""

    name = "hybrid"
    parallel = False

    def __init__(self, net: BlockNet, target: CausalModel, settings: Settings):
        """Raises PairError if the net has no serial head or does not fit the target."""
        if not net.config.serial:
            raise PairError("This drafter's weights have no serial head: use it as the parallel drafter.")
        super().__init__(net, target, settings)
        self.label = (f"hybrid: {net.config.layers} layers draft a block at once, then a small head mends it from left "
                      "to right")
        self._before: dict[int, int] = {}
        """The token before each row's anchor."""
        self._anchor: dict[int, int] = {}

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        super().start(row, prompt, taps, capacity)
        self._anchor[row] = prompt[-1]
        self._before[row] = prompt[-2] if len(prompt) > 1 else prompt[-1]

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        counts = [min(r.k, self.max_k) for r in requests]
        lean, serial, vocabulary = self.lean, self.lean.serial, self.vocabulary
        states = self._hidden(requests, counts)
        logits = lean.head(states)  # [sum K, Vd]: what the parallel pass alone would say
        first_guess, _ = vocabulary.likeliest(logits)
        prepared = serial.prepare(states)
        starts = [end - n for end, n in zip(accumulate(counts), counts)]
        # A row's text: the token before its anchor, the anchor, its drafts.
        texts = [[self._before[r.row], r.anchor] for r in requests]
        q = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        for slot in range(max(counts)):
            going = [i for i, n in enumerate(counts) if slot < n]
            at = [starts[i] + slot for i in going]
            if slot:  # the first slot knows its neighbour, the anchor, already
                states[at] = mended = serial.mend(prepared[at], [texts[i][-1] for i in going],
                                                  [texts[i][-2] for i in going])
                logits[at] = lean.head(mended)
            chosen, q[at] = vocabulary.choose(logits[at], self.settings, [requests[i].uniforms[slot] for i in going])
            for i, token in zip(going, chosen):
                texts[i].append(token)
        slots = torch.tensor([slot for n in counts for slot in range(n)], device=logits.device)
        sure = serial.confidence(states, [t for text in texts for t in text[1:-1]], logits, slots)
        return self._proposal(
            requests, counts, [t for text in texts for t in text[2:]], q, logits,
            confidence=split(sure, counts), first_guess=split(first_guess, counts),
        )

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """The block pass, and the serial head with one more pass over the draft vocabulary's head per slot."""
        block = super()._cost(requests, counts)
        serial, head = sum(p.numel() for p in self.net.serial.parameters()), math.prod(self.lean.head.shape)
        read = round(self.lean.weight_bytes * serial + self.lean.head.weight_bytes * head)
        return Cost(block.flops + 2 * (serial + head) * sum(counts), block.bytes + read * max(counts))

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        super().commit(row, emitted, taps)
        self._before[row] = emitted[-2] if len(emitted) > 1 else self._anchor[row]
        self._anchor[row] = emitted[-1]

    def drop(self, row: int) -> None:
        super().drop(row)
        del self._before[row], self._anchor[row]
