"""Load tests: the same arrivals and seeds served under several policies, on the real engine or in a simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specviz import worker
from specviz.drafters.names import check_drafter
from specviz.engine.prompts import encode, presets_for
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.loader.pairs import find_pair
from specviz.serving import policies, step_table
from specviz.serving.clocks import SimulatedClock, WallClock
from specviz.serving.engines import RealEngine, SimulatedEngine, SurvivalModel
from specviz.serving.requests import RequestRecord, ServerLimits, arrivals
from specviz.serving.scheduling import RoundCosts
from specviz.serving.server import RoundStats, Server, serve
from specviz.serving.summary import Summary, summarize
from specviz.trace.records import MAX_K, Settings
from specviz.worker import Worker

if TYPE_CHECKING:
    from specviz.drafters.base import Drafter
    from specviz.engine.model_store import LoadedModel, ModelStore
    from specviz.serving.scheduling import Schedule


@dataclass(frozen=True, kw_only=True)
class LoadTestRequest:
    """Parameters of a load test: pair, drafter, policies, arrivals and limits."""

    pair: str
    drafter: str
    policies: tuple[str, ...] = policies.NAMES
    """Names of policies; fixed may carry its K: fixed:3."""
    rate: float = 0.5
    """Requests per second on average."""
    seconds: float = 20.0
    """Duration of the arrivals; remaining requests are then served for at most three times as long again."""
    burst: int = 1
    """Requests that arrive at once."""
    k: int = 4
    """K of the policy `fixed`."""
    max_k: int = 8
    """Maximum draft length of the other policies."""
    lengths: tuple[int, int] = (16, 48)
    """New tokens of a request, from and to."""
    mix: tuple[str, ...] = ()
    """Names of presets; () takes all presets of the pair."""
    seeds: tuple[int, ...] = (0,)
    """One load per seed, served by each policy."""
    rows: int = 16
    """Requests in prefill or decoding at once."""
    cancel: float = 0.0
    """Share of requests that are cancelled at a random time."""
    settings: Settings = field(default_factory=Settings)
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in self.policies:
            kind, _, k = name.partition(":")
            if kind not in policies.ALL or (k and (kind != "fixed" or not k.isdigit() or int(k) > MAX_K)):
                raise SettingsError(
                    f"There is no policy {name[:40]!r}: choose from {', '.join(policies.ALL)}, or "
                    "fixed:K with another K."
                )
        if not (0 < self.rate <= 1e5 and 0 < self.seconds <= 1e5 and 1 <= self.burst <= 10_000):
            raise SettingsError("The rate, the seconds and the burst must be above 0.")
        if not (1 <= self.lengths[0] <= self.lengths[1] <= 4096 and 1 <= self.rows <= 100_000):
            raise SettingsError("Lengths must be from 1 to 4096 new tokens, rows from 1.")
        if not (0 <= self.k <= MAX_K and 1 <= self.max_k <= MAX_K and 0 <= self.cancel <= 1 and self.seeds):
            raise SettingsError(
                f"K must be in 0..{MAX_K} and the share of cancelled requests in 0..1, and a seed is needed."
            )


@dataclass(frozen=True)
class LoadResult:
    """Result of one policy on one load."""

    policy: str
    seed: int
    summary: Summary
    round_stats: tuple[RoundStats, ...]
    records: tuple[RequestRecord, ...]
    last: Schedule | None = None
    """The policy's latest schedule, for the chart of one step."""


def _result(name: str, seed: int, summary: Summary, server: Server) -> LoadResult:
    return LoadResult(
        name, seed, summary, tuple(server.round_stats), tuple(server.records.values()), server.policy.last
    )


