"""How good a drafter is: live, through the decoding loop, and teacher-forced, on stored texts. Trains nothing."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from specviz.drafters.base import Drafter, Request
from specviz.engine.loop import decode
from specviz.models.causal import CausalModel
from specviz.trace import calibration, metrics
from specviz.trace.records import Round, Settings
from specviz.training.corpus import distinct4
from specviz.worker import Job

LOOPING = 0.6
"""A text with a smaller share of distinct runs of four tokens than this is a loop, reported apart."""


@dataclass(frozen=True)
class Live:
    """What the decoding loop measured. Lengths count the bonus token; passes are verify passes."""

    mean_acceptance_length: float | None
    mean_acceptance_length_ci: tuple[float, float] | None
    """95 %, bootstrap over prompts"""
    mean_acceptance_length_without_loops: float | None
    acceptance_by_position: list[float]
    """Of all rounds that drafted (unconditional)"""
    survival_by_position: list[float | None]
    """Conditional on all drafts before"""
    overlap_by_position: list[float | None]
    """Mean of sum(min(p, q)) where it was judged: the expectation of survival_by_position"""
    distinct_4: float
    looping_prompts: int
    prompts: int
    tokens_per_second: float
    plain_tokens_per_second: float | None
    identical_to_plain: int | None
    """At temperature 0: how many of the texts equal plain decoding's"""
    first_differences: list[float]
    """Where a text differed from plain decoding: the gap of the target's two largest logits at that place"""
    calibration_error: float | None = None
    """Of the confidence product, over all judged and unjudged slots"""
    auc: float | None = None
    by_prompt: tuple[tuple[int, int], ...] = ()
    """Emitted tokens and passes of each prompt: what intervals are drawn from"""

    def as_json(self) -> dict:
        """All but the counts by prompt."""
        return {k: v for k, v in asdict(self).items() if k != "by_prompt"}


def gain(before: Live, after: Live, draws: int = 2000) -> tuple[float, float, float]:
    """How much longer `after` accepts than `before` on the same prompts: the difference of their mean acceptance
    lengths and its 95 % interval, by a paired bootstrap over prompts. Needs at least two prompts, the same for both."""
    pairs = list(zip(before.by_prompt, after.by_prompt, strict=True))
    if len(pairs) < 2:
        raise ValueError("an interval over prompts needs at least two")

    def difference(picked: Sequence[tuple[tuple[int, int], tuple[int, int]]]) -> float:
        first, second = ([pair[side] for pair in picked] for side in (0, 1))
        return _pooled(second) - _pooled(first)

    chance = random.Random(0)
    drawn = sorted(difference(chance.choices(pairs, k=len(pairs))) for _ in range(draws))
    return difference(pairs), drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


def by_kind(kinds: Sequence[str], found: Live) -> dict[str, tuple[float, float, float, int]]:
    """Mean acceptance length by kind of text, its 95 % interval by a bootstrap over prompts, and the number of prompts.
    kinds: of each prompt of `found`. With one prompt the interval is the value itself."""
    result = {}
    for kind in dict.fromkeys(kinds):
        counts = [count for of, count in zip(kinds, found.by_prompt, strict=True) if of == kind]
        low, high = _interval(counts) or (_pooled(counts),) * 2
        result[kind] = _pooled(counts), low, high, len(counts)
    return result


def _pooled(counts: Sequence[tuple[int, int]]) -> float:
    return sum(tokens for tokens, _ in counts) / sum(passes for _, passes in counts)


def _decoded(
    target: CausalModel,
    make: Callable[[Settings], Drafter] | None,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    rows: int,
    job: Job | None = None,
) -> tuple[list[list[Round]], float]:
    """The rounds of every prompt by itself (of a batch: its own part of each), and the seconds of all."""
    runs: list[list[Round]] = []
    seconds = 0.0
    for at in range(0, len(prompts), rows):
        batch = prompts[at : at + rows]
        seeds = [settings.seed + at + i for i in range(len(batch))]
        found: list[list[Round]] = [[] for _ in batch]
        for round_ in decode(target, make and make(settings), batch, settings, seeds=seeds, record=make is not None):
            seconds += round_.seconds
            for verdict in round_.rows:
                found[verdict.row].append(replace(round_, rows=(verdict,)))
        runs += found
        if job is not None:
            job.report(f"{len(runs)} of {len(prompts)} prompts", len(runs) / len(prompts))
            job.check()
    return runs, seconds


def plain_texts(
    target: CausalModel, prompts: Sequence[Sequence[int]], settings: Settings, rows: int = 1
) -> tuple[list[list[int]], float]:
    """Each prompt decoded without a drafter, `rows` at a time: the texts, and tokens per second."""
    runs, seconds = _decoded(target, None, prompts, settings, rows)
    texts = [_text(run) for run in runs]
    return texts, sum(map(len, texts)) / seconds


