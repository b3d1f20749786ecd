"""Verify lengths by survival and cost: the prefix scheduler of DSpark and vLLM's uniform goodput rule.

Pure functions over survival probabilities and a cost. The survival of slot j of request r is
a[r][j] = c[r][0] * ... * c[r][j], the probability that the draft and all before it are accepted; it never rises along a
request. A round verifies B = sum over requests of (1 + drafts) tokens, is expected to emit
tau = sum of (1 + survivals of the verified drafts) tokens, and takes cost(B) seconds; theta = tau / cost(B), in tokens
per second, is maximised.

Whether a draft is verified must not depend on its own token, or the text no longer follows the target: the survival of
slot j + 1 is known only once slot j is drafted. `candidates` therefore reads a request's next survival only after its
previous slot was admitted, and a rule that stops at the first drop of theta (`prefix_schedule`) reads nothing that it
must not. Formulas: DSpark (arXiv 2607.05147, algorithm 1) and vLLM's dynamic speculation.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specviz.errors import SettingsError

Cost = Callable[[int], float]
"""Seconds of a round by its number of verified tokens, drafting included."""


# ----------------------------------------------------------------------------------------------- cost


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a pass by its token count: measured or modelled points with linear interpolation.

    A pass over more tokens is never cheaper than one over fewer, so dips are noise: the points are made monotone by
    isotonic least squares. Beyond the last point the slope of the upper half continues.
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    _monotone: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sound = (
            len(self.tokens) == len(self.seconds) > 0
            and list(self.tokens) == sorted(set(self.tokens))
            and self.tokens[0] >= 1
            and all(math.isfinite(s) and s > 0 for s in self.seconds)
        )
        if not sound:
            raise SettingsError("A step table needs rising token counts, from 1 on, with a time above 0 for each.")
        object.__setattr__(self, "_monotone", tuple(_isotonic(self.seconds)))

    def __call__(self, tokens: int, rows: int = 1) -> float:
        """Seconds of a pass over this number of tokens; 0 tokens take no time. The number of rows does not matter."""
        if tokens <= 0:
            return 0.0
        xs, ys = self.tokens, self._monotone
        i = bisect_left(xs, tokens)
        if i == 0:
            return ys[0]
        if i == len(xs):
            middle = len(xs) // 2  # the slope of the upper half: the last two points alone may have been pooled
            slope = (ys[-1] - ys[middle]) / (xs[-1] - xs[middle]) if xs[-1] > xs[middle] else 0.0
            return ys[-1] + slope * (tokens - xs[-1])
        share = (tokens - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[i - 1] + share * (ys[i] - ys[i - 1])


def _isotonic(values: Sequence[float]) -> list[float]:
    """Isotonic least squares by pooling adjacent violators: the closest sequence that never falls."""
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
    """Seconds of a speculative round, from the step tables of target and drafter."""

    target: PassSeconds
    draft: PassSeconds | None = None
    """Of one pass of the drafter; None: drafting is a lookup."""
    serial: bool = True
    """True: a draft of K tokens takes K passes. False: one pass over all slots of all requests."""
    fixed: float = 0.0
    """Seconds per round besides drafting and the target's pass: bookkeeping."""
    draft_fixed: float = 0.0
    """Seconds of drafting that do not depend on its length, such as a lookup's."""
    draft_more: PassSeconds | None = None
    """Of a serial drafter's second and later slots, where the first takes longer (a hybrid drafter's first slot
    contains its block pass); None: as the first."""

    def _slot_seconds(self, draft: PassSeconds, slot: int, rows: int) -> float:
        """Seconds of one slot of a serial drafter for `rows` rows."""
        return (self.draft_more if slot and self.draft_more is not None else draft)(rows, rows)

    def drafting(self, lengths: Sequence[int]) -> float:
        """Seconds to draft `lengths` tokens, by request."""
        longest = max(lengths, default=0)
        if not longest:
            return 0.0
        if self.draft is None:
            return self.draft_fixed
        if not self.serial:
            return self.draft_fixed + self.draft(sum(lengths), sum(n > 0 for n in lengths))
        rows = [sum(n > slot for n in lengths) for slot in range(longest)]
        return self.draft_fixed + sum(self._slot_seconds(self.draft, slot, n) for slot, n in enumerate(rows))

    def one_more(self, slot: int, count: int, before: int) -> float:
        """Extra seconds of drafting when `slot` gets its count-th request and `before` drafts are already planned."""
        fixed = 0.0 if before else self.draft_fixed
        if self.draft is None:
            return fixed
        if self.serial:
            fewer = self._slot_seconds(self.draft, slot, count - 1) if count > 1 else 0.0
            return fixed + self._slot_seconds(self.draft, slot, count) - fewer
        return fixed + self.draft(before + 1, count) - (self.draft(before, count) if before else 0.0)

    def round(self, lengths: Sequence[int], drafted: Sequence[int] | None = None, prompt_tokens: int = 0) -> float:
        """Seconds of a round that verifies `lengths` of `drafted` drafts (by default all), by request, and prefills
        `prompt_tokens` tokens of other requests in the same pass."""
        tokens = sum(lengths) + len(lengths) + prompt_tokens
        return (
            self.drafting(lengths if drafted is None else drafted)
            + self.target(tokens, len(lengths) + (prompt_tokens > 0))
            + self.fixed
        )

    def prefill(self, rows: int, prompt_tokens: int) -> float:
        """Extra seconds of a plain round of `rows` requests that also prefills `prompt_tokens` tokens."""
        return self.target(rows + prompt_tokens, rows) - self.target(rows, rows) if rows else 0.0

    def verifying(self, rows: int, prompt_tokens: int = 0, spent: float = 0.0) -> Cost:
        """Seconds of a round of `rows` requests by its verified tokens; `spent` seconds of it went to drafting.

        A prompt must be prefilled whatever is drafted, so the seconds that prefill adds to a plain round are left out.
        Otherwise a round with a long prompt chunk would look expensive anyway and its drafts nearly free, and a busy
        server's drafts would delay the waiting requests.
        """
        spent += self.fixed - self.prefill(rows, prompt_tokens)
        return lambda tokens: spent + self.target(tokens + prompt_tokens, rows)


