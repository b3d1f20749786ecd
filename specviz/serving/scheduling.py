"""How many drafts of each request to verify, given how likely they are to survive and what a pass costs.

Pure functions over survival probabilities and a cost. Knows no model, no device and no clock. The survival of slot j
of request r is a[r][j] = c[r][0] * ... * c[r][j], the chance that the draft and all before it are accepted; it never
rises along a request. A round verifies B = sum over requests of (1 + drafts) tokens, is expected to emit
tau = sum of (1 + survivals of the drafts it verifies) tokens, and takes cost(B) seconds: what is maximised is
theta = tau / cost(B), tokens per second.

Whether a draft is verified must not depend on what it turned out to be, or the text no longer follows the target: the
survival of slot j + 1 is known only once the draft of slot j is. So the walk below looks at a request's next
survival only after its last slot was admitted, and a rule that may stop there, at the first drop of theta
(`prefix_schedule`), can see nothing that it must not. The formulas are those of DSpark (arXiv 2607.05147, algorithm 1)
and of vLLM's dynamic speculation.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specviz.errors import SettingsError

Cost = Callable[[int], float]
"""Seconds of a round that verifies so many tokens, drafting included."""


# ----------------------------------------------------------------------------------------------- the cost


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a pass by its token count: measured or modelled points, and straight lines between them.

    A pass over more tokens is never cheaper than one over fewer, so dips are noise: neighbours that run backwards are
    pooled (isotonic least squares). Past the last point the slope of the upper half goes on.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self):
        sound = (
            len(self.tokens) == len(self.seconds) > 0
            and list(self.tokens) == sorted(set(self.tokens))
            and self.tokens[0] >= 1
            and all(math.isfinite(s) and s > 0 for s in self.seconds)
        )
        if not sound:
            raise SettingsError("A step table needs rising token counts, from 1 on, with a time above 0 for each.")
        object.__setattr__(self, "_smooth", tuple(_never_falling(self.seconds)))

    def __call__(self, tokens: int, rows: int = 1) -> float:
        """Seconds of a pass over so many tokens, however many rows they belong to; no tokens cost nothing."""
        if tokens <= 0:
            return 0.0
        xs, ys = self.tokens, self._smooth
        i = bisect_left(xs, tokens)
        if i == 0:
            return ys[0]
        if i == len(xs):
            middle = len(xs) // 2  # the slope of the upper half: the last two points alone may have been pooled
            slope = (ys[-1] - ys[middle]) / (xs[-1] - xs[middle]) if xs[-1] > xs[middle] else 0.0
            return ys[-1] + slope * (tokens - xs[-1])
        share = (tokens - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + share * (ys[i] - ys[i - 1])


def _never_falling(values: Sequence[float]) -> list[float]:
    """The closest sequence that never falls: blocks that run backwards take their mean."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, n = blocks.pop()
            mean, count = (before * n + mean * count) / (n + count), n + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


PassSeconds = Callable[[int, int], float]
"""Seconds of one pass over (tokens, rows)."""


