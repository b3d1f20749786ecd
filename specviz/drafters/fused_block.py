"""The block drafter's forward pass for drafting: fused operators or one call of kernels.c, a third of BlockNet's time.

Used for drafting; training uses BlockNet itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from specviz.drafters.block_net import BlockNet
from specviz.drafters.block_weights import BlockWeights, SerialWeights
from specviz.drafters.native_block import NativeBlock, NativeSerial
from specviz.drafters.slots import BlockInputs
from specviz.models.attention import Attend, PackedAttention, apply_rope
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel
from specviz.models.fused import norm
from specviz.sampling.transfer import to_device


class FusedBlock:
    """The forward passes of a BlockNet. Stateless, shared by the runs; caches belong to a run."""

    def __init__(self, net: BlockNet, target: CausalModel):
        weights = self.weights = BlockWeights(net, target)
        self.config, self.eps, self.head = weights.config, weights.config.rms_eps, weights.head
        self.shape, self.weight_bytes = weights.shape, weights.weight_bytes
        self.serial = None if weights.serial is None else FusedSerial(weights.serial, weights.embedding)
        self._native = NativeBlock(weights) if weights.packed else None
        self._native_serial = NativeSerial(weights) if weights.packed and self.serial else None

    def new_cache(self) -> RaggedCache:
        """An empty cache for the keys and values of one run's contexts."""
        return RaggedCache(self.config.layers, self.weights.masks.device, torch.float32)

    def draft(self, cache: RaggedCache, inputs: BlockInputs) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """One round: append the rows' new context tokens, given by their taps, then run a block of counts[r] slots for
        each. Returns final-normed states [sum of counts, D], logits [sum of counts, Vd], and the state [D] of each
        row's last context token."""
        if self._native is not None:
            return self._native.draft(cache, inputs)
        last = dict(zip(inputs.rows, inputs.last_states))
        if new := {row: taps for row, taps in zip(inputs.rows, inputs.taps) if taps is not None}:
            last |= zip(new, self.add_context(cache, list(new), list(new.values())))
        anchors = to_device(inputs.anchors, self.weights.masks.device)
        states = self.states(cache, inputs.rows, anchors, torch.stack(list(last.values())), inputs.counts)
        return states, self.head(states), list(last.values())

    def add_context(self, cache: RaggedCache, rows: Sequence[int], taps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Write the keys and values of context tokens, given by their taps [n_r, len(taps) * D], to the rows' cache.
        Returns the state [D] of each row's last token."""
        counts = [len(t) for t in taps]
        plan = cache.plan(list(rows), counts)
        states, keys, values = self.context_of(torch.cat(list(taps)), plan.position_of, plan.longest)
        for layer in range(self.config.layers):
            cache.write(plan, layer, keys[layer], values[layer])
        return [of_row[-1] for of_row in states.split(counts)]

    def context_of(
        self, taps: torch.Tensor, positions: torch.Tensor, longest: int
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Context tokens with taps [N, len(taps) * D] at positions [N], none beyond `longest`: their states [N, D],
        and for each layer keys and values [N, kv_heads, d]."""
        c, weights = self.config, self.weights
        parts = taps.float().view(-1, len(c.taps), c.hidden_size)
        states = norm(weights.fuse(norm(parts, None, self.eps).flatten(1)), weights.fuse_gain, self.eps)
        cos, sin = weights.rotary.rows(positions, longest)
        kv = weights.context(norm(states, None, self.eps)).view(len(states), c.layers, 2, c.kv_heads, c.head_dim)
        keys = [apply_rope(kv[:, layer, 0], cos, sin) for layer in range(c.layers)]
        return states, keys, [kv[:, layer, 1] for layer in range(c.layers)]

    def states(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        anchors: torch.Tensor,
        last_states: torch.Tensor,
        counts: Sequence[int],
    ) -> torch.Tensor:
        """The block pass over rows with counts[r] slots: final-normed states [sum of counts, D]. anchors [rows];
        last_states [rows, D]. The cache's lengths stay as they were."""
        before = [cache.lengths[row] for row in rows]
        plan = cache.plan(list(rows), list(counts), causal=False)
        x = self.block(anchors, last_states, counts, plan.position_of, plan.longest, PackedAttention(plan))
        for row, length in zip(rows, before):
            cache.truncate(row, length)
        return x

    def block(
        self,
        anchors: torch.Tensor,
        last_states: torch.Tensor,
        counts: Sequence[int],
        positions: torch.Tensor,
        longest: int,
        attend: Attend,
    ) -> torch.Tensor:
        """`states` of slots at positions [sum of counts], none beyond `longest`."""
        weights, most = self.weights, max(counts)
        condition = torch.cat([_embedded(weights.embedding, anchors, self.eps), last_states], -1)
        first, later = (part[:, None] for part in weights.inputs(condition).split(self.config.hidden_size, -1))
        x = (torch.cat([first, later.expand(-1, most - 1, -1)], 1) + weights.masks[:most]).flatten(0, 1)
        if len(set(counts)) > 1:
            x = x[to_device([most * row + slot for row, n in enumerate(counts) for slot in range(n)], x.device)]
        x, _ = weights.layers(x, attend, *weights.rotary.rows(positions, longest))
        return norm(x, weights.gain, self.eps)

    def refine(
        self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The serial head on N slots: refined, normed states [N, D] and their logits [N, Vd], from `serial.prepare`'s
        result [N, D + inner] and the two tokens [N] before each slot."""
        if self._native_serial is not None:
            return self._native_serial.refine(prepared, previous, before)
        if self.serial is None:
            raise ValueError("this drafter has no serial head")
        states = self.serial.refine(prepared, previous, before)
        return states, self.head(states)


class FusedSerial:
    """SerialHead in two parts: the part that depends on the states alone is computed for all slots at once."""

    def __init__(self, weights: SerialWeights, embedding: torch.Tensor):
        """embedding [V, D]: the target's."""
        self._weights, self._embedding = weights, embedding

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        """The states' part [N, D + inner] of `refine`, from final-normed states [N, D]."""
        return self._weights.from_state(norm(states, None, self._weights.eps)) + self._weights.bias

    def refine(self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Refined, normed states [N, D] from `prepare`'s result and the two tokens [N] before each slot."""
        weights = self._weights
        tokens = _embedded(self._embedding, torch.stack([previous, before], 1), weights.eps)
        sums = prepared + weights.from_tokens(tokens.flatten(1))
        size = len(weights.gain)
        state, inner = sums[:, :size], sums[:, size:]
        return norm(state + weights.outer(functional.silu(inner)), weights.gain, weights.eps)

    def confidence(
        self, refined: torch.Tensor, previous: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """P(draft survives | all before it did) of N slots, from their refined states [N, D], the tokens just before
        them [N], their logits [N, Vd] and their numbers within the block [N]."""
        weights = self._weights
        log_peak = logits.amax(-1) - logits.logsumexp(-1)
        embedded = _embedded(self._embedding, previous, weights.eps)
        parts = torch.cat([norm(refined, None, weights.eps), embedded, log_peak[:, None]], -1)
        return torch.sigmoid((parts @ weights.confidence + weights.confidence_bias) / weights.temperatures[slots])


def _embedded(embedding: torch.Tensor, tokens: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS-normed embeddings [..., D] of tokens [...]."""
    return norm(embedding[tokens].float(), None, eps)
