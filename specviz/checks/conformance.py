"""Conformance checks of a drafter: the protocol of `drafters/base.py`, and lossless decoding. One Check per rule.

The drafter is called directly with the target's hidden states, as the loop calls it; greedy equality and the
distribution of sampled texts are checked with the decoding loop and accept rule (`checks.lossless`). A rule that could
not be tested, because nothing was drafted, counts as failed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from specviz.checks import lossless, statistics
from specviz.drafters.base import Drafter, Request
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.loop import decode, start_drafter
from specviz.engine.model_store import STORE, ModelStore
from specviz.engine.request import RunRequest
from specviz.engine.sequence import Row
from specviz.errors import SpecVizError
from specviz.loader.pairs import find_pair
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import dense
from specviz.sampling.rejection import uniform
from specviz.trace.records import MAX_K, Settings
from specviz.worker import Job

Make = Callable[[Settings], Drafter]
ALPHA = 1e-4
"""A chi-square p-value below this means that the drafts are not distributed as q."""
BINS = 20
CLOSE = 1e-4
"""Tolerance per token between two q that should be equal: sums in another order round differently."""
CAPACITY = 128
ROWS = 32
"""Rows that are started at once to sample from q: after a proposal a row must be committed or dropped."""
K = 5


@dataclass(frozen=True)
class Check:
    """Result of one rule."""

    name: str
    passed: bool
    seen: str


class _Failed(Exception):
    """A rule is violated; the message says how."""


def run(
    name: str,
    pair: str = "toy",
    *,
    draws: int = 2000,
    samples: int = 600,
    device: str = "auto",
    precision: str = "auto",
    store: ModelStore = STORE,
    job: Job | None = None,
) -> list[Check]:
    """All checks of a drafter on a pair, in the order of the protocol. Raises SpecVizError if the pair or the drafter
    cannot be loaded; violations are in the checks."""
    job, found = job or Job(), find_pair(pair)
    opened = store.open(found.target, device, precision, job)
    texts, sampled, raw = lossless.texts_for(found.name)
    bench_order = RunRequest(pair, name, sampled, Settings(k=K), raw=raw, device=device, precision=precision)
    bench = lossless.Bench(bench_order, store)
    prompts = [list(bench.ids(text)) for text in texts[:3]]

    def make(settings: Settings) -> Drafter:
        return make_drafter(name, found, opened, settings, store)

    checks: list[Check] = []
    for title, work in _demands(make, opened.model, prompts, draws):
        job.report(title)
        job.check()
        checks.append(_checked(title, work))
        if title == PROTOCOL and not checks[0].passed:
            return checks  # nothing else can be tested
    for title, work in (
        (
            "greedy texts are those of plain decoding",
            lambda: _require_lossless(lossless.greedy(bench, texts[:6], K, lossless.GREEDY_TOKENS)),
        ),
        (
            "sampled texts follow the target's own law",
            lambda: _require_lossless(
                lossless.check(
                    pair, name, K, 1.0, samples, prompts=1, device=device, precision=precision, store=store
                ).sampling
            ),
        ),
    ):
        job.report(title)
        job.check()
        checks.append(_checked(title, work))
    return checks


PROTOCOL = "it can be made and has the attributes of the protocol"


def _checked(title: str, work: Callable[[], str]) -> Check:
    try:
        return Check(title, True, work())
    except _Failed as failed:
        return Check(title, False, str(failed))
    except SpecVizError as error:  # it broke the protocol, or failed
        return Check(title, False, str(error))


def _require_lossless(half: lossless.Greedy | lossless.Sampling | None) -> str:
    if half is None:
        raise _Failed("sampling could not be checked")
    if half.verdict != "lossless":
        raise _Failed(half.sentence)
    return half.sentence


def _demands(
    make: Make, target: CausalModel, prompts: list[list[int]], draws: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    yield PROTOCOL, lambda: _attributes(make)
    yield f"K from 0 to {MAX_K}, shapes and sums of every proposal", lambda: _every_k(make, target, prompts[0])
    yield "batches of 3 rows with ragged K and commits", lambda: _ragged(make, target, prompts)
    yield "the same seed gives the same proposals", lambda: _repeatable(make, target, prompts)
    yield "proposing leaves no trace: rejected drafts are forgotten", lambda: _rollback(make, target, prompts[0])
    yield "a row does not depend on its neighbours", lambda: _independent(make, target, prompts)
    yield "a dropped row can be started again", lambda: _dropped(make, target, prompts[0])
    yield "q is the law of the drafts", lambda: _law(make, target, prompts[0], draws)
    yield "rows of a batch of 3 say what they say alone", lambda: _batch(make, target, prompts)


@dataclass(frozen=True)
class _Drafts:
    """Proposed tokens and dense q [K, V], by row."""

    tokens: list[list[int]]
    draft_probs: list[torch.Tensor]


class _Feed:
    """A drafter that is called directly, and the texts of its rows; hidden states come from the target's forward."""

    def __init__(self, make: Make, target: CausalModel, temperature: float = 1.0):
        self.target = target
        self.drafter = make(Settings(temperature=temperature))
        self.texts: dict[int, list[int]] = {}
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def _taps(self, row: int, first: int, last: int) -> torch.Tensor | None:
        """[last - first, taps * D] of a row's tokens first..last - 1."""
        taps, tokens = self.drafter.taps, self.texts[row][:last]
        if not taps:
            return None
        if first == last:
            width = len(taps) * self.target.hidden_size
            return torch.empty(0, width, dtype=self.target.dtype, device=self.target.device)
        if tuple(tokens) not in self._known:
            cache = self.target.new_cache()
            cache.add(0, len(tokens))
            out = self.target.forward(cache, [0], [tokens], taps, logits=False)
            if out.taps is None:
                raise _Failed(f"the target gives no hidden states of the layers {list(taps)}")
            self._known[tuple(tokens)] = out.taps[0]
        return self._known[tuple(tokens)][first:]

    def start(self, row: int, prompt: Sequence[int]) -> _Feed:
        self.texts[row] = list(prompt)
        start_drafter(
            self.target,
            self.drafter,
            Row(row, 0, tuple(prompt), CAPACITY),
            self._taps(row, 0, len(prompt) - 1),
            CAPACITY,
        )
        return self

    def requests(self, ks: dict[int, int], seed: int = 0) -> list[Request]:
        fitting = {row: min(k, self.drafter.max_k) for row, k in ks.items()}
        return [
            Request(row, self.texts[row][-1], k, tuple(uniform(seed, 1000 * row, slot, "draft") for slot in range(k)))
            for row, k in fitting.items()
        ]

    def propose(self, ks: dict[int, int], seed: int = 0) -> _Drafts:
        """Its proposal of ks[row] tokens per row."""
        found = self.drafter.propose(self.requests(ks, seed)).on_host()
        return _Drafts([[int(t) for t in row] for row in found.tokens], [dense(q) for q in found.draft_probs])

    def commit(self, row: int, emitted: Sequence[int]) -> None:
        before = len(self.texts[row])
        self.texts[row] += emitted
        after = len(self.texts[row])
        self.drafter.commit(row, list(emitted), self._taps(row, before - 1, after - 1))


