"""Engines of the server: a target with a drafter, or a simulation from survival probabilities."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from specviz.engine.sequence import Row
from specviz.errors import SettingsError
from specviz.serving.policies import Policy
from specviz.trace.records import Cost, Round, Settings, Verdict

if TYPE_CHECKING:
    import torch

    from specviz.drafters.base import Drafter, Proposal
    from specviz.models.causal import CausalModel

PromptChunk = tuple[Row, Sequence[int]]
"""A row and the next tokens of its prompt to prefill."""


class Engine(Protocol):
    """Runs rounds. Queue, admission and time belong to the server."""

    spare: int
    """Cache positions of a request beyond its prompt and new tokens, for drafts."""

    def add(self, row: Row, capacity: int) -> None:
        """Allocate `capacity` cache positions for a request."""

    def play(
        self, rows: Sequence[Row], draft_lengths: Sequence[int], policy: Policy, chunks: Sequence[PromptChunk]
    ) -> Round:
        """Run one round: draft and verify `rows`, and prefill `chunks` in the same pass.

        draft_lengths: requested drafts of each row. Rows are changed in place; finished ones are dropped.
        """

    def drop(self, row: Row, started: bool) -> None:
        """Free the cache of an unfinished request. started: its prefill was complete."""


class RealEngine:
    """A target and a drafter; its rounds are those of `engine.loop`."""

    def __init__(
        self,
        target: CausalModel,
        drafter: Drafter | None,
        settings: Settings,
        eos_ids: frozenset[int] | None = None,
    ):
        from specviz.hardware.machine import clock

        self.target, self.drafter, self.settings = target, drafter, settings
        self.eos_ids = target.eos_ids() if eos_ids is None else eos_ids
        self.cache = target.new_cache()
        self.spare = (drafter.max_k if drafter else 0) + 1
        self._timer = clock(str(target.device))
        self._taps: dict[int, list[torch.Tensor]] = {}
        """By row: hidden states of its prefilled chunks, until the drafter is started with them."""
        self._capacity: dict[int, int] = {}
        self._index = 0

    def add(self, row: Row, capacity: int) -> None:
        """Allocate cache; a prompt of one token needs no prefill and starts the drafter at once."""
        self.cache.add(row.id, capacity)
        self._taps[row.id], self._capacity[row.id] = [], capacity
        if len(row.prompt) == 1:
            self._start(row)

    def play(
        self, rows: Sequence[Row], draft_lengths: Sequence[int], policy: Policy, chunks: Sequence[PromptChunk]
    ) -> Round:
        """One round of the decoding loop. The policy's `verify_lengths` decides which drafts are verified."""
        from specviz.engine.loop import RoundContext, draft_length, play_round

        drafting = [row.id for row, k in zip(rows, draft_lengths) if draft_length(self.drafter, row, k) > 0]

        def verify_lengths(proposal: Proposal) -> list[int]:
            confidence = None
            if policy.reads_confidence and proposal.confidence is not None:
                confidence = [[float(c) for c in row] for row in proposal.on_host().confidence or ()]
            return policy.verify_lengths(drafting, [len(t) for t in proposal.tokens], confidence)

        context = RoundContext(
            target=self.target,
            drafter=self.drafter,
            cache=self.cache,
            settings=self.settings,
            eos_ids=self.eos_ids,
            timer=self._timer,
            record=False,
        )
        played = play_round(
            context,
            rows,
            draft_lengths,
            self._index,
            verify_lengths=verify_lengths,
            chunks=[(row.id, tokens) for row, tokens in chunks],
        )
        self._index += 1
        for (row, _), taps in zip(chunks, played.chunk_taps):
            if taps is not None:
                self._taps[row.id].append(taps)
            if self.cache.lengths[row.id] == len(row.prompt) - 1:
                self._start(row)
        for verdict in played.round.rows:
            if verdict.finished:
                self._capacity.pop(verdict.row)
        return played.round

    def _start(self, row: Row) -> None:
        import torch

        from specviz.engine.loop import start_drafter

        taps = self._taps.pop(row.id)
        start_drafter(self.target, self.drafter, row, torch.cat(taps) if taps else None, self._capacity[row.id])

    def drop(self, row: Row, started: bool) -> None:
        """Free the caches of target and drafter."""
        self.cache.drop(row.id)
        self._taps.pop(row.id, None)
        self._capacity.pop(row.id)
        if started and self.drafter:
            self.drafter.drop(row.id)