class LoadTest(Worker):
    """Serves the loads on the real engine, policy after policy; `results` grows by one LoadResult each."""

    def __init__(self, order: LoadTestRequest, store: ModelStore | None = None):
        super().__init__()
        pair = find_pair(order.pair)
        check_drafter(pair, order.drafter)
        self.order, self.pair = order, pair
        self.results: list[LoadResult] = []
        self.live: Server | None = None
        """The running server, for the page."""
        self.live_policy = ""
        self.table: step_table.StepTable | None = None
        self.device = ""
        self._store = store
        self._alone: dict[tuple[int, ...], list[int]] = {}
        """By prompt: its greedy text decoded alone."""

    def work(self) -> None:
        """Open the pair, measure its step table if needed, and serve each load."""
        from specviz.engine.drafter_factory import make_drafter
        from specviz.engine.model_store import STORE

        store, order = self._store or STORE, self.order
        self.report("Opening the pair", 0.0)
        target = store.open(self.pair.target, order.device, order.precision, self.part(0.0, 0.0))
        self.device = target.device

        def fresh() -> Drafter:
            return make_drafter(order.drafter, self.pair, target, order.settings, store, self.part(0.0, 0.0))

        key = step_table.key(target, order.pair, order.drafter, order.settings)
        self.table = step_table.cached(key)
        if self.table is None:
            part = self.part(0.0, 0.1, "Measuring the step table, once")
            self.table = step_table.measure(target, fresh, order.settings, key, job=part)
        costs = self.table.costs
        prompts = _prompts(target.tokenizer, order, self.pair.name)
        drafter = fresh()
        limits = _limits(target, prompts, order, drafter.max_k)
        plan = [(seed, name) for seed in order.seeds for name in order.policies]
        for i, (seed, name) in enumerate(plan):
            if any(o.policy == name and o.seed == seed for o in self.results):
                continue
            if self.stopping():
                return
            self.report(f"Serving with {name}", 0.1 + 0.9 * i / len(plan))
            self._serve(target, _policy(name, costs, order, drafter.max_k), fresh(), name, seed, prompts, limits)
        self.live = None
        self.report("", 1.0)

    def _serve(
        self,
        target: LoadedModel,
        policy: policies.Policy,
        drafter: Drafter,
        name: str,
        seed: int,
        prompts: Sequence[Sequence[int]],
        limits: ServerLimits,
    ) -> None:
        """Serve one load under one policy and append its result; a stopped load gives none."""
        order = self.order
        engine = RealEngine(target.model, None if name == "none" else drafter, order.settings)
        requests = arrivals(order.rate, order.seconds, prompts, order.lengths, seed, order.burst)
        rng = random.Random(seed)
        cancels = [
            (request.arrival + order.seconds * rng.random() / 4, request.id)
            for request in requests
            if rng.random() < order.cancel
        ]
        server = Server(engine, policy, limits, WallClock())
        self.live, self.live_policy = server, name
        serve(server, requests, cancels=cancels, until=4 * order.seconds, job=self)
        if self.stopping():
            return
        summary = replace(summarize(server, order.rate), policy=policy.name, **self._compare_alone(target, server))
        self.results.append(_result(name, seed, summary, server))

    def _decode_alone(self, target: LoadedModel, prompt: tuple[int, ...]) -> list[int]:
        """The greedy text of a prompt, decoded alone without drafts."""
        from specviz.engine.loop import decode

        if prompt not in self._alone:
            self.report("Decoding each prompt alone, for comparison")
            settings = replace(self.order.settings, k=0, max_new_tokens=self.order.lengths[1])
            rounds = decode(target.model, None, [prompt], settings, record=False)
            self._alone[prompt] = [token for r in rounds for token in r.rows[0].emitted]
        return self._alone[prompt]

    def _compare_alone(self, target: LoadedModel, server: Server) -> dict[str, Any]:
        """Summary's `identical` and the fields after it: greedy texts against those of the prompts decoded alone.

        Empty when sampled, where texts may differ, and where nothing was emitted.
        """
        from specviz.checks.lossless import NEAR_TIE, top_gap

        records = [r for r in server.records.values() if r.tokens]
        if self.order.settings.temperature or not records:
            return {}
        gaps = []
        for record in records:
            prompt = record.request.prompt
            alone = self._decode_alone(target, prompt)[: record.request.limit]
            if record.tokens == (alone if record.state == "finished" else alone[: len(record.tokens)]):
                continue
            at = next((i for i, (a, b) in enumerate(zip(alone, record.tokens)) if a != b), None)
            gaps.append(float("inf") if at is None else top_gap(target.model, [*prompt, *alone[:at]]))
        ties = [gap for gap in gaps if gap <= NEAR_TIE[target.precision]]
        return {
            "identical": not gaps,
            "near_ties": len(ties),
            "differing": len(gaps) - len(ties),
            "widest_gap": max(ties, default=None),
        }