def live(
    target: CausalModel,
    make: Callable[[Settings], Drafter],
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    plain: tuple[list[list[int]], float] | None = None,
    job: Job | None = None,
    rows: int = 1,
) -> Live:
    """Decode every prompt with a fresh drafter, `rows` at a time (which changes the speed, but not what is accepted).
    plain: from `plain_texts` with the same settings and rows."""
    runs, seconds = _decoded(target, make, prompts, settings, rows, job)
    rounds = [r for run in runs for r in run]
    texts = [_text(run) for run in runs]
    steady = [run for run, text in zip(runs, texts) if distinct4(text) >= LOOPING]
    confidences, survived = _confidences(rounds)
    same, gaps = None, []
    if plain and settings.temperature == 0:
        same = sum(a == b for a, b in zip(texts, plain[0]))
        gaps = [_gap(run, a, b) for run, a, b in zip(runs, texts, plain[0]) if a != b]
    by_prompt = tuple((sum(len(v.emitted) for r in run for v in r.rows), sum(len(r.rows) for r in run)) for run in runs)
    return Live(
        metrics.mean_acceptance_length(rounds),
        _interval(by_prompt),
        metrics.mean_acceptance_length([r for run in steady for r in run]) if steady else None,
        metrics.position_rates(rounds),
        metrics.survival_rates(rounds),
        _overlaps(rounds),
        statistics.mean(map(distinct4, texts)),
        len(runs) - len(steady),
        len(prompts),
        sum(map(len, texts)) / seconds,
        plain[1] if plain else None,
        same,
        gaps,
        calibration.expected_error(confidences, survived),
        calibration.auc(confidences, survived),
        by_prompt,
    )


def draft_seconds(
    target: CausalModel, make: Callable[[Settings], Drafter], prompt: Sequence[int], ks: Sequence[int], repeats: int = 7
) -> dict[int, float]:
    """Median seconds of one proposal of K tokens for one row, by K."""
    drafter = make(Settings())
    cache = target.new_cache()
    cache.add(0, len(prompt))
    taps = target.forward(cache, [0], [prompt[:-1]], drafter.taps, logits=False).taps
    drafter.start(0, prompt, taps[0] if taps else None, len(prompt) + 64)
    found = {}
    for k in [k for k in ks if k <= drafter.max_k]:
        request = Request(0, prompt[-1], k, (0.5,) * k)
        times = []
        for _ in range(repeats + 2):
            begun = time.perf_counter()
            drafter.propose([request])
            times.append(time.perf_counter() - begun)
            drafter.commit(0, [], None) if not drafter.taps else None
        found[k] = statistics.median(times[2:])
    return found


def _text(rounds: Sequence[Round]) -> list[int]:
    return [t for r in rounds for v in r.rows for t in v.emitted]


def _interval(by_prompt: Sequence[tuple[int, int]], draws: int = 2000) -> tuple[float, float] | None:
    """Bootstrap over prompts of pooled emitted tokens per pass."""
    if len(by_prompt) < 2:
        return None
    chance = random.Random(0)
    means = sorted(_pooled(chance.choices(by_prompt, k=len(by_prompt))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def _overlaps(rounds: Sequence[Round]) -> list[float | None]:
    by_slot: list[list[float]] = []
    for round_ in rounds:
        for verdict in round_.rows:
            for slot, position in enumerate(verdict.positions):
                if position.verdict in ("accepted", "rejected"):
                    while len(by_slot) <= slot:
                        by_slot.append([])
                    by_slot[slot].append(position.overlap)
    return [statistics.mean(x) if x else None for x in by_slot]


def _confidences(rounds: Sequence[Round]) -> tuple[list[float], list[float]]:
    """The running product of confidences, and whether all drafts up to there were accepted, for every slot. Empty for a
    drafter that gives none."""
    products, happened = [], []
    for round_ in rounds:
        for verdict in round_.rows:
            product = 1.0
            for slot, position in enumerate(verdict.positions[: verdict.verified]):
                if position.confidence is None:
                    return [], []
                product *= position.confidence
                products.append(product)
                happened.append(float(verdict.accepted > slot))
    return products, happened


def _gap(run: Sequence[Round], text: Sequence[int], other: Sequence[int]) -> float:
    """The gap of the target's two largest logits where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    for round_ in run:
        for verdict in round_.rows:
            if at < len(verdict.emitted):
                top = sorted(verdict.positions[at].target_logits, reverse=True)
                return top[0] - top[1]
            at -= len(verdict.emitted)
    return float("nan")