@dataclass(frozen=True)
class SurvivalModel:
    """Acceptance of drafts in a simulation: each slot's conditional survival probability, with a spread."""

    conditional: tuple[float, ...]
    """P(slot survives | all before it survived), by slot."""
    spread: float = 0.2
    """A single draft's probability differs from its slot's by at most this, uniformly."""
    confident: bool = True
    """The drafter reports each draft's exact probability, like a calibrated confidence head; else it reports none."""

    def __post_init__(self) -> None:
        if not self.conditional or not all(0 <= c <= 1 for c in self.conditional) or not 0 <= self.spread <= 1:
            raise SettingsError("Survival probabilities must be in 0..1, and at least one slot is needed.")


class SimulatedEngine:
    """Rounds without a model: drafts survive at random, emitted tokens are zeros. Costs nothing to run."""

    spare = 0

    def __init__(self, survival: SurvivalModel):
        self.survival = survival

    def add(self, row: Row, capacity: int) -> None:
        """No cache to allocate."""

    def play(
        self, rows: Sequence[Row], draft_lengths: Sequence[int], policy: Policy, chunks: Sequence[PromptChunk]
    ) -> Round:
        """One round. Each request and round has its own generator, so results do not depend on other requests."""
        slots = len(self.survival.conditional)
        proposed = [max(0, min(k, slots, row.remaining - 1)) for row, k in zip(rows, draft_lengths)]
        survive, uniforms = self._draw(rows, proposed)
        verified = self._verified(rows, proposed, survive, policy)
        verdicts = []
        for i, row in enumerate(rows):
            accepted = 0
            while accepted < verified[i] and uniforms[i][accepted] < survive[i][accepted]:
                accepted += 1
            verdicts.append(_emit(row, proposed[i], verified[i], accepted))
        prompt_tokens = sum(len(tokens) for _, tokens in chunks)
        return Round(
            index=0,
            rows=tuple(verdicts),
            draft_seconds=0.0,
            verify_seconds=0.0,
            other_seconds=0.0,
            recording_seconds=0.0,
            target_tokens=len(rows) + sum(verified) + prompt_tokens,
            draft_tokens=sum(proposed),
            target_cost=Cost(0, 0),
            draft_cost=Cost(0, 0),
        )

    def _draw(self, rows: Sequence[Row], proposed: Sequence[int]) -> tuple[list[list[float]], list[list[float]]]:
        """By row: the survival probability of each draft, and the uniforms that decide."""
        conditional, spread = self.survival.conditional, self.survival.spread
        slots = len(conditional)
        survive, uniforms = [], []
        for row, n in zip(rows, proposed):
            rng = random.Random((row.seed << 20) + row.rounds)
            draws = [rng.random() for _ in range(2 * slots)]
            survive.append([min(1.0, max(0.0, c + spread * (2 * u - 1))) for c, u in zip(conditional[:n], draws)])
            uniforms.append(draws[slots:])
        return survive, uniforms

    def _verified(
        self, rows: Sequence[Row], proposed: Sequence[int], survive: Sequence[Sequence[float]], policy: Policy
    ) -> list[int]:
        """How many drafts of each row the policy verifies."""
        verified = [0] * len(rows)
        drafting = [i for i, n in enumerate(proposed) if n]
        if drafting:
            lengths = policy.verify_lengths(
                [rows[i].id for i in drafting],
                [proposed[i] for i in drafting],
                [survive[i] for i in drafting] if self.survival.confident else None,
            )
            for i, length in zip(drafting, lengths):
                verified[i] = length
        return verified

    def drop(self, row: Row, started: bool) -> None:
        """No cache to free."""


def _emit(row: Row, proposed: int, verified: int, accepted: int) -> Verdict:
    """Append the accepted drafts and the bonus token to a simulated row."""
    emitted = [0] * (accepted + 1)
    row.emitted += emitted
    row.rounds += 1
    return Verdict(
        row=row.id,
        context=0,
        anchor=0,
        proposed=proposed,
        verified=verified,
        accepted=accepted,
        positions=(),
        emitted=tuple(emitted),
        kind="leftover" if accepted < verified else "all_accepted",
        bonus_token=0,
        bonus_uniform=0.0,
        finished=None if row.remaining else "length",
    )
