"""Policies of a server: how many drafts each request gets in the next round. State around the functions of scheduling.

A policy is asked twice a round: `wishes` before anything is drafted, `cut` when the drafts are there. What it decides
before may use anything of the past. What it decides after must not depend on the very drafts it decides about, or the
text would no longer follow the target; which function of scheduling keeps that is said where it is chosen.
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
    prefix_schedule,
    survivals,
    take,
    uniform_goodput,
)
from specviz.trace.records import Verdict

PROBE_EVERY = 16
"""Rounds without a draft after which one is tried again: what never drafts never learns that drafting pays."""

DEPTHS = (1, 2, 3, 4, 6)
"""Lengths of a draft, besides the longest, that are weighed where drafts are cut afterwards."""


class Policy(Protocol):
    """What a server asks."""

    name: str
    last: Schedule | None
    """The latest schedule, for the one-step view; None if the policy makes none."""
    reads_confidence: bool
    """`cut` looks at confidences: a round then waits for the device once more, before it verifies."""

    def wishes(self, requests: Sequence[int], prompt_tokens: int) -> list[int]:
        """Drafts to propose for each request, `prompt_tokens` of others being read in the same pass."""

    def cut(
        self, requests: Sequence[int], proposed: Sequence[int], confidence: Sequence[Sequence[float]] | None
    ) -> list[int]:
        """Of the `proposed` drafts of each of these requests, how many to verify."""

    def observe(self, verdict: Verdict) -> None:
        """What came of a request's round."""

    def forget(self, request: int) -> None:
        """The request has ended."""


class Fixed:
    """The same K whatever happens; 0 is no speculation."""

    last = None
    reads_confidence = False

    def __init__(self, k: int):
        self.k = k
        self.name = f"fixed K = {k}" if k else "none"

    def wishes(self, requests, prompt_tokens=0):
        return [self.k] * len(requests)

    def cut(self, requests, proposed, confidence):
        return list(proposed)

    def observe(self, verdict):
        pass

    def forget(self, request):
        pass


class _Learning:
    """Keeps the survival estimate, and tries a draft now and then where it has not drafted for long."""

    reads_confidence = False

    def __init__(self, costs: RoundCosts, max_k: int):
        self.costs, self.max_k = costs, max_k
        self.estimate = SurvivalEstimate(max_k)
        self.last: Schedule | None = None
        self._idle = 0

    def observe(self, verdict: Verdict) -> None:
        self.estimate.observe(verdict.row, verdict.verified, verdict.accepted)

    def forget(self, request: int) -> None:
        self.estimate.forget(request)

    def cut(self, requests, proposed, confidence):
        return list(proposed)

    def _probed(self, lengths: list[int], drafts: int = 1) -> list[int]:
        """The lengths, or once in a while `drafts` for one request where there would be none for any."""
        self._idle = 0 if any(lengths) else self._idle + 1
        if lengths and self._idle >= PROBE_EVERY:
            self._idle = 0
            return [drafts, *lengths[1:]]
        return lengths


class Uniform(_Learning):
    """vLLM's dynamic rule: one K for all requests, the one with the most goodput at this batch."""

    name = "uniform goodput"

    def __init__(self, costs: RoundCosts, max_k: int):
        super().__init__(costs, max_k)
        self._k: int | None = None

    def wishes(self, requests, prompt_tokens=0):
        rows = len(requests)
        if not rows:
            return []
        reading = self.costs.reading(rows, prompt_tokens)
        self._k = uniform_goodput(
            self.estimate.of(),
            rows,
            lambda k: self.costs.round([k] * rows, prompt_tokens=prompt_tokens) - reading,
            self._k,
        )
        return self._probed([self._k] * rows)


