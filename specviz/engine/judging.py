"""The accept rule over all rows of a verify pass, and the one synchronisation with the device that reads its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.drafters.base import Drafter, Proposal
from specviz.engine.sequence import Row
from specviz.errors import NotFiniteError
from specviz.models.causal import CausalModel, Output
from specviz.models.finite import drafted_logits, drafter_fault, largest_logits, target_fault
from specviz.sampling.distributions import Distributions, concat
from specviz.sampling.rejection import judge_rows, uniform, warp_rows
from specviz.sampling.transfer import to_device, to_host
from specviz.trace.records import Settings


@dataclass(frozen=True)
class RowDraft:
    """The drafts of one row that are sent to the verify pass: a prefix of its part of a Proposal, or none."""

    proposal: Proposal | None = None
    index: int = 0
    """The row's index in the proposal."""
    length: int = 0
    """Drafts that are verified; the others are discarded."""

    @property
    def proposed(self) -> int:
        """Drafts that were proposed, verified or not."""
        return len(self.proposal.tokens[self.index]) if self.proposal else 0

    @property
    def tokens(self) -> Sequence[int] | torch.Tensor:
        """The drafted token ids [K]; a tensor on the device until `synchronize`."""
        return self.proposal.tokens[self.index][: self.length] if self.proposal else []

    @property
    def host_tokens(self) -> list[int]:
        """The drafted token ids [K] as a list; free after `synchronize`, before it waits for the device."""
        return tokens.tolist() if isinstance(tokens := self.tokens, torch.Tensor) else list(tokens)

    @property
    def probs(self) -> Distributions | None:
        """q [K, V]; None without drafts."""
        return self.proposal.draft_probs[self.index][: self.length] if self.proposal and self.length else None

    @property
    def logits(self) -> Distributions | None:
        """The drafter's raw logits [K, V]; None without drafts, or if the drafter has none (a lookup)."""
        rows = self.proposal.draft_logits[self.index] if self.proposal and self.length else None
        return None if rows is None else rows[: self.length]

    @property
    def confidence(self) -> list[float] | None:
        """Per draft [K], on the host; None if the drafter gives none."""
        return self._host_part(self.proposal.confidence if self.proposal else None)

    @property
    def first_guess(self) -> list[int] | None:
        """A hybrid's parallel drafts [K], on the host; None for other drafters."""
        return self._host_part(self.proposal.first_guess if self.proposal else None)

    def _host_part(self, values: Sequence | None) -> list | None:
        return None if values is None or not self.length else list(values[self.index][: self.length])

    def after(self, anchor: int) -> list[int] | torch.Tensor:
        """The anchor and the drafts [K + 1]: the input of the verify pass."""
        if isinstance(tokens := self.tokens, torch.Tensor):
            return torch.cat([to_device([anchor], tokens.device), tokens])
        return [anchor, *tokens]


@dataclass(frozen=True, kw_only=True)
class DeviceVerdict:
    """The accept rule's result for all R rows of a round, still on the device, and the numbers it was based on."""

    accepted: torch.Tensor | list[int]
    """Accepted drafts [R]."""
    bonus: torch.Tensor | list[int]
    """Bonus tokens [R]."""
    target_probs: Distributions
    """p [M, V] of all positions."""
    accept_uniforms: list[list[float]]
    bonus_uniforms: list[float]
    largest_target: torch.Tensor
    """The largest logit [M] of each position of the target (`models.finite.largest_logits`)."""
    largest_draft: torch.Tensor | list
    """The largest logit [N] of each verified draft that came with logits (`models.finite.drafted_logits`)."""


@dataclass(frozen=True)
class HostVerdict:
    """The accept rule's result on the host."""

    accepted: list[int]
    bonus: list[int]
    target_faults: list[bool]
    """Whether the logits of each position [M] of the target are NaN or infinite."""
    draft_faults: list[bool]
    """The same for each verified draft [N] that came with logits."""


def judge(out: Output, rows: Sequence[Row], drafts: Sequence[RowDraft], settings: Settings) -> DeviceVerdict:
    """Apply the accept rule to all rows of a verify pass; does not synchronise with the device."""
    device = out.packed.device
    accept_uniforms = [
        [uniform(row.seed, row.rounds, slot, "accept") for slot in range(draft.length)]
        for row, draft in zip(rows, drafts)
    ]
    bonus_uniforms = [uniform(row.seed, row.rounds, 0, "bonus") for row in rows]
    p = warp_rows(out.packed, settings.temperature, settings.top_k, settings.top_p)
    q = [probs for draft in drafts if (probs := draft.probs) is not None]
    tokens = [
        t if isinstance(t := draft.tokens, torch.Tensor) else to_device(t, device) for draft in drafts if draft.length
    ]
    accepted, bonus = judge_rows(
        p,
        out.starts[: len(rows)],
        concat(q) if q else None,
        torch.cat(tokens) if tokens else None,
        [draft.length for draft in drafts],
        [u for of_row in accept_uniforms for u in of_row],
        bonus_uniforms,
    )
    with_logits = [
        (z, probs) for draft in drafts if (z := draft.logits) is not None and (probs := draft.probs) is not None
    ]
    return DeviceVerdict(
        accepted=accepted,
        bonus=bonus,
        target_probs=p,
        accept_uniforms=accept_uniforms,
        bonus_uniforms=bonus_uniforms,
        largest_target=largest_logits(out.packed, p),
        largest_draft=drafted_logits(*map(list, zip(*with_logits))) if with_logits else [],
    )


def synchronize(verdict: DeviceVerdict, proposal: Proposal | None, record: bool) -> HostVerdict:
    """Read the verdict and the proposal's tokens in one synchronising copy; the proposal is on the host afterwards.

    record: read the proposal's confidences and first guesses too.
    """
    parts = proposal.parts(details=record) if proposal else []
    accepted, bonus, largest_target, largest_draft, *lists = to_host(
        verdict.accepted, verdict.bonus, verdict.largest_target, verdict.largest_draft, *parts
    )
    if proposal:
        proposal.settle(lists)
    return HostVerdict(
        accepted,
        bonus,
        [not math.isfinite(x) for x in largest_target],
        [not math.isfinite(x) for x in largest_draft],
    )


def find_fault(
    target: CausalModel,
    drafter: Drafter | None,
    rows: Sequence[Row],
    drafts: Sequence[RowDraft],
    starts: Sequence[int],
    verdict: HostVerdict,
) -> NotFiniteError | None:
    """The error for logits that are NaN or infinite, the target's first; None if only padding positions are.

    starts: the index of each row's first position. Call after `synchronize`.
    """
    for row, draft, start in zip(rows, drafts, starts):
        for slot in range(draft.length + 1):
            if verdict.target_faults[start + slot]:
                return target_fault(target, [*row.prompt, *row.emitted, *draft.host_tokens[:slot]], row.id)
    if drafter is None:
        return None
    with_logits = [
        (row, draft, slot)
        for row, draft in zip(rows, drafts)
        if draft.logits is not None
        for slot in range(draft.length)
    ]
    for (row, draft, slot), fault in zip(with_logits, verdict.draft_faults):
        if fault:
            text = [*row.prompt, *row.emitted, *draft.host_tokens[:slot]]
            return drafter_fault(drafter.name, getattr(drafter, "model", None), target.precision, text, row.id)
    return None
