"""The autoregressive drafter: a small causal language model that drafts K tokens in K passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from specviz.drafters.base import Proposal, Request
from specviz.drafters.draft_vocabulary import DraftVocabulary
from specviz.hardware.costs import pass_cost
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import OneHotRows
from specviz.sampling.transfer import index_of, offsets, to_device, to_host
from specviz.trace.records import MAX_K, Cost, Settings


class AutoregressiveDrafter:
    """Any causal model with the target's tokenizer. q is its distribution after the run's temperature, top-k, top-p."""

    taps: tuple[int, ...] = ()
    max_k = MAX_K
    parallel = False

    def __init__(
        self,
        model: CausalModel,
        vocab_size: int,
        settings: Settings,
        name: str = "autoregressive",
        label: str = "autoregressive: a small model drafts one token at a time",
        draft_ids: torch.Tensor | None = None,
    ):
        """vocab_size: the target's. draft_ids: the target's token of each of the model's logits; None: token i is logit
        i, and ids that only one of the two models has are never proposed."""
        self.model, self.settings = model, settings
        if draft_ids is None:
            draft_ids = torch.arange(min(vocab_size, model.vocab_size))
        self.vocabulary = DraftVocabulary(draft_ids.to(model.device), vocab_size)
        self.name, self.label, self.graphs = name, label, model.graphs
        self.max_positions = model.max_positions
        """Positions of the model; it drafts no further. None: no limit is known."""
        self._cache = model.new_cache()
        self._texts: dict[int, list[int]] = {}
        """Committed tokens of each row, the anchor included. The cache holds the first of them and, past them all,
        drafts."""
        self._drafts: dict[int, tuple[list, int]] = {}
        """The last proposal's tokens (a list over rows), and the row's index in it."""

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._cache.add(row, capacity)
        self._texts[row] = list(prompt)
        if 1 < len(prompt) <= self._limit:
            self.model.forward(self._cache, [row], [self._readable(prompt[:-1])], logits=False)

    @property
    def _limit(self) -> int:
        return self.max_positions or 2**62

    def propose(self, requests: Sequence[Request]) -> Proposal:
        """K drafts for each row, fewer or none at the end of the drafter's own context."""
        room = [min(r.k, self._limit - len(self._texts[r.row]) + 1) for r in requests]
        drafted = [i for i, k in enumerate(room) if k > 0]
        active = [replace(requests[i], k=room[i], uniforms=requests[i].uniforms[: room[i]]) for i in drafted]
        self._drafts.clear()
        if len(drafted) == len(requests):
            return self._draft(active)
        found = self._draft(active) if active else Proposal([], [], [], 0, Cost(0, 0))
        where = {i: n for n, i in enumerate(drafted)}
        none = torch.empty(0, dtype=torch.int64, device=self.model.device)
        size = self.vocabulary.size
        return Proposal(
            [found.tokens[where[i]] if i in where else none for i in range(len(requests))],
            [found.draft_probs[where[i]] if i in where else OneHotRows(none, size) for i in range(len(requests))],
            [found.draft_logits[where[i]] if i in where else None for i in range(len(requests))],
            found.draft_tokens,
            found.cost,
        )

    @torch.inference_mode()
    def _draft(self, requests: Sequence[Request]) -> Proposal:
        device = self.model.device
        drawn: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in requests]
        # The first pass also catches up on tokens never forwarded: the last draft, if all were accepted.
        feed: dict[int, list[int] | torch.Tensor] = {
            i: self._texts[r.row][self._cache.lengths[r.row] :] for i, r in enumerate(requests)
        }
        uniforms = to_device([u for r in requests for u in r.uniforms], device, torch.float64)
        starts = offsets([len(r.uniforms) for r in requests])
        forwarded, flops, moved = 0, 0, 0
        slot = 0
        while feed:
            rows = [requests[i].row for i in feed]
            contexts = [self._cache.lengths[row] for row in rows]
            out = self.model.forward(
                self._cache, rows, list(map(self._readable, feed.values())), logits=[1] * len(rows)
            )
            cost = pass_cost(self.model.shape, [len(t) for t in feed.values()], contexts, len(rows))
            forwarded, flops, moved = forwarded + sum(map(len, feed.values())), flops + cost.flops, moved + cost.bytes
            raw = out.packed[index_of(out.starts, device)][:, : len(self.vocabulary)]
            here = index_of([starts[i] + slot for i in feed], device)
            tokens, drawn_from = self.vocabulary.choose(raw, self.settings, uniforms[here])
            for n, i in enumerate(feed):
                drawn[i].append(tuple(x[n : n + 1] for x in (tokens, raw, drawn_from) if x is not None))
            slot += 1
            feed = {i: tokens[n : n + 1] for n, i in enumerate(feed) if slot < requests[i].k}
        columns = [[torch.cat(part) for part in zip(*of_row)] for of_row in drawn]
        drafts = [tokens for tokens, *_ in columns]
        self._drafts = {r.row: (drafts, i) for i, r in enumerate(requests)}
        q = [self.vocabulary.probs(tokens, drawn_from[0] if drawn_from else None) for tokens, _, *drawn_from in columns]
        return Proposal(
            drafts, q, [self.vocabulary.spread_logits(raw) for _, raw, *_ in columns], forwarded, Cost(flops, moved)
        )

    def _readable(self, tokens: Sequence[int] | torch.Tensor) -> Sequence[int] | torch.Tensor:
        """The tokens with ids that only the target has replaced by 0. This can only cost acceptance, since q is the
        distribution after the replacement. Such ids are never drafted."""
        size = self.model.embedding.shape[0]
        return tokens if isinstance(tokens, torch.Tensor) else [token if token < size else 0 for token in tokens]

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        text, cached = self._texts[row], self._cache.lengths[row]
        before = len(text)
        text += emitted
        # Roll the cache back to what was accepted; the new anchor is never in it.
        last = min(cached, len(text) - 1)
        agreed = min(before, last)
        if agreed < last:
            drafts, i = self._drafts[row]
            # lists by now (Proposal.settle), unless the caller was not the decoding loop
            proposed = drafts[i] if isinstance(drafts[i], list) else to_host(drafts[i])[0]
            while agreed < last and proposed[agreed - before] == text[agreed]:
                agreed += 1
        self._cache.truncate(row, agreed)

    def drop(self, row: int) -> None:
        self._cache.drop(row)
        del self._texts[row]
        self._drafts.pop(row, None)


def first_layers(target: CausalModel, model: CausalModel, settings: Settings) -> AutoregressiveDrafter:
    """The target's first layers as drafter; `model` is `target.first(n)`, shared between runs."""
    return AutoregressiveDrafter(
        model,
        target.vocab_size,
        settings,
        "first-layers",
        f"first {model.layers} of the target's own {target.layers} layers, untrained for this: a stand-in, not a good "
        "drafter",
    )