def _attributes(make: Make) -> str:
    drafter = make(Settings())
    taps = f"taps {list(drafter.taps)}" if drafter.taps else "no taps"
    return f"{drafter.name}: at most {drafter.max_k} drafts, {taps}, {'one pass' if drafter.parallel else 'serial'}"


def _every_k(make: Make, target: CausalModel, prompt: list[int]) -> str:
    drafted = []
    for temperature in (0.0, 1.0):
        feed = _Feed(make, target, temperature).start(0, prompt)
        for k in range(MAX_K + 1):
            if k:
                drafted.append(len(feed.propose({0: k}, seed=k).tokens[0]))
            feed.commit(0, [prompt[k % len(prompt)]])
    if not any(drafted):
        raise _Failed("it never drafted anything, so nothing can be put to the test")
    return f"{sum(drafted)} drafts in {len(drafted)} rounds, greedy and sampled"


def _ragged(make: Make, target: CausalModel, prompts: list[list[int]]) -> str:
    feed = _Feed(make, target)
    for row, prompt in enumerate(prompts):
        feed.start(row, prompt)
    rounds = 0
    for ks, lengths in (({0: 1, 1: 7, 2: 3}, (1, 2, 1)), ({2: 5, 0: 2}, (3, 1, 1)), ({1: MAX_K}, (1, 4, 2))):
        feed.propose(ks)
        rounds += 1
        for row, n in enumerate(lengths):
            feed.commit(row, (prompts[row] * 4)[:n])
    feed.drafter.drop(1)
    feed.propose({0: 4, 2: 4})
    return f"{rounds + 1} rounds with 1 to 3 rows, K from 1 to {MAX_K}, commits of 1 to 4 tokens"


