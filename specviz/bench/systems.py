"""Systems of the benchmark: a name, a way to decode, measured rates and texts; SpecViz's own, and the choice of K."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specviz.bench import peers
from specviz.bench.same_task import Departure
from specviz.drafters.base import Drafter
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.loop import Measurements, decode
from specviz.engine.model_store import LoadedModel, ModelStore
from specviz.loader.pairs import Pair
from specviz.trace.records import Settings
from specviz.worker import Job

PICKING_TURNS = 2


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Size of a benchmark: prompts, tokens, repetitions and time limit."""

    picking: int
    prompts: int
    tokens: int
    steps: int
    picking_tokens: int
    seconds: float
    """Time limit of the whole run. Beyond it slow systems decode fewer of the prompts."""
    least: int
    """Minimum number of prompts of each system."""
    assisted: int
    """Number of settings among which the best assisted generation is searched."""


FULL = Scale(picking=3, prompts=20, tokens=128, steps=60, picking_tokens=128, seconds=1320, least=6, assisted=6)


QUICK = Scale(picking=1, prompts=3, tokens=48, steps=15, picking_tokens=24, seconds=180, least=3, assisted=0)


@dataclass
class System:
    """A system that decodes, with its measured rates and texts by prompt."""

    name: str
    setting: str
    precision: str
    run: peers.Run
    k: int | None = None
    drafter: str = ""
    """Drafter of our own speculative systems."""
    rates: dict[int, float] = field(default_factory=dict)
    texts: dict[int, list[list[int]]] = field(default_factory=dict)
    spent: list[peers.Generation] = field(default_factory=list)
    seconds: float = 0.0
    """Of the last group of prompts, including prefill; used to plan the run."""
    departs: Departure | None = None
    """First difference of its texts from plain decoding by more than rounding: it decoded another task."""

    @property
    def rate(self) -> float:
        """Tokens per second, the median over prompts."""
        return statistics.median(self.rates.values()) if self.rates else 0.0

    @property
    def label(self) -> str:
        """Name on screen."""
        return f"{self.name} {self.setting}" + (f", K = {self.k}" if self.k else "") + f" ({self.precision})"

    def measure(self, index: int, group: peers.Group, tokens: int) -> None:
        """Decode a group of prompts and store rate and texts under `index`."""
        began = time.perf_counter()
        generation = self.run(group, tokens)
        self.seconds = time.perf_counter() - began
        if generation.rate is not None:
            self.rates[index] = generation.rate
        self.texts[index] = generation.texts
        self.spent.append(generation)


def plain_system(target: LoadedModel) -> System:
    """Our plain decoding."""
    return System("specviz", "plain", target.precision, decode_run(target, lambda s: None, 0), 0)


def decode_run(
    target: LoadedModel, make: Callable[[Settings], Drafter | None], k: int, eos_ids: frozenset[int] | None = None
) -> peers.Run:
    """A `run` with our decoding loop. make: returns a fresh drafter, or None for plain decoding."""

    def run(group: peers.Group, tokens: int) -> peers.Generation:
        settings = Settings(k=k, max_new_tokens=tokens)
        drafter, measured = make(settings), Measurements()
        texts: list[list[int]] = [[] for _ in group]
        draft = verify = other = 0.0
        passes = 0
        began = time.perf_counter()
        for round_ in decode(target.model, drafter, group, settings, eos_ids=eos_ids, record=False, measured=measured):
            for verdict in round_.rows:
                texts[verdict.row] += verdict.emitted
            passes += len(round_.rows)
            draft, verify = draft + round_.draft_seconds, verify + round_.verify_seconds
            other += round_.other_seconds
        # all seconds of the loop count, also those outside the timed sections of a round
        seconds = time.perf_counter() - began - measured.prefill_seconds
        return peers.Generation(
            texts, sum(map(len, texts)) / seconds, passes, draft, verify, max(other, seconds - draft - verify)
        )

    return run


def pick_k(
    pair: Pair,
    target: LoadedModel,
    name: str,
    ks: Sequence[int],
    groups: Sequence[peers.Group],
    tokens: int,
    store: ModelStore,
    job: Job,
) -> System:
    """A drafter's system at the K with the highest geometric mean rate on these groups, which are decoded in turn."""

    def make(settings: Settings) -> Drafter:
        return make_drafter(name, pair, target, settings, store)

    most = make(Settings()).max_k
    tries = [
        System("specviz", name, target.precision, decode_run(target, make, k), k)
        for k in [k for k in ks if 0 < k <= most] or [most]
    ]
    tries[0].run(groups[0], 8)
    for turn in range(PICKING_TURNS):
        for index, group in enumerate(groups):
            for system in tries:
                job.report(f"Picking K for {name} in {target.precision}: {system.k}")
                system.measure(turn * len(groups) + index, group, tokens)
    # the geometric mean uses all texts; a median of few would be the rate of a single one
    best = max(tries, key=lambda s: statistics.geometric_mean(s.rates.values()) if s.rates else 0.0)
    # rates of picking are not reported: a new system that keeps only the seconds, for planning
    return System(
        "specviz", name, target.precision, best.run, best.k, name, rates={-1: best.rate}, seconds=best.seconds
    )
