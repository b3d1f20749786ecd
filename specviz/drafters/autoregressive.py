"""A small causal language model that drafts one token after the other: K passes for K tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specviz.costs import pass_cost
from specviz.drafters.base import Proposal, Request
from specviz.drafters.vocabulary import DraftVocabulary
from specviz.models.causal import CausalModel
from specviz.trace import MAX_K, Cost, Settings


class AutoregressiveDrafter:
    """Any causal model with the target's tokenizer. q is its own distribution, warped as the target's is."""

    taps = ()
    max_k = MAX_K
    parallel = False

    def __init__(
        self, model: CausalModel, vocab_size: int, settings: Settings,
        name: str = "autoregressive", label: str = "autoregressive: a small model drafts one token at a time",
        draft_ids: torch.Tensor | None = None,
    ):
        """vocab_size: the target's. draft_ids: the target's tokens that the model's logits are of; without it they are
        those of the target itself, and ids that only one of the two has are never proposed."""
        self.model, self.settings = model, settings
        if draft_ids is None:
            draft_ids = torch.arange(min(vocab_size, model.vocab_size))
        self.vocabulary = DraftVocabulary(draft_ids.to(model.device), vocab_size)
        self.name, self.label = name, label
        self._cache = model.new_cache()
        self._texts: dict[int, list[int]] = {}
        """Committed tokens of each row, the anchor included."""
        self._forwarded: dict[int, list[int]] = {}
        """What the row's cache holds."""

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        self._cache.add(row, capacity)
        self._texts[row] = list(prompt)
        self._forwarded[row] = list(prompt[:-1])
        if len(prompt) > 1:
            self.model.forward(self._cache, [row], [self._known(prompt[:-1])], logits=False)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request]) -> Proposal:
        tokens: list[list[int]] = [[] for _ in requests]
        probs: list[list[torch.Tensor]] = [[] for _ in requests]
        logits: list[list[torch.Tensor]] = [[] for _ in requests]
        # The first pass also catches up on tokens never forwarded: the last draft, if all were accepted.
        feed = {i: self._texts[r.row][len(self._forwarded[r.row]):] for i, r in enumerate(requests)}
        forwarded, flops, moved = 0, 0, 0
        while feed:
            rows = [requests[i].row for i in feed]
            contexts = [self._cache.lengths[row] for row in rows]
            out = self.model.forward(self._cache, rows, list(map(self._known, feed.values())), logits=[1] * len(rows))
            cost = pass_cost(self.model.shape, [len(t) for t in feed.values()], contexts, len(rows))
            forwarded, flops, moved = forwarded + sum(map(len, feed.values())), flops + cost.flops, moved + cost.bytes
            following = {}
            for (i, fed), row_logits in zip(feed.items(), out.logits):
                request, slot = requests[i], len(tokens[i])
                self._forwarded[request.row] += fed
                raw = row_logits[:, : len(self.vocabulary)]
                token, q = self.vocabulary.choose(raw, self.settings, request.uniforms[slot: slot + 1])
                tokens[i] += token
                probs[i].append(q)
                logits[i].append(raw)
                if len(tokens[i]) < request.k:
                    following[i] = token
            feed = following
        return Proposal(
            tokens, [self.vocabulary.spread_probs(torch.cat(q)) for q in probs],
            [self.vocabulary.spread_logits(torch.cat(x)) for x in logits], forwarded, Cost(flops, moved),
        )

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """Tokens as the drafter can read them: a padding id that only the target has is read as token 0. That can
        cost acceptance and nothing else, since q is what the drafter says after it."""
        size = self.model.embedding.shape[0]
        return [token if token < size else 0 for token in tokens]

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        text, cached = self._texts[row], self._forwarded[row]
        text += emitted
        # Keep of the cache what the verdict confirmed; the new anchor itself is never in it.
        agreed = min(len(cached), len(text) - 1)
        while cached[:agreed] != text[:agreed]:
            agreed -= 1
        del cached[agreed:]
        self._cache.truncate(row, agreed)

    def drop(self, row: int) -> None:
        self._cache.drop(row)
        del self._texts[row], self._forwarded[row]


def first_layers(target: CausalModel, model: CausalModel, settings: Settings) -> AutoregressiveDrafter:
    """The target's own first layers as drafter; `model` is `target.first` of so many, shared between runs."""
    return AutoregressiveDrafter(
        model, target.vocab_size, settings, "first-layers",
        f"first {model.layers} of the target's own {target.layers} layers, untrained for this: a stand-in, not a good "
        "drafter",
    )