def _repeatable(make: Make, target: CausalModel, prompts: list[list[int]]) -> str:
    def once() -> list[_Drafts]:
        feed = _Feed(make, target)
        for row, prompt in enumerate(prompts):
            feed.start(row, prompt)
        out = [feed.propose({0: K, 1: K, 2: K}, seed=1)]
        for row in range(3):
            feed.commit(row, [prompts[row][0]])
        return [*out, feed.propose({0: K, 2: 2}, seed=2)]

    for n, (one, other) in enumerate(zip(once(), once())):
        _same(one, other, f"two fresh drafters with the same uniforms differ in round {n + 1}")
    return "two fresh drafters, two rounds: token for token, and the same q"


def _rollback(make: Make, target: CausalModel, prompt: list[int]) -> str:
    """Proposals depend on the emitted tokens, never on rejected drafts."""
    compared = 0
    for temperature, kept in itertools.product((0.0, 1.0), range(3)):
        asked = _Feed(make, target, temperature).start(0, prompt)
        drafts = asked.propose({0: K}, seed=3).tokens[0]
        accepted = drafts[: min(kept, len(drafts))]
        refused = drafts[len(accepted)] if len(accepted) < len(drafts) else -1
        emitted = [*accepted, next(t for t in range(target.vocab_size) if t != refused)]
        fresh = _Feed(make, target, temperature).start(0, prompt)
        for seed in (4, 5):
            asked.commit(0, emitted)
            fresh.commit(0, emitted)
            _same(
                asked.propose({0: K}, seed),
                fresh.propose({0: K}, seed),
                f"after {len(accepted)} of {len(drafts)} drafts were accepted it drafts other than if it had never "
                "proposed: something of the rejected drafts is left",
            )
            compared, emitted = compared + 1, [prompt[0]]
    return f"{compared} proposals after 0, 1 and 2 accepted drafts equal those of a drafter that had not proposed"


def _independent(make: Make, target: CausalModel, prompts: list[list[int]]) -> str:
    together = _Feed(make, target)
    for row, prompt in enumerate(prompts):
        together.start(row, prompt)
    for round_ in range(3):
        if round_ == 2:
            together.drafter.drop(1)
        rows = [row for row in range(3) if row != 1 or round_ < 2]
        got = together.propose(dict.fromkeys(rows, K), seed=round_)
        for at, row in enumerate(rows):
            alone = _Feed(make, target).start(row, prompts[row])
            if together.texts[row] != prompts[row]:
                alone.commit(row, together.texts[row][len(prompts[row]) :])
            _same(
                _part(got, at),
                alone.propose({row: K}, seed=round_),
                f"row {row} drafts other among {len(rows)} rows than alone",
            )
        for row in rows:
            together.commit(row, [prompts[0][0]])
    return "3 rounds of 3 and 2 rows: each row drafts what it drafts alone"


def _dropped(make: Make, target: CausalModel, prompt: list[int]) -> str:
    feed = _Feed(make, target).start(0, prompt)
    first = feed.propose({0: K}, seed=6)
    feed.commit(0, [*first.tokens[0][:1], prompt[0]])
    feed.drafter.drop(0)
    feed.start(0, prompt)
    _same(first, feed.propose({0: K}, seed=6), "a row that was dropped and started again drafts other than before")
    return "the same proposal before and after"


