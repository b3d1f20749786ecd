"""The block net written out with few operators: the same weights and arithmetic as BlockNet, a third of the time.

Matrices with one input are one product, and keys and values of the context are made for all layers at once. Weights are
rounded to 4 bits where there is a kernel for them (specviz/kernels/packed.py), the head excepted; otherwise they are in
bfloat16 where that is faster. What is drafted is drawn from the distributions of exactly these products. Used for
drafting; training and the checks of this file use BlockNet itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from specviz.drafters.block_graphs import block_graphs_of
from specviz.drafters.native_block import NativeBlock, NativeSerial
from specviz.hardware.costs import ModelShape
from specviz.kernels.packed import PackedLinear, fits
from specviz.models.attention import Attend, PackedAttention, turn
from specviz.models.cache import RaggedCache
from specviz.models.causal import CausalModel
from specviz.models.fused import Block, Blocks, Turns, norm
from specviz.models.linear import SMALL_BYTES, choose
from specviz.models.native_layers import NativeLayers
from specviz.models.weight_storage import Product
from specviz.sampling.transfer import onto


class LeanBlock:
    """Over the weights of a BlockNet and its target's embedding and head. Shared by the runs; holds no state."""

    def __init__(self, net: nn.Module, target: CausalModel):
        """net: a BlockNet."""
        c = self.config = net.config
        self.eps = c.rms_eps
        matrices = [p for p in net.parameters() if p.ndim == 2]
        size = sum(p.nbytes for p in matrices)
        form = choose(matrices, size, (torch.bfloat16,), rows=(1, 8))
        in_4_bits = size >= SMALL_BYTES and c.head_dim % 64 == 0 and all(fits(p, 4) for p in matrices if p.shape[0] > 1)
        product = partial(PackedLinear, bits=4, nearest=True) if in_4_bits else form.linear
        self.embedding = target.embedding
        head = target.head[net.draft_ids].float()
        self.head = PackedLinear(head, 8, nearest=True) if in_4_bits else form.linear(head)
        self.fuse, self.fuse_gain = product(net.fuse.weight), net.fuse_norm.weight
        self.inputs = product(torch.cat([net.anchor_in.weight, net.mask_in.weight]))
        self.masks, self.gain = net.masks, net.norm.weight
        norms = [(layer.input_norm.weight, layer.post_norm.weight) for layer in net.layers]
        weights = [
            (
                torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight]),
                layer.o_proj.weight,
                torch.cat([layer.gate_proj.weight, layer.up_proj.weight]),
                layer.down_proj.weight,
            )
            for layer in net.layers
        ]
        if in_4_bits:
            self.layers = NativeLayers(norms, weights, self.eps, c.kv_heads, c.head_dim, 4, nearest=True)
        else:
            blocks = [Block(gains, map(product, of), self.eps) for gains, of in zip(norms, weights)]
            self.layers = Blocks(blocks, c.kv_heads, c.head_dim)
        self.weight_bytes: float = self.layers.products[0].weight_bytes
        self.context = product(
            torch.cat(
                [
                    torch.cat([layer.k_proj.weight, layer.v_proj.weight]) * layer.input_norm.weight
                    for layer in net.layers
                ]
            )
        )
        self.serial = LeanSerial(net.serial, product, target.embedding) if c.serial else None
        extra = net.anchor_in.weight.numel() + net.mask_in.weight.numel() + net.masks.numel()
        self.shape = ModelShape(
            "block drafter",
            c.layers,
            c.hidden_size,
            c.heads,
            c.kv_heads,
            c.head_dim,
            c.ffn,
            len(net.draft_ids),
            weight_bytes=self.weight_bytes,
            head_bytes=self.head.weight_bytes,
            small_weights=extra,
        )
        """What `costs` counts a block pass as: its layers, and a head of the draft vocabulary."""
        self._native = NativeBlock(self) if in_4_bits else None
        self._native_serial = NativeSerial(self) if in_4_bits and c.serial else None
        self.graphs = block_graphs_of(self, target)
        """CUDA graphs of its passes, on a CUDA GPU only."""
        self.turns = Turns(lambda positions: tuple(torch.cat([t, t], -1) for t in net.rope(positions)))

    def new_cache(self) -> RaggedCache:
        """Keys and values of one run's contexts."""
        if self.graphs is not None:
            return self.graphs.new_cache()
        return RaggedCache(self.config.layers, self.masks.device, torch.float32)

    def draft(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        taps: Sequence[torch.Tensor | None],
        last_states: Sequence[torch.Tensor],
        anchors: Sequence[int],
        counts: Sequence[int],
    ) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """Append the rows' new context tokens, given by their taps [n_r, len(taps) * D] or None, and pass blocks of
        their own numbers of slots: final-normed states [sum of counts, D], logits [sum of counts, Vd], and the state
        [D] of each row's last context token, which was last_states[r] before."""
        if self._native is not None:
            return self._native.draft(cache, rows, taps, last_states, anchors, counts)
        last = dict(zip(rows, last_states))
        if fresh := [(row, t) for row, t in zip(rows, taps) if t is not None]:
            new, given = zip(*fresh)
            last |= zip(new, self.absorb(cache, new, given))
        states = self.states(cache, rows, onto(anchors, self.masks.device), torch.stack(list(last.values())), counts)
        return states, self.head(states), list(last.values())

    def absorb(self, cache: RaggedCache, rows: Sequence[int], taps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Append context tokens, given by their taps [n_r, len(taps) * D], to the rows in the cache.
        Returns the state [D] of each row's last one."""
        counts = [len(t) for t in taps]
        plan = cache.plan(list(rows), counts)
        states, keys, values = self.context_of(torch.cat(list(taps)), plan.position_of, plan.longest)
        for layer in range(self.config.layers):
            cache.write(plan, layer, keys[layer], values[layer])
        return [of_row[-1] for of_row in states.split(counts)]

    def context_of(
        self, taps: torch.Tensor, positions: torch.Tensor, longest: int
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """Of context tokens with taps [N, len(taps) * D] at positions [N], none beyond `longest`: states [N, D], and
        for each layer keys and values [N, kv_heads, d]."""
        c = self.config
        parts = taps.float().view(-1, len(c.taps), c.hidden_size)
        states = norm(self.fuse(norm(parts, None, self.eps).flatten(1)), self.fuse_gain, self.eps)
        cos, sin = self.turns.rows(positions, longest)
        both = self.context(norm(states, None, self.eps)).view(len(states), c.layers, 2, c.kv_heads, c.head_dim)
        keys = [turn(both[:, layer, 0], cos, sin) for layer in range(c.layers)]
        return states, keys, [both[:, layer, 1] for layer in range(c.layers)]

    def states(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        anchors: torch.Tensor,
        last_states: torch.Tensor,
        counts: Sequence[int],
    ) -> torch.Tensor:
        """The block pass over rows with their own numbers of slots: final-normed states [sum of counts, D].
        anchors [rows]; last_states [rows, D]. The cache is left as it was."""
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
        most = max(counts)
        both = torch.cat([_embedded(self.embedding, anchors, self.eps), last_states], -1)
        first, later = (part[:, None] for part in self.inputs(both).split(self.config.hidden_size, -1))
        x = (torch.cat([first, later.expand(-1, most - 1, -1)], 1) + self.masks[:most]).flatten(0, 1)
        if len(set(counts)) > 1:
            x = x[onto([most * row + slot for row, n in enumerate(counts) for slot in range(n)], x.device)]
        x, _ = self.layers(x, attend, *self.turns.rows(positions, longest))
        return norm(x, self.gain, self.eps)

    def mend(
        self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The serial head on N slots: mended, normed states [N, D] and their logits [N, Vd], from their parts by
        `serial.prepare` and the two tokens [N] just before each slot."""
        if self._native_serial is not None:
            return self._native_serial.mend(prepared, previous, before)
        states = self.serial.mend(prepared, previous, before)
        return states, self.head(states)


class LeanSerial:
    """SerialHead in two parts: what depends on the states alone is done for all slots at once."""

    def __init__(self, serial: nn.Module, product: Callable[[torch.Tensor], Product], embedding: torch.Tensor):
        """serial: a SerialHead; product: makes one of a weight; embedding [V, D]: the target's."""
        size = serial.state.weight.shape[0]
        self.size, self.eps, self.embedding = size, serial.norm.eps, embedding
        inner = serial.inner.weight
        self.of_state = product(torch.cat([serial.state.weight, inner[:, 2 * size :]]))
        self.of_tokens = product(torch.cat([serial.direct.weight, inner[:, : 2 * size]]))
        self.bias = torch.cat([torch.zeros_like(serial.state.weight[:, 0]), serial.inner.bias])
        self.outer, self.gain = product(serial.outer.weight), serial.norm.weight
        self.sure, self.sure_bias = serial.confidence.weight[0], serial.confidence.bias
        self.temperatures = serial.temperatures

    def prepare(self, states: torch.Tensor) -> torch.Tensor:
        """The states' part [N, D + inner] of `mend`, of final-normed states [N, D]."""
        return self.of_state(norm(states, None, self.eps)) + self.bias

    def mend(self, prepared: torch.Tensor, previous: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Mended, normed states [N, D] from their parts by `prepare` and the two tokens [N] just before each slot."""
        tokens = _embedded(self.embedding, torch.stack([previous, before], 1), self.eps)
        together = prepared + self.of_tokens(tokens.flatten(1))
        mended, inner = together[:, : self.size], together[:, self.size :]
        return norm(mended + self.outer(functional.silu(inner)), self.gain, self.eps)

    def confidence(
        self, mended: torch.Tensor, previous: torch.Tensor, logits: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        """P(draft survives | all before it did) of N slots, from their mended states [N, D], the tokens just before
        them [N], their logits [N, Vd] and their numbers within the block [N]."""
        log_peak = logits.amax(-1) - logits.logsumexp(-1)
        embedded = _embedded(self.embedding, previous, self.eps)
        parts = torch.cat([norm(mended, None, self.eps), embedded, log_peak[:, None]], -1)
        return torch.sigmoid((parts @ self.sure + self.sure_bias) / self.temperatures[slots])


def _embedded(embedding: torch.Tensor, tokens: torch.Tensor, eps: float) -> torch.Tensor:
    """Normed embeddings [..., D] of tokens [...]."""
    return norm(embedding[tokens].float(), None, eps)
