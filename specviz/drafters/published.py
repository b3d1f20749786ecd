"""Drafting with published DFlash and DSpark drafters.

The network always processes a whole block as in training; K is only the number of slots whose logits are computed. So
the drafts of a slot do not depend on K, and the number of mask tokens is the same as in training. The cost counts the
whole block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from specviz.drafters.base import Proposal, Request
from specviz.drafters.published_net import PublishedNet
from specviz.hardware.costs import ModelShape, pass_cost
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import OneHotRows
from specviz.sampling.rejection import draws, warp
from specviz.sampling.transfer import index_of, to_device
from specviz.trace.records import MAX_K, Cost, Settings


class _RowContext:
    """Keys and values of one row's context, [layers, capacity, kv_heads, d] each."""

    def __init__(self, net: PublishedNet, capacity: int):
        c = net.config.backbone
        shape = (c.num_hidden_layers, capacity, net.config.kv_heads, c.head_dim)
        self.keys, self.values = torch.empty(2, *shape, dtype=net.fc.weight.dtype, device=net.fc.weight.device)
        self.length = 0


class PublishedDrafter:
    """DFlash: the likeliest token of every slot, q one-hot. DSpark: the serial head refines slot after slot,
    each token is drawn from the refined logits, and q is their distribution."""

    def __init__(self, net: PublishedNet, target: CausalModel, settings: Settings):
        c = net.config
        self.net, self.target, self.settings = net, target, settings
        self.taps, self.max_k = c.taps, min(c.max_k, MAX_K)
        self.name: str = c.kind
        self.parallel = c.kind == "parallel"
        layers = c.backbone.num_hidden_layers
        how = (
            "each slot's likeliest token, q is one-hot"
            if self.parallel
            else (f"then a {c.markov_kind} Markov head of rank {c.markov_rank} refines it from left to right")
        )
        family = "DFlash" if self.parallel else "DSpark"
        self.label = (
            f"{c.kind}: a published {family} drafter ({c.packaging} layout), {layers} layers draft a block "
            f"of {c.block} at once; {how}"
        )
        self._rows: dict[int, _RowContext] = {}

    @torch.inference_mode()
    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._rows[row] = _RowContext(self.net, capacity)
        self._append(row, taps)

    @torch.inference_mode()
    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        self._append(row, taps)

    def drop(self, row: int) -> None:
        del self._rows[row]

    def _append(self, row: int, taps: torch.Tensor | None) -> None:
        """Fuse the taps [n, taps * D] of new context tokens into the row's keys and values."""
        if taps is None or not len(taps):
            return
        at, states = self._rows[row], self.net.fused(taps)
        end = at.length + len(states)
        rope = self.net.rope(torch.arange(at.length, end, device=states.device))
        for i, layer in enumerate(self.net.layers):
            at.keys[i, at.length : end], at.values[i, at.length : end] = layer.keys_values(states, rope)
        at.length = end

    @torch.inference_mode()
    def hidden(self, requests: Sequence[Request]) -> torch.Tensor:
        """The block pass over all rows: final-normed states [R, block, D]."""
        net, block = self.net, self.net.config.block
        contexts = [self._rows[r.row] for r in requests]
        x = net.block_inputs([r.anchor for r in requests]).flatten(0, 1)  # [R * block, D]
        device = x.device
        rope = net.rope(torch.cat([torch.arange(c.length, c.length + block, device=device) for c in contexts]))
        for i, layer in enumerate(net.layers):
            normed = layer.input_layernorm(x)
            q = layer.queries(normed, rope)
            k, v = layer.keys_values(normed, rope)
            attended = []
            for at, qr, kr, vr in zip(contexts, q.split(block), k.split(block), v.split(block)):
                keys, values = torch.cat([at.keys[i, : at.length], kr]), torch.cat([at.values[i, : at.length], vr])
                mask = _mask(at.length, block, net.config.causal[i], net.config.windows[i], device)
                attended.append(
                    functional.scaled_dot_product_attention(
                        qr.transpose(0, 1)[None],
                        keys.transpose(0, 1)[None],
                        values.transpose(0, 1)[None],
                        mask,
                        enable_gqa=True,
                    )[0].transpose(0, 1)
                )
            x = layer.finish(x, torch.cat(attended))
        return net.norm(x).unflatten(0, (len(requests), block))

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        counts = [min(r.k, self.max_k) for r in requests]
        first = self.net.config.first_slot
        states = [h[first : first + n] for h, n in zip(self.hidden(requests), counts)]
        logits = list(self.net.logits(torch.cat(states)).split(counts))
        if self.parallel:
            return self._argmax(requests, counts, logits)
        return self._serial(requests, counts, states, logits)

    def _argmax(self, requests: Sequence[Request], counts: list[int], logits: list[torch.Tensor]) -> Proposal:
        full = [self.net.spread(x) for x in logits]
        tokens = [x.argmax(-1) for x in full]
        return Proposal(
            tokens,
            [OneHotRows(t, x.shape[-1]) for t, x in zip(tokens, full)],
            full,
            len(counts) * self.net.config.block,
            self._cost(requests, counts),
        )

    def _serial(
        self, requests: Sequence[Request], counts: list[int], states: list[torch.Tensor], logits: list[torch.Tensor]
    ) -> Proposal:
        net, s = self.net, self.settings
        head, n, device = net.markov_head, len(requests), net.fc.weight.device
        previous = to_device([r.anchor for r in requests], device)
        memory = torch.zeros(n, head.rank, dtype=net.fc.weight.dtype, device=device)
        drawn: list[list[tuple]] = [[] for _ in requests]
        for slot in range(max(counts)):
            going = [i for i, count in enumerate(counts) if slot < count]
            rows = index_of(going, device)
            before = head.markov_w1(previous[rows])
            state = torch.stack([states[i][slot] for i in going])
            added, memory[rows] = head(state, before, memory[rows])
            full = net.spread(torch.stack([logits[i][slot] for i in going]) + added.float())
            q = warp(full, s.temperature, s.top_k, s.top_p)
            us = to_device([requests[i].uniforms[slot] for i in going], device, torch.float64)
            previous[rows] = tokens = draws(q, us)
            sure = self._confidence(state, before)
            for part, i in enumerate(going):
                drawn[i].append((tokens[part], q[part], full[part], sure[part]))
        tokens_of, probs, raw, confidence = (
            [torch.stack(of_row) for of_row in part] for part in zip(*(zip(*of_row) for of_row in drawn))
        )
        guess = [net.spread(x).argmax(-1) for x in logits]
        return Proposal(
            tokens_of,
            probs,
            raw,
            n * net.config.block,
            self._cost(requests, counts),
            confidence if net.config.confidence else None,
            guess,
        )

    def _confidence(self, state: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """The file's confidence [N], without a temperature, which published files lack. Zeros without such a head."""
        c = self.net.config
        if not c.confidence:
            return state.new_zeros(len(state))
        known = torch.cat([state, before], -1) if c.confidence_with_markov else state
        return torch.sigmoid(self.net.confidence_head.proj(known)[:, 0].float())

    def _cost(self, requests: Sequence[Request], counts: list[int]) -> Cost:
        """Cost of the block pass with the head for the requested slots, and of the serial head. Fusing the few new
        context tokens is small in comparison and left out."""
        net, c = self.net, self.net.config
        size = net.fc.weight.element_size()
        shape = ModelShape(
            name="block drafter",
            layers=c.backbone.num_hidden_layers,
            hidden=c.backbone.hidden_size,
            heads=c.backbone.num_attention_heads,
            kv_heads=c.kv_heads,
            head_dim=c.backbone.head_dim,
            ffn=c.backbone.intermediate_size,
            vocab=c.draft_vocab,
            weight_bytes=size,
            cache_bytes=size,
            activation_bytes=size,
            windows=c.windows,
        )
        block = pass_cost(shape, [c.block] * len(requests), [self._rows[r.row].length for r in requests], sum(counts))
        if self.parallel:
            return block
        serial = sum(p.numel() for name, p in net.markov_head.named_parameters() if "w1" not in name)
        return Cost(block.flops + 2 * serial * sum(counts), block.bytes + size * serial * max(counts))


def _mask(context: int, block: int, causal: bool, window: int | None, device: torch.device) -> torch.Tensor | None:
    """[block, context + block] the keys that each slot attends to; None: all."""
    if not causal and window is None:
        return None
    keys = torch.arange(context + block, device=device)
    distance = torch.arange(context, context + block, device=device)[:, None] - keys
    seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if window is not None:
        seen &= distance.abs() < window
    return seen