def _law(make: Make, target: CausalModel, prompt: list[int], draws: int) -> str:
    """A chi-square test of the drafts against q, per slot over BINS bins; of slot 1 also token by token.

    The randomised probability integral transform v = q(tokens below) + w q(draft), w uniform, is uniform if and only if
    the draft is sampled from q given the tokens before it.
    """
    bins, first, first_q = _sampled_places(make, target, prompt, draws)
    tested = [slot for slot in range(K) if bins[slot].total() >= 10 * BINS]
    if not tested:
        return f"every q of {draws} proposals was one-hot and the draft its only token: not sampled"
    p_values: dict[str, float] = {}
    for slot in tested:
        found = statistics.chi_square([bins[slot][b] for b in range(BINS)], [1 / BINS] * BINS).p_value
        if found is not None:
            p_values[f"slot {slot + 1}"] = found
    if first_q is not None:
        exact = statistics.chi_square([first[t] for t in range(len(first_q))], first_q.tolist()).p_value
        if exact is not None:
            p_values["tokens of slot 1"] = exact
    worst = min(p_values, key=lambda name: p_values[name])
    corrected = min(1.0, p_values[worst] * len(p_values))
    text = (
        f"{draws} proposals, chi-square on {len(p_values)} counts: the smallest p-value, corrected, is {corrected:.2g}"
    )
    if corrected < ALPHA:
        raise _Failed(f"{text} ({worst}): the drafts are not drawn from the q that it states")
    return text


def _sampled_places(
    make: Make, target: CausalModel, prompt: list[int], draws: int
) -> tuple[list[Counter[int]], Counter[int], torch.Tensor | None]:
    """Counts of v by slot and bin, counts of slot 1's tokens, and slot 1's q (None if it was always one-hot)."""
    feed = _Feed(make, target)
    bins: list[Counter[int]] = [Counter() for _ in range(K)]
    first: Counter[int] = Counter()
    first_q: torch.Tensor | None = None
    for n in range(0, draws, ROWS):
        rows = range(n, min(n + ROWS, draws))
        for row in rows:
            feed.start(row, prompt)
        got = feed.propose(dict.fromkeys(rows, K), seed=100)
        for i, row in enumerate(rows):
            feed.drafter.drop(row)
            for slot, (token, q) in enumerate(zip(got.tokens[i], got.draft_probs[i])):
                if float(q.max()) == 1.0:
                    continue  # not sampled: q is one-hot
                place = float(q[:token].sum()) + uniform(row, 0, slot, "accept") * float(q[token])
                bins[slot][min(BINS - 1, int(BINS * place))] += 1
                if slot == 0:
                    first[token] += 1
                    first_q = q if first_q is None else first_q
    return bins, first, first_q


def _batch(make: Make, target: CausalModel, prompts: list[list[int]]) -> str:
    """With the decoding loop: K of 1, 4 and 16, sampled and greedy."""
    runs = 0
    for k, temperature in itertools.product((1, 4, MAX_K), (0.0, 1.0)):
        settings = Settings(k=k, temperature=temperature, max_new_tokens=16)
        together = _decoded(target, make(settings), prompts, settings, [0, 1, 2])
        for row, prompt in enumerate(prompts):
            alone = _decoded(target, make(settings), [prompt], settings, [row])[0]
            if together[row] != alone:
                at = next(i for i, (a, b) in enumerate(itertools.zip_longest(together[row], alone)) if a != b)
                raise _Failed(
                    f"with K = {k} at temperature {temperature:g} row {row} says other than alone from its "
                    f"token {at + 1} on"
                )
        runs += 1
    return f"{runs} runs of 16 tokens with K of 1, 4 and {MAX_K}, greedy and sampled"


def _decoded(target: CausalModel, drafter: Drafter, prompts, settings: Settings, seeds: list[int]) -> list[list[int]]:
    said: list[list[int]] = [[] for _ in prompts]
    for round_ in decode(target, drafter, prompts, settings, seeds=seeds, record=False):
        for verdict in round_.rows:
            said[verdict.row] += verdict.emitted
    return said


def _part(drafts: _Drafts, at: int) -> _Drafts:
    return _Drafts([drafts.tokens[at]], [drafts.draft_probs[at]])


def _same(one: _Drafts, other: _Drafts, otherwise: str) -> None:
    """Raises _Failed with `otherwise` and the first difference."""
    for i, (a, b) in enumerate(zip(one.tokens, other.tokens)):
        if a != b:
            raise _Failed(f"{otherwise} ({a} and {b})")
        gap = float((one.draft_probs[i] - other.draft_probs[i]).abs().max()) if a else 0.0
        if gap > CLOSE:
            raise _Failed(f"{otherwise} (the same tokens, but q differs by {gap:.2g})")