@dataclass(frozen=True)
class RoundCosts:
    """What a round of speculative decoding costs, from the step tables of target and drafter."""

    target: PassSeconds
    draft: PassSeconds | None = None
    """Of one pass of the drafter; None: drafting is a lookup."""
    serial: bool = True
    """True: a draft of K tokens takes K passes. False: one pass over all slots of all requests."""
    fixed: float = 0.0
    """Seconds per round beside both: bookkeeping."""
    draft_fixed: float = 0.0
    """Seconds that drafting takes whenever anything is drafted, such as a lookup's."""
    draft_more: PassSeconds | None = None
    """Of a serial drafter's every further slot, where the first costs another time (with it a hybrid drafter makes its
    whole block); None: as the first."""

    def _slot(self, slot: int, rows: int) -> float:
        """Seconds of one slot of a serial drafter for so many rows."""
        return (self.draft_more if slot and self.draft_more is not None else self.draft)(rows, rows)

    def drafting(self, lengths: Sequence[int]) -> float:
        """Seconds to draft so many tokens for each request."""
        longest = max(lengths, default=0)
        if not longest:
            return 0.0
        if self.draft is None:
            return self.draft_fixed
        if not self.serial:
            return self.draft_fixed + self.draft(sum(lengths), sum(n > 0 for n in lengths))
        at = [sum(n > slot for n in lengths) for slot in range(longest)]
        return self.draft_fixed + sum(self._slot(slot, n) for slot, n in enumerate(at))

    def one_more(self, slot: int, count: int, before: int) -> float:
        """Seconds that drafting grows by when the slot gets its count-th request, `before` drafts being planned."""
        fixed = 0.0 if before else self.draft_fixed
        if self.draft is None:
            return fixed
        if self.serial:
            return fixed + self._slot(slot, count) - (self._slot(slot, count - 1) if count > 1 else 0.0)
        return fixed + self.draft(before + 1, count) - (self.draft(before, count) if before else 0.0)

    def round(self, lengths: Sequence[int], drafted: Sequence[int] | None = None, prompt_tokens: int = 0) -> float:
        """Seconds of a round that verifies `lengths` drafts, of `drafted` (by default as many), and reads
        `prompt_tokens` of other requests' prompts in the same pass."""
        tokens = sum(lengths) + len(lengths) + prompt_tokens
        return (
            self.drafting(lengths if drafted is None else drafted)
            + self.target(tokens, len(lengths) + (prompt_tokens > 0))
            + self.fixed
        )

    def reading(self, rows: int, prompt_tokens: int) -> float:
        """Seconds that reading so many prompt tokens adds to a plain round of `rows` requests."""
        return self.target(rows + prompt_tokens, rows) - self.target(rows, rows) if rows else 0.0

    def verifying(self, rows: int, prompt_tokens: int = 0, spent: float = 0.0) -> Cost:
        """Seconds by verified tokens that a round of `rows` requests spends on them, `spent` of it on drafting already.

        A prompt has to be read whatever is drafted, so what reading it adds to a plain round is no cost of the round's
        tokens: theta counts prompt tokens as worth what they cost. Otherwise a round that reads a long piece of a
        prompt would seem dear anyway, drafts in it nearly free, and drafts of a busy server would hold up those who
        wait.
        """
        spent += self.fixed - self.reading(rows, prompt_tokens)
        return lambda tokens: spent + self.target(tokens + prompt_tokens, rows)


# --------------------------------------------------------------------------------------------- the walk


class Step(NamedTuple):
    """One candidate that a scheduler looked at."""

    request: int
    slot: int
    """0 is the first draft."""
    survival: float
    tokens: int
    """B of the round if it is admitted."""
    theta: float
    """Expected tokens per second if it is admitted."""
    needed: float
    """What its survival had to exceed: theta before * (cost(B + 1) - cost(B)). Admitting pays exactly then."""


@dataclass(frozen=True)
class Schedule:
    """How many drafts of each request are verified, and how that was found."""

    lengths: tuple[int, ...]
    expected: float
    """tau: tokens that the round is expected to emit, bonus tokens included."""
    theta: float
    steps: tuple[Step, ...] = ()
    """All that were looked at, in order; the first sum(lengths) of them are verified."""
    plain: float = 0.0
    """theta of verifying nothing."""


def candidates(survivals: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, float]]:
    """(request, slot, survival), likeliest first. Asking for the next one admits the last.

    A request's next survival is read only when its last slot has been admitted. Ties are broken by slot, then by
    request, never by anything that depends on tokens. Survivals of 0 are left out.
    """
    heap = [(-row[0], 0, r) for r, row in enumerate(survivals) if len(row) and row[0] > 0]
    heapq.heapify(heap)
    while heap:
        negative, slot, request = heapq.heappop(heap)
        yield request, slot, -negative
        row = survivals[request]
        if slot + 1 < len(row) and row[slot + 1] > 0:
            # survivals never rise; a rounding error must not let a slot overtake the one before it
            heapq.heappush(heap, (max(negative, -row[slot + 1]), slot + 1, request))