# --------------------------------------------------------------------------------------------- schedules


class Step(NamedTuple):
    """One candidate draft that a scheduler considered."""

    request: int
    slot: int
    """0 is the first draft."""
    survival: float
    tokens: int
    """B of the round if it is admitted."""
    theta: float
    """Expected tokens per second if it is admitted."""
    needed: float
    """theta before * (cost(B + 1) - cost(B)): admitting raises theta exactly if the survival exceeds this."""


@dataclass(frozen=True)
class Schedule:
    """The number of drafts of each request to verify, and the candidates that were considered."""

    lengths: tuple[int, ...]
    expected: float
    """tau: tokens that the round is expected to emit, bonus tokens included."""
    theta: float
    steps: tuple[Step, ...] = ()
    """All that were considered, in order; the first sum(lengths) of them are verified."""
    plain: float = 0.0
    """theta of verifying nothing."""


def candidates(survivals: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, float]]:
    """Yields (request, slot, survival), likeliest first. Advancing the iterator admits the previous candidate.

    A request's next survival is read only when its previous slot has been admitted. Ties are broken by slot, then by
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
"""Extra seconds of drafting when (slot) gets its (count)-th request and (n) drafts are already planned. Only for
schedules that are made before drafting."""


def prefix_schedule(survivals: Sequence[Sequence[float]], cost: Cost, drafting: Drafting | None = None) -> Schedule:
    """Algorithm 1 of DSpark: admit candidates, likeliest first, and stop at the first that does not raise theta.

    Lossless for sampled drafts, because no survival past the stop is read. On a cost with steps it may stop too early:
    see `budget` and `best_schedule`.
    """
    return _schedule(survivals, cost, True, drafting)


def best_schedule(survivals: Sequence[Sequence[float]], cost: Cost, drafting: Drafting | None = None) -> Schedule:
    """The lengths with the highest theta of all. It reads survivals past a drop of theta, so it is lossless only where
    survivals do not depend on sampled tokens of this draft: deterministic drafts, or estimates from past verdicts.

    With `drafting` it is the best among the schedules that take the likeliest drafts first: drafting a slot for its
    first request costs more than for the second, which this order ignores.
    """
    return _schedule(survivals, cost, False, drafting)


def _schedule(
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
    """The best total number of drafts to verify by *older* survivals. It may read past drops of theta, because older
    survivals do not depend on the present drafts."""
    return sum(best_schedule(older, cost).lengths)


def likeliest_schedule(survivals: Sequence[Sequence[float]], most: int, cost: Cost) -> Schedule:
    """The `most` likeliest drafts. With `most` from a `budget` this is lossless for sampled drafts: no later slot can
    displace an earlier one of its request, and the number does not depend on the present drafts."""
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


def uniform_goodput(
    rates: Sequence[float],
    rows: int,
    round_seconds: Callable[[int], float],
    before: int | None = None,
    hysteresis: float = 0.05,
) -> int:
    """vLLM's dynamic rule: the one K for all requests with the highest goodput, 0 included.

    rates: the probability that draft 1, 2, ... is accepted, not conditional on those before it; round_seconds(k): of a
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
    """Running products of conditional survivals, each clamped to 0..1."""
    found, running = [], 1.0
    for c in conditional:
        running *= min(1.0, max(0.0, c))
        found.append(running)
    return found


