"""The losslessness check on real runs: greedy texts compared token by token, sampled texts by a chi-square test.

Both sides use the decoding loop (`engine.loop.decode`), once with the drafter and once without. A check without
evidence, because nothing was drafted or too little was sampled, is inconclusive and never passes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from specviz.checks import statistics
from specviz.drafters.base import Drafter
from specviz.drafters.names import check_drafter
from specviz.engine import prompts as prompting
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.loop import decode
from specviz.engine.model_store import STORE, LoadedModel, ModelStore
from specviz.engine.request import RunRequest
from specviz.errors import NotFiniteError, SettingsError
from specviz.loader import load_model
from specviz.loader.pairs import find_pair
from specviz.loader.toy import sentence
from specviz.models.causal import CausalModel
from specviz.trace.records import Settings, Trace
from specviz.worker import Job

Verdict = Literal["lossless", "differs", "inconclusive"]
ALPHA = 1e-3
"""A p-value below this says that the two distributions differ: a false alarm in a thousand checks."""
LEAST_SAMPLES = 200
"""With fewer samples the check is inconclusive."""
LEAST_SHARE = 0.01
"""Drafts judged per sample below which the check is inconclusive."""
FIRST = 3
"""How many of the first new tokens are compared in sampling."""
ROWS = 32
"""Rows that are sampled at once."""
NEAR_TIE = {"fp32": 1e-3, "fp16": 0.05, "bf16": 0.5, "int4": 1e-3}
"""Gap between the two largest logits below which rounding alone may swap them, by precision: a pass over K + 1
positions sums in another order than a pass over one."""


@dataclass(frozen=True)
class Difference:
    """The first difference of a greedy text from plain decoding."""

    prompt: int
    """Which prompt, from 0."""
    token: int
    """Which new token, from 0."""
    plain: int
    speculative: int | None
    """Token ids; None: the speculative text had ended."""
    gap: float
    """Between the two largest logits of plain decoding there."""
    near_tie: bool


@dataclass(frozen=True)
class Greedy:
    """Greedy runs with and without drafts."""

    runs: int
    identical: int
    tokens: int
    drafted: int
    differences: tuple[Difference, ...]

    @property
    def near_ties(self) -> int:
        return sum(d.near_tie for d in self.differences)

    @property
    def verdict(self) -> Verdict:
        if any(not d.near_tie for d in self.differences):
            return "differs"
        return "lossless" if self.runs and self.drafted else "inconclusive"

    @property
    def sentence(self) -> str:
        if not self.drafted:
            return "Greedy: nothing was drafted, so nothing was put to the test."
        text = f"Greedy: {self.identical} of {self.runs} texts identical to plain decoding, token by token"
        for d in self.differences[:3]:
            tie = "a near tie: rounding decides" if d.near_tie else "no tie"
            text += (
                f"; text {d.prompt + 1} first differs at token {d.token + 1}, where the two best logits are "
                f"{d.gap:.2g} apart ({tie})"
            )
        return f"{text}. {self.drafted} drafts verified, {self.tokens} tokens compared."


@dataclass(frozen=True)
class Sampling:
    """Short runs with and without drafts, compared by the counts of their first tokens."""

    samples: int
    """Runs with drafts, and as many without."""
    p_values: tuple[float | None, ...]
    """Two-sample chi-square at the first, second, ... new token; None where no test was possible."""
    total_variations: tuple[float, ...]
    by_chance: tuple[float, ...]
    """The total variations that two samples of this size show by chance."""
    drafted: int
    judged: int
    """Drafts that were accepted or rejected."""

    @property
    def p_value(self) -> float | None:
        """The smallest p-value, corrected for looking at several tokens."""
        known = [p for p in self.p_values if p is not None]
        return min(1.0, min(known) * len(known)) if known else None

    @property
    def total_variation(self) -> float | None:
        return max(self.total_variations, default=None)

    @property
    def verdict(self) -> Verdict:
        if self.p_value is not None and self.p_value < ALPHA:
            return "differs"
        tested = self.judged >= max(1, LEAST_SHARE * self.samples)
        enough = self.samples >= LEAST_SAMPLES and self.p_value is not None
        return "lossless" if tested and enough else "inconclusive"

    @property
    def sentence(self) -> str:
        text = f"Sampling: {self.samples} short runs each way, {self.judged} drafts judged. "
        if not self.judged:
            return text + "Nothing was drafted, so nothing was put to the test."
        if self.p_value is None:
            return text + "Every run said the same, or too few did not: no test is possible."
        worst = self.total_variations.index(self.total_variation)
        each = ", ".join("none" if p is None else f"{p:.3g}" for p in self.p_values)
        text += (
            f"Chi-square on the first {len(self.p_values)} tokens: p-value {self.p_value:.3g} (corrected for as "
            f"many tests; singly {each}). Total variation up to {self.total_variation:.3f}, where chance alone "
            f"gives about {self.by_chance[worst]:.3f}."
        )
        if self.samples < LEAST_SAMPLES:
            text += f" {LEAST_SAMPLES} runs are the least that prove anything."
        return text


@dataclass(frozen=True)
class Finding:
    """Result of a check; a half that was not requested is None."""

    greedy: Greedy | None = None
    sampling: Sampling | None = None
    fault: str = ""
    """Why the check ended early: weights or logits that are NaN or infinite, in a sentence."""

    @property
    def verdict(self) -> Verdict:
        """inconclusive after a fault; else differs if any half does, lossless if every requested half is."""
        if self.fault:
            return "inconclusive"
        halves = [half.verdict for half in (self.greedy, self.sampling) if half is not None]
        if "differs" in halves:
            return "differs"
        return "lossless" if halves and set(halves) == {"lossless"} else "inconclusive"

    def plain(self) -> dict:
        """As JSON values: what `check --json` prints. greedy_identical counts texts; near ties are no difference in
        distribution; chi2_p is the smallest p-value, corrected for the number of tests."""
        g, s = self.greedy, self.sampling
        return {
            "greedy_identical": g.identical if g else None,
            "greedy_runs": g.runs if g else 0,
            "near_ties": g.near_ties if g else 0,
            "first_differences": [asdict(d) for d in g.differences] if g else [],
            "chi2_p": s.p_value if s else None,
            "total_variation": s.total_variation if s else None,
            "drafted": (g.drafted if g else 0) + (s.drafted if s else 0),
            "verdict": self.verdict,
            **({"fault": self.fault} if self.fault else {}),
        }


# ------------------------------------------------------------------------------------------- the engine


class Bench:
    """The loaded pair and drafter of an RunRequest, to decode short texts with and without drafts."""

    def __init__(
        self,
        order: RunRequest,
        store: ModelStore = STORE,
        job: Job | None = None,
    ):
        self.order, self.job = order, job or Job()
        self.pair, self.store, loading = find_pair(order.pair), store, self.job.part(0.0, 0.0)
        check_drafter(self.pair, order.drafter)
        if order.drafter == "autoregressive":
            load_model.check(self.pair, loading)  # before anything large is fetched
        self.target: LoadedModel = store.open(self.pair.target, order.device, order.precision, loading)

    def drafter(self) -> Drafter:
        """A fresh drafter over shared weights, with the order's own temperature, top-k and top-p."""
        part = self.job.part(0.0, 0.0)
        return make_drafter(self.order.drafter, self.pair, self.target, self.order.settings, self.store, part)

    def ids(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, encoded with the order's settings."""
        room = self.target.model.prompt_room(self.order.settings.max_new_tokens)
        return tuple(prompting.encode(self.target.tokenizer, text, self.order.system, self.order.raw, room).ids)

    def plain_greedy(self, ids: Sequence[int], against: Sequence[int], most: int) -> tuple[int, tuple | None]:
        """Decode without drafts up to the first difference from `against`.

        Returns the number of equal tokens, and (token index, plain token, gap) at the first difference, or None.
        """
        settings = Settings(k=0, temperature=0.0, max_new_tokens=most)
        agreed = 0
        for at, round_ in enumerate(decode(self.target.model, None, [ids], settings)):
            self.job.check()
            verdict = round_.rows[0]
            token = verdict.emitted[0]
            if at >= len(against) or against[at] != token:
                best = sorted(verdict.positions[0].target_logits, reverse=True)
                return at, (at, token, best[0] - best[1])
            agreed = at + 1
        return agreed, None

    def speculative_greedy(self, ids: Sequence[int], k: int, most: int) -> tuple[list[int], int]:
        """(tokens, drafts verified) of a greedy run with drafts."""
        settings = Settings(k=k, temperature=0.0, max_new_tokens=most)
        tokens: list[int] = []
        drafted = 0
        for round_ in decode(self.target.model, self.drafter(), [ids], settings, record=False):
            self.job.check()
            tokens += round_.rows[0].emitted
            drafted += round_.rows[0].verified
        return tokens, drafted

    def sample(
        self,
        ids: Sequence[int],
        settings: Settings,
        seeds: Sequence[int],
        drafts: bool,
    ) -> tuple[list[list[int]], int, int]:
        """The first FIRST new tokens of one short run per seed: (token lists, drafts verified, drafts judged)."""
        settings = replace(settings, k=settings.k if drafts else 0, max_new_tokens=FIRST + settings.k + 1)
        texts: list[list[int]] = [[] for _ in seeds]
        drafted = judged = 0
        steps = decode(
            self.target.model,
            self.drafter() if drafts else None,
            [ids] * len(seeds),
            settings,
            seeds=seeds,
            record=False,
        )
        for round_ in steps:
            self.job.check()
            for v in round_.rows:
                texts[v.row] += v.emitted
                drafted += v.verified
                judged += v.accepted + (v.kind == "leftover")
            if all(len(texts[v.row]) >= FIRST or v.finished for v in round_.rows):
                break
        steps.close()
        return [text[:FIRST] for text in texts], drafted, judged


def top_gap(model: CausalModel, tokens: Sequence[int]) -> float:
    """The difference of the two largest logits after these tokens."""
    cache = model.new_cache()
    cache.add(0, len(tokens))
    best = model.forward(cache, [0], [tokens], logits=[1]).logits[0][0].topk(2).values
    return float(best[0] - best[1])


def greedy(bench: Bench, texts: Sequence[str], k: int, tokens: int) -> Greedy:
    """Greedy decoding of each prompt with and without drafts, `tokens` new tokens each."""
    identical = compared = drafted = 0
    differences = []
    for i, text in enumerate(texts):
        bench.job.report(f"Greedy, prompt {i + 1} of {len(texts)}", i / len(texts))
        ids = bench.ids(text)
        said, verified = bench.speculative_greedy(ids, k, tokens)
        agreed, difference = bench.plain_greedy(ids, said, tokens)
        drafted, compared = drafted + verified, compared + agreed
        if difference is None:
            identical += 1
        else:
            differences.append(_difference(bench, i, said, difference))
    return Greedy(len(texts), identical, compared, drafted, tuple(differences))


def _difference(bench: Bench, prompt: int, said: Sequence[int], difference: tuple[int, int, float]) -> Difference:
    at, plain, gap = difference
    return Difference(
        prompt,
        at,
        plain,
        said[at] if at < len(said) else None,
        gap,
        at < len(said) and gap <= NEAR_TIE[bench.target.precision],
    )


def sampling(bench: Bench, ids: Sequence[int], settings: Settings, samples: int) -> Sampling:
    """`samples` short runs with and without drafts from one prompt, compared at each of their first tokens."""
    counts: list[list[Counter[int]]] = [[Counter() for _ in range(FIRST)] for _ in range(2)]
    drafted = judged = 0
    batches = [range(first, min(first + ROWS, samples)) for first in range(0, samples, ROWS)]
    for n, batch in enumerate(batches):
        for way in (0, 1):
            bench.job.report(f"Sampling, {batch.start} of {samples} runs each way", (n + way / 2) / len(batches))
            # different seeds: with shared random numbers the two would agree more than independent samples
            seeds = [settings.seed + 1 + 2 * i + way for i in batch]
            texts, verified, looked_at = bench.sample(ids, settings, seeds, drafts=way == 0)
            drafted, judged = drafted + verified, judged + looked_at
            for text in texts:
                for at in range(FIRST):
                    counts[way][at][text[at] if at < len(text) else -1] += 1  # -1: the text had ended
    fast, plain = counts
    return Sampling(
        samples,
        tuple(statistics.two_samples(a, b).p_value for a, b in zip(fast, plain)),
        tuple(statistics.total_variation(a, b) or 0.0 for a, b in zip(fast, plain)),
        tuple(statistics.total_variation_by_chance(a, b) or 0.0 for a, b in zip(fast, plain)),
        drafted,
        judged,
    )


# ------------------------------------------------------------------------------------- the checks


PROMPTS = (
    *(p.text for p in prompting.PRESETS),
    "Name the planets of the solar system in order.",
    "Write a haiku about rain on a tin roof.",
    "Count from one to twenty in words.",
    "What is the capital of Norway, and what is it known for?",
    "Repeat this sentence three times: the kettle is on the stove.",
    "Explain to a child why the sky is blue.",
    "Write a limerick about a tired postman.",
    "Give me a recipe for pancakes with three ingredients.",
    "Write a SQL query that counts orders per customer.",
    "Summarise in one sentence: the meeting was moved from Monday to Tuesday because the room was taken.",
    "List the months that have thirty days.",
    "Write an e-mail of two lines that declines an invitation.",
    "What rhymes with light? Give five words.",
    "Write a regular expression for a date such as 2024-05-17 and explain it.",
)
"""Twenty prompts for greedy checks: talk, code, lists, copies."""
GREEDY_TOKENS = 32
SAMPLED = "The cat and the dog and the"
"""The text that sampling goes on from, as it is: short, with many good next words, and with words that come again, so
that a lookup drafts too."""


def texts_for(pair: str) -> tuple[tuple[str, ...], str, bool]:
    """(greedy prompts, sampling prompt, raw) for a pair: the toy pair speaks six words."""
    if pair != "toy":
        return PROMPTS, SAMPLED, False
    words = ("the", "cat", "dog", "sees", "and", ".")
    chance = random.Random(0)
    texts = [" ".join(words[t] for t in sentence(chance)[: chance.randrange(2, 6)]) for _ in PROMPTS]
    return tuple(texts), "the cat the the dog", True


def check(
    pair: str,
    drafter: str,
    k: int,
    temperature: float = 1.0,
    samples: int = 400,
    *,
    prompts: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    store: ModelStore = STORE,
    job: Job | None = None,
) -> Finding:
    """Greedy over the first `prompts` of twenty prompts (None: all), then, at a temperature above 0 and with samples,
    sampling each way. Weights or logits that are NaN or infinite make it inconclusive. Raises SpecVizError with a
    sentence, Stopped."""
    if k < 1:
        raise SettingsError("K must be at least 1 for a check: with K = 0 nothing is drafted, so nothing is proved.")
    if not 0 <= samples <= 10**6:
        raise SettingsError(f"samples must be from 0 to 1,000,000, not {samples}.")
    texts, sampled, raw = texts_for(pair)
    order = RunRequest(
        pair, drafter, sampled, Settings(k=k, max_new_tokens=GREEDY_TOKENS), raw=raw, device=device, precision=precision
    )
    settings = replace(order.settings, temperature=temperature)
    found = None
    try:
        found = greedy(Bench(order, store, job), texts[:prompts], k, GREEDY_TOKENS)
        if temperature == 0 or not samples:
            return Finding(found)
        bench = Bench(replace(order, settings=settings, raw=True), store, job)
        return Finding(found, sampling(bench, bench.ids(sampled), settings, samples))
    except NotFiniteError as error:
        return Finding(found, fault=str(error))


def order_of(trace: Trace, device: str = "auto") -> RunRequest:
    """The RunRequest that would decode a trace's first row again."""
    prompt = trace.prompts[0]
    return RunRequest(
        trace.pair,
        trace.drafter,
        prompt.text,
        trace.settings,
        system=prompt.system,
        raw=prompt.raw,
        device=device,
        precision=trace.machine.precision,
    )


def check_run(
    trace: Trace,
    samples: int,
    *,
    store: ModelStore = STORE,
    job: Job | None = None,
) -> Finding:
    """The check of one run: a greedy run's tokens against plain decoding of the same prompt on this machine; for a
    sampled run, short runs with and without drafts from its prompt with its K, temperature, top-k and top-p."""
    try:
        return _checked_run(trace, samples, Bench(order_of(trace), store, job))
    except NotFiniteError as error:
        return Finding(fault=str(error))


def _checked_run(trace: Trace, samples: int, bench: Bench) -> Finding:
    if trace.settings.temperature > 0:
        return Finding(sampling=sampling(bench, trace.prompts[0].token_ids, trace.settings, samples))
    identical = compared = drafted = 0
    differences = []
    for row, prompt in enumerate(trace.prompts):
        bench.job.report(f"Plain decoding, row {row + 1} of {len(trace.prompts)}", row / len(trace.prompts))
        said = trace.token_ids(row)
        agreed, difference = bench.plain_greedy(prompt.token_ids, said, len(said)) if said else (0, None)
        identical, compared = identical + (difference is None), compared + agreed
        drafted += sum(v.verified for _, v in trace.row_rounds(row))
        if difference is not None:
            differences.append(_difference(bench, row, said, difference))
    return Finding(Greedy(len(trace.prompts), identical, compared, drafted, tuple(differences)))
