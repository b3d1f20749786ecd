"""The hybrid drafter (after DSpark, arXiv 2607.05147): a parallel pass, then a small serial pass that refines it.

The first stage is the parallel drafter's block pass. The second stage goes through the slots from left to right: from
the second on, each slot's state is refined with the two tokens just before it, and its token is drawn from the refined
logits, so q is the exact distribution that the token came from. A confidence per slot estimates the chance that the
draft survives, given that all before it did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from specviz.drafters.base import Request
from specviz.drafters.block_net import BlockNet
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.parallel import ParallelDrafter
from specviz.drafters.slots import BlockOutput, Drafted, slot_numbers, slots_at
from specviz.errors import PairError
from specviz.models.causal import CausalModel
from specviz.trace.records import Cost, Settings


def refine_slots(
    fused: FusedBlock,
    vocabulary: DraftVocabulary,
    settings: Settings,
    block: BlockOutput,
) -> Drafted:
    """As `choose_slots`, but from the second slot on each state is first refined with the two tokens before it;
    the block's states and logits are overwritten with the result."""
    serial = fused.serial
    if serial is None:
        raise ValueError("this drafter has no serial head")
    states, logits, counts = block.states, block.logits, block.counts
    first_guess = vocabulary.likeliest(logits)
    prepared = serial.prepare(states)
    before, last = (block.texts[:, i].clone() for i in (0, 1))
    tokens, previous = first_guess.clone(), first_guess.clone()
    drawn_from = None if settings.temperature == 0 else logits.double()
    for slot in range(max(counts)):
        here, rows = slots_at(slot, counts, states.device)
        if slot:  # the first slot was computed from its neighbour, the anchor
            states[here], logits[here] = fused.refine(prepared[here], last[rows], before[rows])
        chosen, of_slot = vocabulary.choose(logits[here], settings, block.uniforms[here])
        if drawn_from is not None and of_slot is not None:
            drawn_from[here] = of_slot
        tokens[here], previous[here] = chosen, last[rows]
        before[rows] = last[rows]
        last[rows] = chosen
    confidence = serial.confidence(states, previous, logits, slot_numbers(counts, states.device))
    return Drafted(tokens, logits, drawn_from, confidence, first_guess)


class HybridDrafter(ParallelDrafter):
    """A parallel drafter with a serial head. q follows the run's temperature, top-k and top-p."""

    name = "hybrid"
    parallel = False
    _choose = staticmethod(refine_slots)

    def __init__(self, net: BlockNet, target: CausalModel, settings: Settings):
        """Raises PairError if the net has no serial head or does not fit the target."""
        if not net.config.serial:
            raise PairError("This drafter's weights have no serial head: use it as the parallel drafter.")
        super().__init__(net, target, settings, sampled=True)
        self.label = (
            f"hybrid: {net.config.layers} layers draft a block at once, then a small head refines it from left to right"
        )
        self._before: dict[int, int] = {}
        """The token before each row's anchor."""
        self._anchor: dict[int, int] = {}

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        super().start(row, prompt, taps, capacity)
        self._anchor[row] = prompt[-1]
        self._before[row] = prompt[-2] if len(prompt) > 1 else prompt[-1]

    def _texts(self, requests: Sequence[Request]) -> list[list[int]]:
        return [[self._before[r.row], r.anchor] for r in requests]

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """The block pass, and the serial head with one more pass over the draft vocabulary's head per slot."""
        block = super()._cost(requests, counts)
        serial, head = sum(p.numel() for p in self.net.serial.parameters()), math.prod(self.fused.head.shape)
        read = round(self.fused.weight_bytes * serial + self.fused.head.weight_bytes * head)
        return Cost(block.flops + 2 * (serial + head) * sum(counts), block.bytes + read * max(counts))

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        super().commit(row, emitted, taps)
        self._before[row] = emitted[-2] if len(emitted) > 1 else self._anchor[row]
        self._anchor[row] = emitted[-1]

    def drop(self, row: int) -> None:
        super().drop(row)
        del self._before[row], self._anchor[row]
