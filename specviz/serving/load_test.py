"""Loads served under several policies on the same arrivals and seeds: on this machine's real engine, or simulated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specviz import worker
from specviz.drafters.names import check_drafter
from specviz.engine.prompts import encode, presets_for
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.loader.pairs import find_pair
from specviz.serving import policies, step_table
from specviz.serving.scheduling import RoundCosts
from specviz.serving.server import (
    Chances,
    Job,
    Limits,
    RealEngine,
    Record,
    Server,
    SimulatedEngine,
    Summary,
    TableClock,
    Tick,
    WallClock,
    arrivals,
    serve,
    summarise,
)
from specviz.trace.records import MAX_K, Settings
from specviz.worker import Worker


@dataclass(frozen=True)
class LoadOrder:
    """What arrives, and who serves it."""

    pair: str
    drafter: str
    policies: tuple[str, ...] = policies.NAMES
    """Names of policies; fixed may carry its K: fixed:3."""
    rate: float = 0.5
    """Requests a second on average."""
    seconds: float = 20.0
    """How long requests arrive; what runs then is served to its end, at most three times as long again."""
    burst: int = 1
    k: int = 4
    """Of the policy `fixed`."""
    max_k: int = 8
    """The most drafts that the other policies ask for."""
    lengths: tuple[int, int] = (16, 48)
    """New tokens of a request, from and to."""
    mix: tuple[str, ...] = ()
    """Names of presets; () takes all that suit the pair."""
    seeds: tuple[int, ...] = (0,)
    """One load per seed; each policy serves every one of them."""
    rows: int = 16
    cancel: float = 0.0
    """Share of requests that are cancelled at a random moment."""
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self):
        for name in self.policies:
            kind, _, k = name.partition(":")
            if kind not in policies.ALL or (k and (kind != "fixed" or not k.isdigit() or int(k) > MAX_K)):
                raise SettingsError(
                    f"There is no policy {name[:40]!r}: choose from {', '.join(policies.ALL)}, or "
                    "fixed:K with a K of your own."
                )
        if not (0 < self.rate <= 1e5 and 0 < self.seconds <= 1e5 and 1 <= self.burst <= 10_000):
            raise SettingsError("The rate, the seconds and the burst must be above 0.")
        if not (1 <= self.lengths[0] <= self.lengths[1] <= 4096 and 1 <= self.rows <= 100_000):
            raise SettingsError("Lengths must be from 1 to 4096 new tokens, rows from 1.")
        if not (0 <= self.k <= MAX_K and 1 <= self.max_k <= MAX_K and 0 <= self.cancel <= 1 and self.seeds):
            raise SettingsError(f"K lies in 0..{MAX_K}, the share of cancels in 0..1, and a seed is needed.")


@dataclass(frozen=True)
class Outcome:
    """One policy on one load."""

    policy: str
    seed: int
    summary: Summary
    ticks: tuple[Tick, ...]
    records: tuple[Record, ...]
    last: object = None
    """The scheduler's latest schedule that had candidates, for the one-step view."""


class LoadRun(Worker):
    """Serves the loads of an order on the real engine, policy after policy, and keeps an Outcome of each."""

    def __init__(self, order: LoadOrder, store=None):
        super().__init__()
        pair = find_pair(order.pair)
        check_drafter(pair, order.drafter)
        self.order, self.pair = order, pair
        self.outcomes: list[Outcome] = []
        self.live: Server | None = None
        """The server at work, to be looked at while it goes."""
        self.live_policy = ""
        self.table: step_table.StepTable | None = None
        self.device = ""
        self._store = store
        self._alone: dict[tuple[int, ...], list[int]] = {}

    def work(self) -> None:
        from specviz.engine.drafter_factory import make_drafter
        from specviz.engine.model_store import STORE

        store, order = self._store or STORE, self.order
        self.report("Opening the pair", 0.0)
        target = store.open(self.pair.target, order.device, order.precision, self.part(0.0, 0.0))
        self.device = target.device

        def fresh():
            return make_drafter(order.drafter, self.pair, target, order.settings, store, self.part(0.0, 0.0))

        key = step_table.key(target, order.pair, order.drafter, order.settings)
        self.table = step_table.cached(key)
        if self.table is None:
            part = self.part(0.0, 0.1, "Measuring the step table, once")
            self.table = step_table.measure(target, fresh, order.settings, key, job=part)
        prompts = _prompts(target.tokenizer, order, self.pair.name)
        drafter = fresh()
        limits = _limits(target, prompts, order, drafter.max_k)
        plan = [(seed, name) for seed in order.seeds for name in order.policies]
        for i, (seed, name) in enumerate(plan):
            if any(o.policy == name and o.seed == seed for o in self.outcomes):
                continue
            if self.stopping():
                return
            self.report(f"Serving with {name}", 0.1 + 0.9 * i / len(plan))
            self._serve(target, fresh(), name, seed, prompts, limits)
        self.live = None
        self.report("", 1.0)

    def _serve(self, target, drafter, name: str, seed: int, prompts, limits: Limits) -> None:
        order = self.order
        max_k = min(order.max_k, drafter.max_k)
        policy = _policy(
            name, self.table.costs, order.k, max_k, False, order.settings.temperature == 0 or order.drafter == "ngram"
        )
        engine = RealEngine(target.model, None if name == "none" else drafter, order.settings)
        jobs = arrivals(order.rate, order.seconds, prompts, order.lengths, seed, order.burst)
        chance = random.Random(seed)
        cancels = [
            (job.arrival + order.seconds * chance.random() / 4, job.id)
            for job in jobs
            if chance.random() < order.cancel
        ]
        server = Server(engine, policy, limits, WallClock())
        self.live, self.live_policy = server, name
        serve(server, jobs, cancels=cancels, until=4 * order.seconds, watch=self)
        if self.stopping():
            return  # a load that was cut short is no figure
        summary = replace(summarise(server, order.rate), policy=policy.name, **self._against_alone(target, server))
        self.outcomes.append(
            Outcome(name, seed, summary, tuple(server.ticks), tuple(server.records.values()), policy.last)
        )

    def _against_alone(self, target, server: Server) -> dict:
        """Every greedy text, as far as it came, against its text alone: Summary's `identical` and the fields after it.
        Nothing when sampled, where texts may differ by right, and where nothing was emitted."""
        from specviz.checks.lossless import NEAR_TIE, top_gap
        from specviz.engine.loop import decode

        if self.order.settings.temperature:
            return {}
        spoken = [r for r in server.records.values() if r.tokens]
        for record in spoken:
            prompt = record.job.prompt
            if prompt not in self._alone:
                self.report("Decoding each prompt alone, for comparison")
                settings = replace(self.order.settings, k=0, max_new_tokens=self.order.lengths[1])
                self._alone[prompt] = [
                    t for r in decode(target.model, None, [prompt], settings, record=False) for t in r.rows[0].emitted
                ]
        if not spoken:
            return {}
        gaps = []
        for record in spoken:
            alone = self._alone[record.job.prompt][: record.job.limit]
            if record.tokens == (alone if record.state == "finished" else alone[: len(record.tokens)]):
                continue
            at = next((i for i, (a, b) in enumerate(zip(alone, record.tokens)) if a != b), None)
            gaps.append(float("inf") if at is None else top_gap(target.model, [*record.job.prompt, *alone[:at]]))
        ties = [gap for gap in gaps if gap <= NEAR_TIE[target.precision]]
        return {
            "identical": not gaps,
            "near_ties": len(ties),
            "differing": len(gaps) - len(ties),
            "widest_gap": max(ties, default=None),
        }