# -------------------------------------------------------------------------- survival from past verdicts


class SurvivalEstimate:
    """Estimates survival from past verdicts, for drafters without confidences.

    Per slot a pooled rate over all requests, and per request one rate over all slots, shrunk towards the pool while few
    verdicts are known. Older verdicts are discounted. The estimate never depends on the present draft, so every
    schedule from it is lossless.
    """

    def __init__(self, slots: int, prior: float = 0.5, fade: float = 0.98, own_weight: float = 8.0):
        """prior: the rate before any verdict. fade: discount factor of all earlier verdicts at each new one.
        own_weight: number of a request's verdicts that weigh as much as the pool."""
        self.slots, self.prior, self.fade, self.own_weight = slots, prior, fade, own_weight
        self._pool = [[0.0, 0.0] for _ in range(slots)]
        """Per slot: survived, judged."""
        self._own: dict[int, list[float]] = {}
        """Per request: survived and judged, over all slots."""

    def observe(self, request: int, verified: int, accepted: int) -> None:
        """Add a verdict: of `verified` drafts the first `accepted` survived, and the next, if any, did not."""
        own = self._own.setdefault(request, [0.0, 0.0])
        for slot in range(min(verified, accepted + 1, self.slots)):
            survived = float(slot < accepted)
            pool = self._pool[slot]
            pool[0], pool[1] = self.fade * pool[0] + survived, self.fade * pool[1] + 1
            own[0], own[1] = self.fade * own[0] + survived, self.fade * own[1] + 1

    def forget(self, request: int) -> None:
        """Drop the rate of an ended request."""
        self._own.pop(request, None)

    def conditional(self, request: int | None = None) -> list[float]:
        """P(slot survives | all before did), per slot; of a request, or of the pool (None)."""
        pool: list[float] = []
        for hits, seen in self._pool:  # a slot with few verdicts is shrunk towards the one before it
            pool.append((hits + 2 * (pool[-1] if pool else self.prior)) / (seen + 2))
        hits, seen = (0.0, 0.0) if request is None else self._own.get(request, (0.0, 0.0))
        return [(self.own_weight * rate + hits) / (self.own_weight + seen) for rate in pool]

    def of(self, request: int | None = None) -> list[float]:
        """a[j] per slot."""
        return survivals(self.conditional(request))


# ------------------------------------------------------------------------------- the paper's counterexample

PAPER_COST: Cost = {1: 1.0, 2: 1 / 0.5, 3: 1 / 0.45}.__getitem__
"""Seconds by tokens: the paper's steps per second are 1, 0.5 and 0.45 at 1, 2 and 3 tokens."""
PAPER_FIRST = 0.8
"""Survival of the first draft; of the second it is the same or 0, depending on the first draft's token."""
