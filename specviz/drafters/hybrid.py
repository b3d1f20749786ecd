"""The hybrid drafter (after DSpark, arXiv 2607.05147): a parallel pass, then a small serial pass that mends it.

The first stage is the parallel drafter's block pass. The second walks the slots from left to right: from the second
on, each slot's state is mended with the two tokens just before it, and its token is drawn from the mended logits, so
q is the exact distribution that the token came from. A confidence per slot estimates the chance that the draft
survives, given that all before it did. Knows no training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from specviz.drafters.base import Proposal, Request
from specviz.drafters.parallel import BlockNet, ParallelDrafter
from specviz.errors import PairError
from specviz.models.causal import CausalModel
from specviz.sampling import draw, warp
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
        hidden = self._hidden(requests, counts)
        guesses = functional.linear(hidden, self.head).argmax(-1)  # what the parallel pass alone would propose
        first = [self.net.draft_ids[g].tolist() for g in guesses.split(counts)]
        states = hidden.split(counts)
        serial, s = self.net.serial, self.settings
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[torch.Tensor]] = [[] for _ in requests]
        raw: list[list[torch.Tensor]] = [[] for _ in requests]
        confidence: list[list[float]] = [[] for _ in requests]
        for slot in range(max(counts)):
            going = [i for i, n in enumerate(counts) if slot < n]
            history = [[self._before[requests[i].row], requests[i].anchor, *tokens[i]] for i in going]
            previous = self.target.embedding[[h[-1] for h in history]].float()
            before = self.target.embedding[[h[-2] for h in history]].float()
            mended = torch.stack([states[i][slot] for i in going])
            if slot:  # the first slot knows its neighbour, the anchor, already
                mended = serial(mended, previous, before)
            logits = functional.linear(mended, self.head)
            log_peak = logits.amax(-1) - logits.logsumexp(-1)
            sure = torch.sigmoid(serial.confidence_logits(mended, previous, log_peak) / serial.temperatures[slot])
            full = self._scatter(logits)
            if s.temperature > 0:
                q = warp(full, s.temperature, s.top_k, s.top_p)
                chosen = [draw(row, requests[i].uniforms[slot]) for i, row in zip(going, q)]
            else:
                q, chosen = self._likeliest(logits)
            for i, token, row_q, row_raw, c in zip(going, chosen, q, full, sure.tolist()):
                tokens[i].append(token)
                probs[i].append(row_q)
                raw[i].append(row_raw)
                confidence[i].append(c)
        return Proposal(tokens, [torch.stack(p) for p in probs], [torch.stack(x) for x in raw], sum(counts),
                        self._cost(requests, counts), confidence, first)

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """The block pass, and the serial head with one more pass over the draft vocabulary's head per slot."""
        block = super()._cost(requests, counts)
        serial = sum(p.numel() for p in self.net.serial.parameters()) + self.head.numel()
        return Cost(block.flops + 2 * serial * sum(counts), block.bytes + 4 * serial * max(counts))

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        super().commit(row, emitted, taps)
        self._before[row] = emitted[-2] if len(emitted) > 1 else self._anchor[row]
        self._anchor[row] = emitted[-1]

    def drop(self, row: int) -> None:
        super().drop(row)
        del self._before[row], self._anchor[row]