def _prompts(tokenizer: object, order: LoadTestRequest, pair: str) -> list[tuple[int, ...]]:
    """Token ids of the presets. Raises SettingsError for an unknown preset."""
    known = {p.name: p for p in presets_for(pair)}
    if unknown := [name for name in order.mix if name not in known]:
        raise SettingsError(f"There is no preset {unknown[0][:40]!r} for this pair: choose from {', '.join(known)}.")
    return [encode(tokenizer, known[name].text).ids for name in (order.mix or known)]


def _limits(target: LoadedModel, prompts: Sequence[Sequence[int]], order: LoadTestRequest, max_k: int) -> ServerLimits:
    """Slots large enough for the longest request. Raises MemoryBudgetError if they do not fit the device."""
    from specviz.hardware.memory import free_memory_bytes

    tokens = max(map(len, prompts)) + order.lengths[1] + max_k + 1
    limits = ServerLimits(order.rows, tokens)
    wanted = 2 * order.rows * tokens * target.model.shape.cache_bytes_per_token
    if wanted > (free := free_memory_bytes(target.device)):
        raise MemoryBudgetError(
            f"A cache for {order.rows} requests of {tokens} tokens needs {wanted / 2**30:.1f} GiB, "
            f"and {free / 2**30:.1f} GiB are free: lower the rows or the lengths."
        )
    return limits


def _policy(
    name: str, costs: RoundCosts, order: LoadTestRequest, max_k: int, simulated: SurvivalModel | None = None
) -> policies.Policy:
    """The policy of a name such as prefix or fixed:3. max_k: the drafter's maximum."""
    kind, _, k = name.partition(":")
    deterministic = simulated is None and (order.settings.temperature == 0 or order.drafter == "ngram")
    confident = simulated is not None and simulated.confident
    return policies.make(kind, costs, int(k) if k else order.k, min(order.max_k, max_k), confident, deterministic)


def simulate(
    order: LoadTestRequest,
    costs: RoundCosts,
    survival: SurvivalModel,
    limits: ServerLimits,
    prompt_tokens: int = 200,
    job: worker.Job | None = None,
    until: float | None = None,
) -> list[LoadResult]:
    """The same loads and the same server without a model: seconds from `costs`, verdicts from `survival`.

    prompt_tokens: length of every prompt. until: simulated seconds after which remaining requests are cancelled.
    """
    results = []
    for seed in order.seeds:
        prompts = [(0,) * prompt_tokens]
        requests = arrivals(order.rate, order.seconds, prompts, order.lengths, seed, order.burst)
        for name in order.policies:
            policy = _policy(name, costs, order, len(survival.conditional), survival)
            server = Server(SimulatedEngine(survival), policy, limits, SimulatedClock(costs))
            serve(server, requests, job=job, until=until)
            results.append(_result(name, seed, summarize(server, order.rate), server))
    return results


class Simulation(Worker):
    """A worker that runs `simulate` at several rates; `results` grows with each."""

    def __init__(
        self,
        order: LoadTestRequest,
        rates: Sequence[float],
        costs: RoundCosts,
        survival: SurvivalModel,
        limits: ServerLimits,
        prompt_tokens: int = 200,
    ):
        super().__init__()
        self.order, self.rates, self.costs, self.survival = order, tuple(rates), costs, survival
        self.limits, self.prompt_tokens = limits, prompt_tokens
        self.results: list[LoadResult] = []

    def work(self) -> None:
        """Simulate each policy at each rate."""
        plan = [(rate, name) for rate in self.rates for name in self.order.policies]
        for i, (rate, name) in enumerate(plan):
            self.report(f"Simulating {name} at {rate:g} requests/s", i / len(plan))
            found = simulate(
                replace(self.order, rate=rate, policies=(name,)),
                self.costs,
                self.survival,
                self.limits,
                self.prompt_tokens,
                self,
                until=3 * self.order.seconds,
            )
            if self.stopping():
                return
            self.results += found
        self.report("", 1.0)
