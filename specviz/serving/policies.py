"""Policies of the server: how many drafts of each request to propose and to verify in the next round.

A policy decides twice per round: `draft_lengths` before drafting, `verify_lengths` once the drafts are there. The first
may use anything from past rounds. The second must not depend on the drafts that it decides about, or the emitted text
no longer follows the target's distribution (DSpark, appendix A); each choice below says why it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specviz.errors import SettingsError
from specviz.serving.scheduling import (
    RoundCosts,
    Schedule,
    SurvivalEstimate,
    best_schedule,
    likeliest_schedule,
    prefix_schedule,
    survivals,
    uniform_goodput,
)
from specviz.trace.records import Verdict

PROBE_EVERY = 16
"""Rounds without drafts after which one request drafts again, so that the survival estimate is kept up to date."""

DEPTHS = (1, 2, 3, 4, 6)
"""Draft lengths that are compared, besides the longest, where `verify_lengths` shortens the drafts."""


class Policy(Protocol):
    """Decides draft and verify lengths."""

    name: str
    last: Schedule | None
    """The latest schedule, for the chart of one step; None if the policy makes none."""

    @property
    def reads_confidence(self) -> bool:
        """Whether `verify_lengths` reads confidences: a round then synchronises once more, before it verifies."""

    def draft_lengths(self, requests: Sequence[int], prompt_tokens: int) -> list[int]:
        """Drafts to propose for each request, where `prompt_tokens` tokens are prefilled in the same pass."""

    def verify_lengths(
        self, requests: Sequence[int], proposed: Sequence[int], confidence: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """How many of the `proposed` drafts of each request to verify. confidence: by request and slot."""

    def observe(self, verdict: Verdict) -> None:
        """Learn from a request's verdict."""

    def forget(self, request: int) -> None:
        """Drop the statistics of an ended request."""