class Prefix(_Learning):
    """The prefix scheduler of DSpark: lengths by request, from survival and cost.

    Without confidences from the drafter, survival is estimated from past verdicts, so the lengths are decided before
    anything is drafted and nothing is drafted in vain. With confidences the same number is drafted for all, chosen by
    the confidences of the round before, and then cut: by the whole maximum if drafts are chosen without chance, and
    otherwise by the likeliest drafts within a budget from the confidences of the round before (the early stop of the
    paper's algorithm 1 would stick wherever the cost has steps).
    """

    name = "prefix scheduler"
    reads_confidence = True

    def __init__(
        self, costs: RoundCosts, max_k: int, confident: bool = False, deterministic: bool = True, early: bool = False
    ):
        """confident: the drafter is known to say how likely each draft is to survive; otherwise that is found out.
        deterministic: it draws nothing. early: stop at the first drop, algorithm 1 to the letter."""
        super().__init__(costs, max_k)
        self.confident, self.deterministic, self.early = confident, deterministic, early
        if early:
            self.name = "prefix scheduler, early stop"
        self._older: dict[int, list[float]] = {}
        """Survivals of each request's last draft."""
        self._budget = self._depth = 0
        self._rows = self._prompt_tokens = 0

    def wishes(self, requests, prompt_tokens=0):
        rows = len(requests)
        self._rows, self._prompt_tokens = rows, prompt_tokens
        if not rows:
            return []
        cost = self.costs.verifying(rows, prompt_tokens)
        if not self.confident:
            schedule = prefix_schedule if self.early else best_schedule
            self.last = schedule([self.estimate.of(r) for r in requests], cost, self.costs.one_more)
            return self._probed(list(self.last.lengths))
        older = [self._before(r) for r in requests]
        # how deep to draft, the same for all: drafting itself must pay, and a plain round needs none of it
        theta, self._depth, self._budget = rows / cost(rows), 0, 0
        for depth in sorted({d for d in DEPTHS if d < self.max_k} | {self.max_k}):
            spent = self.costs.drafting([depth] * rows)
            schedule = best_schedule([a[:depth] for a in older], self.costs.verifying(rows, prompt_tokens, spent))
            if schedule.theta > theta:
                theta, self._depth, self._budget = schedule.theta, depth, sum(schedule.lengths)
        return self._probed([self._depth] * rows, self.max_k)

    def _before(self, request: int) -> list[float]:
        """The survivals of a request's last draft, continued by the estimate where it was shorter than a block."""
        known = self._older.get(request, [])
        last, found = (known[-1] if known else 1.0), list(known)
        for c in self.estimate.conditional(request)[len(known) :]:
            last *= c
            found.append(last)
        return found

    def cut(self, requests, proposed, confidence):
        if confidence is None:
            return list(proposed)
        if not self.confident:  # from the next round on drafts are cut afterwards
            self.confident = True
            return list(proposed)
        now = [survivals(c) for c in confidence]
        self._older.update(zip(requests, now))
        cost = self.costs.verifying(self._rows, self._prompt_tokens, self.costs.drafting(proposed))
        if self.early:
            self.last = prefix_schedule(now, cost)
        elif self.deterministic:
            self.last = best_schedule(now, cost)
        else:
            self.last = take(now, max(1, self._budget), cost)
        return list(self.last.lengths)

    def forget(self, request: int) -> None:
        super().forget(request)
        self._older.pop(request, None)


NAMES = ("none", "fixed", "uniform", "prefix")
"""The policies that are compared."""
ALL = (*NAMES, "early")
"""And algorithm 1 with its early stop, which sticks where the cost has steps."""


def make(
    name: str, costs: RoundCosts, k: int, max_k: int, confident: bool = False, deterministic: bool = True
) -> Policy:
    """The policy of a name: none, fixed (with K = k), uniform, prefix or early. Raises SettingsError."""
    if name == "none":
        return Fixed(0)
    if name == "fixed":
        return Fixed(k)
    if name == "uniform":
        return Uniform(costs, max_k)
    if name in ("prefix", "early"):
        return Prefix(costs, max_k, confident, deterministic, name == "early")
    raise SettingsError(f"There is no policy {name[:40]!r}: choose one of {', '.join(ALL)}.")