Drafting = Callable[[int, int, int], float]
"""Extra seconds of drafting when (slot) gets its (count)-th request, (so many) drafts being planned already. Only for
schedules that are made before anything is drafted."""


def prefix_schedule(survivals: Sequence[Sequence[float]], cost: Cost, drafting: Drafting | None = None) -> Schedule:
    """Algorithm 1 of DSpark: admit candidates, likeliest first, and stop at the first that does not raise theta.

    Lossless for drafts that are drawn by chance, for nothing past the stop is looked at. On a cost with steps it may
    stop too early: see `budget` and `best_schedule`.
    """
    return _walk(survivals, cost, True, drafting)


def best_schedule(survivals: Sequence[Sequence[float]], cost: Cost, drafting: Drafting | None = None) -> Schedule:
    """The lengths with the greatest theta of all. It looks past a drop, so it is lossless only where survivals do not
    depend on chance in the present draft: drafts chosen without chance, or survivals estimated from the past.

    With `drafting` it is the best of those that take the likeliest drafts first: drafting a slot for a first request
    costs more than for a second, which the order does not know.
    """
    return _walk(survivals, cost, False, drafting)


def _walk(
    survivals: Sequence[Sequence[float]], cost: Cost, stop_early: bool, drafting: Drafting | None = None
) -> Schedule:
    rows = len(survivals)
    if not rows:
        return Schedule((), 0.0, 0.0)
    plain = rows / cost(rows)
    tokens, tau, last = rows, float(rows), plain
    best, best_tau, kept = plain, tau, 0
    steps: list[Step] = []
    at_slot: list[int] = []
    seconds = cost(rows)
    drafted = 0.0
    for request, slot, survival in candidates(survivals):
        if drafting is not None:
            at_slot += [0] * (slot + 1 - len(at_slot))
            at_slot[slot] += 1
            drafted += drafting(slot, at_slot[slot], len(steps))
        tokens, tau, before = tokens + 1, tau + survival, seconds
        seconds = cost(tokens) + drafted
        needed, last = last * (seconds - before), tau / seconds
        steps.append(Step(request, slot, survival, tokens, last, needed))
        if last > best:
            best, best_tau, kept = last, tau, len(steps)
        elif stop_early:
            break
    return Schedule(_lengths(rows, steps[:kept]), best_tau, best, tuple(steps), plain)


def _lengths(rows: int, steps: Sequence[Step]) -> tuple[int, ...]:
    lengths = [0] * rows
    for step in steps:
        lengths[step.request] += 1
    return tuple(lengths)


def budget(older: Sequence[Sequence[float]], cost: Cost) -> int:
    """How many drafts, of all requests together, were best to verify by *older* survivals. It may look past drops of
    theta, because older survivals know nothing of the present drafts."""
    return sum(best_schedule(older, cost).lengths)


def take(survivals: Sequence[Sequence[float]], most: int, cost: Cost) -> Schedule:
    """The `most` likeliest drafts. With `most` from a `budget` this is lossless for drawn drafts: no later slot can
    push out an earlier one of its request, and the number ignores the present."""
    rows = len(survivals)
    if not rows:
        return Schedule((), 0.0, 0.0)
    tokens, tau = rows, float(rows)
    plain = last = tau / cost(tokens)
    steps: list[Step] = []
    if most > 0:
        for request, slot, survival in candidates(survivals):
            needed = last * (cost(tokens + 1) - cost(tokens))
            tokens, tau = tokens + 1, tau + survival
            last = tau / cost(tokens)
            steps.append(Step(request, slot, survival, tokens, last, needed))
            if len(steps) == most:
                break
    return Schedule(_lengths(rows, steps), tau, last, tuple(steps), plain)