class Fixed:
    """The same K always; 0 is no speculation."""

    last: Schedule | None = None
    reads_confidence = False

    def __init__(self, k: int):
        self.k = k
        self.name = f"fixed K = {k}" if k else "none"

    def draft_lengths(self, requests: Sequence[int], prompt_tokens: int = 0) -> list[int]:
        """K for every request."""
        return [self.k] * len(requests)

    def verify_lengths(
        self, requests: Sequence[int], proposed: Sequence[int], confidence: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """All drafts."""
        return list(proposed)

    def observe(self, verdict: Verdict) -> None:
        """Nothing to learn."""

    def forget(self, request: int) -> None:
        """Nothing to drop."""


class _SurvivalPolicy:
    """Base of the policies that estimate survival from past verdicts and probe after long without drafts."""

    reads_confidence = False

    def __init__(self, costs: RoundCosts, max_k: int):
        self.costs, self.max_k = costs, max_k
        self.estimate = SurvivalEstimate(max_k)
        self.last: Schedule | None = None
        self._idle = 0

    def observe(self, verdict: Verdict) -> None:
        """Update the survival estimate."""
        self.estimate.observe(verdict.row, verdict.verified, verdict.accepted)

    def forget(self, request: int) -> None:
        """Drop the estimate of an ended request."""
        self.estimate.forget(request)

    def verify_lengths(
        self, requests: Sequence[int], proposed: Sequence[int], confidence: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """All drafts: the draft lengths are the decision."""
        return list(proposed)

    def _probed(self, lengths: list[int], drafts: int = 1) -> list[int]:
        """The lengths; after PROBE_EVERY rounds without any draft, `drafts` for the first request."""
        self._idle = 0 if any(lengths) else self._idle + 1
        if lengths and self._idle >= PROBE_EVERY:
            self._idle = 0
            return [drafts, *lengths[1:]]
        return lengths


class Uniform(_SurvivalPolicy):
    """One K for all requests, the one with the highest goodput at this batch size (vLLM's dynamic speculation)."""

    name = "uniform goodput"

    def __init__(self, costs: RoundCosts, max_k: int):
        super().__init__(costs, max_k)
        self._k: int | None = None

    def draft_lengths(self, requests: Sequence[int], prompt_tokens: int = 0) -> list[int]:
        """The K with the highest goodput, for every request."""
        rows = len(requests)
        if not rows:
            return []
        prefill = self.costs.prefill(rows, prompt_tokens)
        self._k = uniform_goodput(
            self.estimate.of(),
            rows,
            lambda k: self.costs.round([k] * rows, prompt_tokens=prompt_tokens) - prefill,
            self._k,
        )
        return self._probed([self._k] * rows)


class Prefix(_SurvivalPolicy):
    """The prefix scheduler of DSpark (arXiv 2607.05147): lengths by request, from survival and cost.

    Without confidences from the drafter, survival is estimated from past verdicts and the lengths are decided before
    drafting. With confidences the same number is drafted for all requests, chosen by the previous round's confidences,
    and then shortened: to the best schedule if drafts are deterministic, and otherwise to the likeliest drafts within a
    budget from the previous round's confidences. (The early stop of the paper's algorithm 1 stops too soon where the
    cost has steps.)
    """

    name = "prefix scheduler"
    reads_confidence = True

    def __init__(
        self, costs: RoundCosts, max_k: int, confident: bool = False, deterministic: bool = True, early: bool = False
    ):
        """confident: the drafter is known to report confidences; otherwise the first round shows whether it does.
        deterministic: drafts are not sampled. early: stop at the first drop of theta, as algorithm 1 does."""
        super().__init__(costs, max_k)
        self.confident, self.deterministic, self.early = confident, deterministic, early
        if early:
            self.name = "prefix scheduler, early stop"
        self._previous: dict[int, list[float]] = {}
        """Survivals of each request's previous draft."""
        self._budget = self._depth = 0
        self._rows = self._prompt_tokens = 0

    def draft_lengths(self, requests: Sequence[int], prompt_tokens: int = 0) -> list[int]:
        """Lengths of the best schedule, or one length for all where confidences shorten the drafts afterwards."""
        rows = len(requests)
        self._rows, self._prompt_tokens = rows, prompt_tokens
        if not rows:
            return []
        cost = self.costs.verifying(rows, prompt_tokens)
        if not self.confident:
            make_schedule = prefix_schedule if self.early else best_schedule
            self.last = make_schedule([self.estimate.of(r) for r in requests], cost, self.costs.one_more)
            return self._probed(list(self.last.lengths))
        previous = [self._previous_survivals(r) for r in requests]
        # one depth for all: it must pay for drafting too, which a plain round does not need
        theta, self._depth, self._budget = rows / cost(rows), 0, 0
        for depth in sorted({d for d in DEPTHS if d < self.max_k} | {self.max_k}):
            spent = self.costs.drafting([depth] * rows)
            schedule = best_schedule([a[:depth] for a in previous], self.costs.verifying(rows, prompt_tokens, spent))
            if schedule.theta > theta:
                theta, self._depth, self._budget = schedule.theta, depth, sum(schedule.lengths)
        return self._probed([self._depth] * rows, self.max_k)

    def _previous_survivals(self, request: int) -> list[float]:
        """The survivals of a request's previous draft, extended by the estimate to max_k slots."""
        known = self._previous.get(request, [])
        last, found = (known[-1] if known else 1.0), list(known)
        for c in self.estimate.conditional(request)[len(known) :]:
            last *= c
            found.append(last)
        return found

    def verify_lengths(
        self, requests: Sequence[int], proposed: Sequence[int], confidence: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """All drafts without confidences, else the schedule that the class docstring describes."""
        if confidence is None:
            return list(proposed)
        if not self.confident:  # the drafter does report confidences: use them from the next round on
            self.confident = True
            return list(proposed)
        now = [survivals(c) for c in confidence]
        self._previous.update(zip(requests, now))
        cost = self.costs.verifying(self._rows, self._prompt_tokens, self.costs.drafting(proposed))
        if self.early:
            self.last = prefix_schedule(now, cost)
        elif self.deterministic:
            self.last = best_schedule(now, cost)
        else:
            self.last = likeliest_schedule(now, max(1, self._budget), cost)
        return list(self.last.lengths)

    def forget(self, request: int) -> None:
        """Drop the estimate and the previous draft of an ended request."""
        super().forget(request)
        self._previous.pop(request, None)


NAMES = ("none", "fixed", "uniform", "prefix")
"""The policies that are compared."""
ALL = (*NAMES, "early")
"""The same and algorithm 1 with its early stop, which stops too soon where the cost has steps."""


def make(
    name: str, costs: RoundCosts, k: int, max_k: int, confident: bool = False, deterministic: bool = True
) -> Policy:
    """The policy of a name: none, fixed (K = k), uniform, prefix or early. Raises SettingsError for another name."""
    if name == "none":
        return Fixed(0)
    if name == "fixed":
        return Fixed(k)
    if name == "uniform":
        return Uniform(costs, max_k)
    if name in ("prefix", "early"):
        return Prefix(costs, max_k, confident, deterministic, name == "early")
    raise SettingsError(f"There is no policy {name[:40]!r}: choose one of {', '.join(ALL)}.")
