"""The drafter protocol: what the decoding loop calls (start, propose, commit, drop) and what a proposal contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from specviz.sampling.distributions import Distributions
from specviz.sampling.transfer import to_host
from specviz.trace.records import Cost


@dataclass(frozen=True)
class Request:
    """A request for up to K draft tokens of one row, after `anchor`, its last emitted token."""

    row: int
    anchor: int
    k: int
    uniforms: tuple[float, ...]
    """K uniforms in [0, 1) for the draws, one per slot; deterministic drafters ignore them."""


@dataclass(frozen=True)
class Proposal:
    """The drafts, one entry per Request in the same order. K_r may be less than requested."""

    tokens: Sequence[Sequence[int] | torch.Tensor]
    """K_r token ids each, as a list or as an int64 tensor [K_r] on the target's device, which needs no synchronization;
    `settle` replaces tensors by lists. The same holds for `confidence` and `first_guess`."""
    draft_probs: Sequence[Distributions]
    """[K_r, V] float64 each, as a tensor or lazily: exactly the distributions that the tokens were drawn from; one-hot
    for deterministic drafts. They must not depend on the target's random numbers."""
    draft_logits: Sequence[Distributions | None]
    """[K_r, V] float32 raw logits (-inf outside the drafter's vocabulary), or None for a lookup."""
    draft_tokens: int
    """Positions that the drafter forwarded for this proposal."""
    cost: Cost
    confidence: Sequence[Sequence[float] | torch.Tensor] | None = None
    """P(draft survives | all before it did), per slot."""
    first_guess: Sequence[Sequence[int] | torch.Tensor] | None = None
    """Hybrid: the parallel pass's tokens before refinement, per slot."""

    def parts(self, details: bool = True) -> list[Any]:
        """The rows' tokens and, with `details`, confidences and first guesses: lists or one-dimensional tensors."""
        return [*self.tokens, *([*(self.confidence or ()), *(self.first_guess or ())] if details else [])]

    def settle(self, lists: Sequence[list]) -> None:
        """Replace the entries of `parts` by these lists, in place. The fields must be lists."""
        rows, rest = len(self.tokens), list(lists)
        for entries in (self.tokens, self.confidence, self.first_guess):
            if isinstance(entries, list) and entries and rest:
                entries[:], rest = rest[:rows], rest[rows:]

    def on_host(self) -> Self:
        """Itself, with lists in place of tensors."""
        self.settle(to_host(*self.parts()))
        return self


class Drafter(Protocol):
    """One run's drafter. Weights may be shared between drafters; caches belong to one run.

    Order of calls: `start` once per row, then per round `propose`, and `commit` for each
    row that continues; `drop` when a row ends.
    """

    name: str
    label: str
    """A description in one sentence, for the screen."""
    taps: tuple[int, ...]
    """Indices of target layers whose outputs (residual stream) it reads; () for none."""
    max_k: int
    parallel: bool
    """True: all K tokens come from one pass."""

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        """A new row. The prompt's last token is the first anchor; those before it are context.
        taps [len(prompt) - 1, len(self.taps) * D] or None; capacity: the most tokens the row may reach."""

    def propose(self, requests: Sequence[Request]) -> Proposal:
        """Drafts for some of the rows. Rejected drafts must not influence later rounds: see `commit`."""

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        """The verdict: `emitted` = accepted drafts and the bonus token (the next anchor). taps
        [len(emitted), len(self.taps) * D] belong to the positions that became context: the old anchor and
        the accepted drafts. Also called when nothing was proposed (K = 0)."""

    def drop(self, row: int) -> None:
        """The row has ended: free its memory."""
