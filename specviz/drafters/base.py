"""The protocol between the decoding loop and any drafter. This module knows no kind of drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch

from specviz.sampling.distributions import Distributions
from specviz.sampling.transfer import to_host
from specviz.trace.records import Cost


@dataclass(frozen=True)
class Request:
    """One row's wish for drafts: K tokens that follow `anchor`, its last emitted token."""

    row: int
    anchor: int
    k: int
    uniforms: tuple[float, ...]
    """K uniforms in [0, 1) for the draws, one per slot; a deterministic drafter ignores them."""


@dataclass(frozen=True)
class Proposal:
    """What was drafted, one entry per Request in the same order. K_r may be less than was asked."""

    tokens: list[list[int] | torch.Tensor]
    """K_r token ids each, as numbers or as an int64 tensor [K_r] on the target's device, for which then nobody had to
    wait; `settle` puts numbers in their place. So with `confidence` and `first_guess`."""
    draft_probs: list[Distributions]
    """[K_r, V] float64 each, as a tensor or in a form that is read like one: the very distributions that the tokens
    were drawn from; one-hot if they were chosen without chance. They must not depend on any of the target's
    randomness."""
    draft_logits: list[Distributions | None]
    """[K_r, V] float32 raw logits (-inf outside the drafter's vocabulary), or None for a lookup."""
    draft_tokens: int
    """Positions that the drafter forwarded for this proposal."""
    cost: Cost
    confidence: list[list[float] | torch.Tensor] | None = None
    """P(draft survives | all before it did), per slot."""
    first_guess: list[list[int] | torch.Tensor] | None = None
    """Hybrid: what the parallel pass alone proposed, per slot."""

    def parts(self, details: bool = True) -> list[list | torch.Tensor]:
        """The rows' tokens and, with `details`, confidences and first guesses: what `settle` takes as lists."""
        return [*self.tokens, *((self.confidence or []) + (self.first_guess or []) if details else [])]

    def settle(self, lists: Sequence[list]) -> None:
        """Put numbers in the place of the tensors of `parts`."""
        rows, rest = len(self.tokens), list(lists)
        for held in (self.tokens, self.confidence, self.first_guess):
            if held and rest:
                held[:], rest = rest[:rows], rest[rows:]

    def on_host(self) -> Self:
        """Itself, settled."""
        self.settle(to_host(*self.parts()))
        return self


class Drafter(Protocol):
    """One run's drafter. Shared weights may stand behind many of these; caches belong to one run.

    Order of calls: `start` once per row, then per round `propose`, and for each row that goes on
    `commit`; `drop` when a row ends.
    """

    name: str
    label: str
    """What it is, in a sentence fit for the screen."""
    taps: tuple[int, ...]
    """Indices of target layers whose outputs (residual stream) it wants; () for none."""
    max_k: int
    parallel: bool
    """True: all K tokens come from one pass."""

    def start(self, row: int, prompt: Sequence[int], taps: torch.Tensor | None, capacity: int) -> None:
        """A new row. The prompt's last token is the first anchor; those before it are context.
        taps [len(prompt) - 1, len(self.taps) * D] or None; capacity: the most tokens the row may reach."""

    def propose(self, requests: Sequence[Request]) -> Proposal:
        """Drafts for some of the rows. Must leave no trace of rejected drafts: see `commit`."""

    def commit(self, row: int, emitted: Sequence[int], taps: torch.Tensor | None) -> None:
        """The verdict: `emitted` = accepted drafts and the bonus token (the next anchor). taps
        [len(emitted), len(self.taps) * D] belong to the positions that became context: the old anchor and
        the accepted drafts. Also called when nothing was proposed (K = 0)."""

    def drop(self, row: int) -> None:
        """The row has ended: free what it held."""