def fixed_schedule(available: Sequence[int], k: int) -> tuple[int, ...]:
    """K drafts of every request, or as many as it has."""
    return tuple(min(k, n) for n in available)


def uniform_goodput(
    rates: Sequence[float],
    rows: int,
    round_seconds: Callable[[int], float],
    before: int | None = None,
    hysteresis: float = 0.05,
) -> int:
    """vLLM's dynamic rule: the one K for all requests with the most goodput, 0 included.

    rates: the chance that draft 1, 2, ... is accepted, not conditional on those before it; round_seconds(k): of a
    round with K = k for all `rows`. `before`: the K in use, kept unless another is better by `hysteresis`. The fewest
    drafts win a tie.
    """
    if rows < 1:
        return 0
    goodput = [rows * (1 + sum(rates[:k])) / round_seconds(k) for k in range(len(rates) + 1)]
    best = max(range(len(goodput)), key=lambda k: (goodput[k], -k))
    if before is not None and before < len(goodput) and goodput[best] <= (1 + hysteresis) * goodput[before]:
        return before
    return best


def survivals(conditional: Iterable[float]) -> list[float]:
    """Running products of conditional survivals, each held in 0..1."""
    found, running = [], 1.0
    for c in conditional:
        running *= min(1.0, max(0.0, c))
        found.append(running)
    return found


# -------------------------------------------------------------------------- survival, learnt from the past


class SurvivalEstimate:
    """How likely a draft is to survive, learnt from past verdicts alone, for drafters that do not say.

    Per slot a pooled rate of all requests, and per request one rate of its own, shrunk to the pool as long as little
    is known of it. Old verdicts fade. It never sees the present draft, so a schedule made from it cannot depend on
    what was drafted, and any schedule is lossless.
    """

    def __init__(self, slots: int, prior: float = 0.5, fade: float = 0.98, own_weight: float = 8.0):
        """prior: the rate before anything is known. fade: what a verdict still counts after the next one.
        own_weight: how many verdicts of a request weigh as much as the pool."""
        self.slots, self.prior, self.fade, self.own_weight = slots, prior, fade, own_weight
        self._pool = [[0.0, 0.0] for _ in range(slots)]
        """Per slot: survived, judged."""
        self._own: dict[int, list[float]] = {}
        """Per request: survived and judged, over all slots."""

    def observe(self, request: int, verified: int, accepted: int) -> None:
        """A verdict: of `verified` drafts the first `accepted` survived, and the next, if there is one, did not."""
        own = self._own.setdefault(request, [0.0, 0.0])
        for slot in range(min(verified, accepted + 1, self.slots)):
            survived = float(slot < accepted)
            pool = self._pool[slot]
            pool[0], pool[1] = self.fade * pool[0] + survived, self.fade * pool[1] + 1
            own[0], own[1] = self.fade * own[0] + survived, self.fade * own[1] + 1

    def forget(self, request: int) -> None:
        """The request has ended."""
        self._own.pop(request, None)

    def conditional(self, request: int | None = None) -> list[float]:
        """P(slot survives | all before did), per slot; of a request, or of the pool."""
        pool: list[float] = []
        for hits, seen in self._pool:  # a slot of which little is known is taken to be like the one before it
            pool.append((hits + 2 * (pool[-1] if pool else self.prior)) / (seen + 2))
        hits, seen = self._own.get(request, (0.0, 0.0))
        return [(self.own_weight * rate + hits) / (self.own_weight + seen) for rate in pool]

    def of(self, request: int | None = None) -> list[float]:
        """a[j] per slot."""
        return survivals(self.conditional(request))


# ------------------------------------------------------------------------------- the paper's counterexample

PAPER_COST: Cost = {1: 1.0, 2: 1 / 0.5, 3: 1 / 0.45}.__getitem__
"""Seconds by tokens: the paper's steps per second are 1, 0.5 and 0.45 at 1, 2 and 3 tokens."""
PAPER_FIRST = 0.8
"""Survival of the first draft; of the second it is as much, or nothing, depending on what the first draft was."""