def _prompts(tokenizer, order: LoadOrder, pair: str) -> list[tuple[int, ...]]:
    known = {p.name: p for p in presets_for(pair)}
    if unknown := [name for name in order.mix if name not in known]:
        raise SettingsError(f"There is no preset {unknown[0][:40]!r} for this pair: choose from {', '.join(known)}.")
    return [encode(tokenizer, known[name].text).ids for name in (order.mix or known)]


def _limits(target, prompts: Sequence[Sequence[int]], order: LoadOrder, max_k: int) -> Limits:
    """Slots that hold the longest request. Raises MemoryBudgetError if they do not fit the device."""
    from specviz.hardware.memory import free_memory_bytes

    tokens = max(map(len, prompts)) + order.lengths[1] + max_k + 1
    limits = Limits(order.rows, tokens)
    wanted = 2 * order.rows * tokens * target.model.shape.cache_bytes_per_token
    if wanted > (free := free_memory_bytes(target.device)):
        raise MemoryBudgetError(
            f"A cache for {order.rows} requests of {tokens} tokens needs {wanted / 2**30:.1f} GiB, "
            f"and {free / 2**30:.1f} GiB are free: lower the rows or the lengths."
        )
    return limits


def _policy(name: str, costs: RoundCosts, k: int, max_k: int, confident: bool, deterministic: bool):
    kind, _, own = name.partition(":")
    return policies.make(kind, costs, int(own) if own else k, max_k, confident, deterministic)


def simulate(
    order: LoadOrder,
    costs: RoundCosts,
    chances: Chances,
    limits: Limits,
    prompt: int = 200,
    watch: worker.Job | None = None,
    until: float | None = None,
) -> list[Outcome]:
    """The same loads and the same server without a model: time is `costs`, luck is `chances`."""
    found = []
    for seed in order.seeds:
        jobs: list[Job] = arrivals(order.rate, order.seconds, [(0,) * prompt], order.lengths, seed, order.burst)
        for name in order.policies:
            max_k = min(order.max_k, len(chances.conditional))
            policy = _policy(name, costs, order.k, max_k, chances.confident, False)
            server = serve(
                Server(SimulatedEngine(chances), policy, limits, TableClock(costs)), jobs, watch=watch, until=until
            )
            found.append(
                Outcome(
                    name,
                    seed,
                    summarise(server, order.rate),
                    tuple(server.ticks),
                    tuple(server.records.values()),
                    policy.last,
                )
            )
    return found


class Simulation(Worker):
    """`simulate` at several rates, in a thread that can be watched and stopped."""

    def __init__(
        self,
        order: LoadOrder,
        rates: Sequence[float],
        costs: RoundCosts,
        chances: Chances,
        limits: Limits,
        prompt: int = 200,
    ):
        super().__init__()
        self.order, self.rates, self.costs, self.chances = order, tuple(rates), costs, chances
        self.limits, self.prompt = limits, prompt
        self.outcomes: list[Outcome] = []

    def work(self) -> None:
        plan = [(rate, name) for rate in self.rates for name in self.order.policies]
        for i, (rate, name) in enumerate(plan):
            self.report(f"Simulating {name} at {rate:g} requests/s", i / len(plan))
            found = simulate(
                replace(self.order, rate=rate, policies=(name,)),
                self.costs,
                self.chances,
                self.limits,
                self.prompt,
                self,
                until=3 * self.order.seconds,
            )
            if self.stopping():
                return
            self.outcomes += found
        self.report("", 1.0)
