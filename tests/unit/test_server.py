"""The server: every text equals its text alone, nothing is lost or leaked, limits refuse with a sentence, replays."""

import random
from collections import Counter
from dataclasses import astuple

import pytest
import torch
from scipy import stats

from specviz import worker
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.ngram import NgramDrafter
from specviz.engine.loop import decode
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.sampling.rejection import warp
from specviz.serving.clocks import SimulatedClock, WallClock
from specviz.serving.engines import RealEngine, SimulatedEngine, SurvivalModel
from specviz.serving.policies import ALL, NAMES, PROBE_EVERY, Prefix, Uniform, make
from specviz.serving.requests import Request, ServerLimits, arrivals
from specviz.serving.scheduling import RoundCosts, StepCosts
from specviz.serving.server import Server, serve
from specviz.serving.summary import summarize
from specviz.trace.records import Settings, Verdict

PROMPTS = [[0, 1, 3], [0], [0, 2, 3, 0, 1, 4, 0], [5, 0, 1], [0, 1, 3, 0, 2, 4] * 9]
GREEDY, SAMPLED = Settings(), Settings(temperature=1.0)
COSTS = RoundCosts(StepCosts((1, 8, 16, 64), (1.0, 1.1, 1.6, 6.0)), StepCosts((1, 64), (0.05, 0.5)))
LIMITS = ServerLimits(rows=5, tokens=100, chunk=7)


def drafter(name, target, draft, settings):
    if name == "ngram":
        return NgramDrafter(target.vocab_size, target.device)
    return AutoregressiveDrafter(draft, target.vocab_size, settings)


def served(
    target,
    draft,
    policy,
    name="autoregressive",
    settings=GREEDY,
    rate=0.6,
    seconds=40,
    seed=1,
    clock=None,
    limits=LIMITS,
    **options,
):
    engine = RealEngine(target, drafter(name, target, draft, settings), settings)
    server = Server(
        engine, make(policy, COSTS, 4, 6) if isinstance(policy, str) else policy, limits, clock or SimulatedClock(COSTS)
    )
    jobs = arrivals(rate, seconds, PROMPTS, (3, 20), seed, burst=2)
    return serve(server, jobs, **options)


def alone(target, job, settings=GREEDY, drafter=None, k=0):
    rounds = decode(
        target,
        drafter,
        [job.prompt],
        Settings(k=k, temperature=settings.temperature, max_new_tokens=job.limit),
        seeds=[job.seed],
        record=False,
    )
    return [t for r in rounds for t in r.rows[0].emitted]


def left(server):
    """What is still held after all has ended."""
    engine = server.engine
    known = [server.policy.estimate._own] if hasattr(server.policy, "estimate") else []
    return [
        engine.cache.lengths,
        engine._taps,
        engine._capacity,
        server._prefilling,
        server._decoding,
        *server._queue,
        engine.drafter._texts,
        *known,
        getattr(server.policy, "_older", {}),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("name", ["ngram", "autoregressive"])
def test_every_greedy_text_equals_its_text_alone(toy_target, toy_draft, policy, name):
    """Under every policy, with prompts read in pieces among rounds of others, and more requests than rows."""
    server = served(toy_target, toy_draft, policy, name)
    records = server.records.values()
    assert len(records) > 12 and all(r.state == "finished" for r in records)
    for record in records:
        assert record.tokens == alone(toy_target, record.request)
    assert any(t.prompt_tokens and t.running for t in server.round_stats)
    assert max(t.running for t in server.round_stats) > 1
    assert not any(left(server))


@pytest.mark.slow
def test_sampled_texts_repeat_and_with_a_fixed_k_equal_their_texts_alone(toy_target, toy_draft):
    """Same seeds, same arrivals: the same texts to the last token, under policies that depend on load too."""
    for policy in NAMES:
        first, second = (served(toy_target, toy_draft, policy, settings=SAMPLED) for _ in range(2))
        assert first.round_stats == second.round_stats
        assert {i: r.tokens for i, r in first.records.items()} == {i: r.tokens for i, r in second.records.items()}
    for record in served(toy_target, toy_draft, "fixed", settings=SAMPLED).records.values():
        own = drafter("autoregressive", toy_target, toy_draft, SAMPLED)
        assert record.tokens == alone(toy_target, record.request, SAMPLED, own, k=4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", NAMES)
def test_sampled_texts_follow_the_targets_law(toy_target, toy_draft, policy):
    """Chi-square of two-token texts served among each other against the chain rule."""
    count = 900
    engine = RealEngine(toy_target, drafter("autoregressive", toy_target, toy_draft, SAMPLED), SAMPLED)
    server = Server(engine, make(policy, COSTS, 4, 6), ServerLimits(rows=30, tokens=40), SimulatedClock(COSTS))
    jobs = [Request(i, i * 0.05, (0, 1, 3, 0), 2 + i % 3, 77_000 + i) for i in range(count)]
    texts = Counter(tuple(r.tokens[:2]) for r in serve(server, jobs).records.values())
    with torch.inference_mode():
        cache = toy_target.new_cache()
        cache.add(0, 20)
        first = warp(toy_target.forward(cache, [0], [[0, 1, 3, 0]]).logits[0][-1], 1.0)
        law = {}
        for a in range(6):
            cache.truncate(0, 4)
            second = warp(toy_target.forward(cache, [0], [[a]]).logits[0][0], 1.0)
            law |= {(a, b): float(first[a] * second[b]) for b in range(6)}
    likely = [text for text, chance in law.items() if chance * count >= 5]
    observed, expected = [texts[t] for t in likely], [law[t] * count for t in likely]
    if (rest := count - sum(expected)) > 1e-6:
        observed, expected = [*observed, count - sum(observed)], [*expected, rest]
    assert stats.chisquare(observed, expected).pvalue > 1e-4


class Told:
    """A drafter that also says how likely each draft is to survive: its own softmax, for want of better."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def propose(self, requests):
        from dataclasses import replace

        found = self.inner.propose(requests)
        said = [
            [float(x[i].softmax(0)[t]) for i, t in enumerate(tokens)]
            for x, tokens in zip(found.draft_logits, found.tokens)
        ]
        return replace(found, confidence=said)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_confidences_the_block_is_drafted_and_cut(toy_target, toy_draft, temperature):
    """Greedy: texts equal those alone. Sampled: the law of the first token holds although the cut uses confidences
    that depend on the drafts."""
    settings = Settings(temperature=temperature)
    cheap = RoundCosts(COSTS.target, StepCosts((1, 64), (0.005, 0.05)))
    policy = Prefix(cheap, 6, deterministic=temperature == 0)  # finds out by itself that there are confidences
    engine = RealEngine(toy_target, Told(drafter("autoregressive", toy_target, toy_draft, settings)), settings)
    server = Server(engine, policy, ServerLimits(rows=12, tokens=60), SimulatedClock(cheap))
    jobs = [Request(i, i * 0.1, (0, 1, 3, 0), 8, 5_000 + i) for i in range(40 if temperature == 0 else 600)]
    serve(server, jobs)
    assert policy.confident and any(t.proposed > t.verified > 0 for t in server.round_stats)
    if temperature == 0:
        assert all(r.tokens == alone(toy_target, r.request) for r in server.records.values())
        return
    counts = Counter(r.tokens[3] for r in server.records.values())
    plain = Counter(alone(toy_target, Request(0, 0.0, (0, 1, 3, 0), 4, 900_000 + i), settings)[3] for i in range(600))
    tokens = [t for t in range(6) if counts[t] + plain[t] >= 10]
    assert stats.chi2_contingency([[counts[t] for t in tokens], [plain[t] for t in tokens]]).pvalue > 1e-4


@pytest.mark.slow
def test_cancels_free_everything_at_any_stage(toy_target, toy_draft):
    """Hundreds of requests with cancels at random moments and a tiny cache: nothing lost, nothing leaked."""
    chance = random.Random(3)
    jobs = arrivals(4.0, 60, PROMPTS, (1, 20), 9)
    cancels = [(job.arrival + 6 * chance.random(), job.id) for job in jobs if chance.random() < 0.4]
    limits = ServerLimits(rows=3, tokens=92, chunk=5)
    engine = RealEngine(toy_target, drafter("autoregressive", toy_target, toy_draft, GREEDY), GREEDY)
    server = serve(Server(engine, make("prefix", COSTS, 4, 6), limits, SimulatedClock(COSTS)), jobs, cancels=cancels)
    states = Counter(r.state for r in server.records.values())
    assert len(jobs) > 200 and sum(states.values()) == len(jobs)
    assert states["cancelled"] > 50 and states["finished"] > 100 and not set(states) - {"cancelled", "finished"}
    for record in server.records.values():
        text = alone(toy_target, record.request)
        assert record.tokens == (text if record.state == "finished" else text[: len(record.tokens)])
    assert not any(left(server))
    # the cache never grew past its slots, whose columns come in sixteens
    assert engine.cache.keys[0].shape[0] <= 3 and engine.cache.keys[0].shape[2] <= 96
    assert server.cancel(jobs[0].id) is False and server.cancel(-1) is False


def test_what_does_not_fit_is_refused_with_a_sentence(toy_target, toy_draft):
    engine = RealEngine(toy_target, drafter("ngram", toy_target, toy_draft, GREEDY), GREEDY)
    server = Server(
        engine, make("none", COSTS, 0, 6), ServerLimits(rows=1, tokens=40, waiting=2), SimulatedClock(COSTS)
    )
    assert "needs 60 tokens of cache" in server.submit(Request(0, 0, (0,) * 23, 20, 0)).reason
    assert "at least one token" in server.submit(Request(1, 0, (), 5, 0)).reason
    for i in (2, 3):
        assert server.submit(Request(i, 0, (0, 1), 3, 0)).state == "waiting"
    assert "full" in server.submit(Request(4, 0, (0, 1), 3, 0)).reason
    with pytest.raises(SettingsError, match="already"):
        server.submit(Request(2, 0, (0,), 1, 0))
    serve(server, [])
    assert [server.records[i].state for i in range(5)] == ["refused"] * 2 + ["finished"] * 2 + ["refused"]
    assert ServerLimits.within(1000, 1, 100).rows == 10
    with pytest.raises(MemoryBudgetError, match="Not even one"):
        ServerLimits.within(99, 1, 100)
    with pytest.raises(SettingsError, match="at least"):
        ServerLimits(rows=0)


def test_a_long_run_keeps_few_ticks_and_all_sums(toy_target, toy_draft, monkeypatch):
    whole = served(toy_target, toy_draft, "fixed")
    monkeypatch.setattr("specviz.serving.server.MAX_ROUND_STATS", 10)
    few = served(toy_target, toy_draft, "fixed")
    assert len(few.round_stats) <= 10 < len(whole.round_stats)
    for a, b in zip(astuple(summarize(few, 1.0)), astuple(summarize(whole, 1.0))):
        assert a == b or a == pytest.approx(b)
    assert sum(t.rounds for t in few.round_stats) == len(whole.round_stats)


def test_stop_and_time_limit_cancel_what_runs(toy_target, toy_draft):
    server = served(toy_target, toy_draft, "fixed", until=10.0)
    assert server.clock.now() >= 10 and not server.busy and not any(left(server))
    assert any(r.state == "cancelled" for r in server.records.values())
    server = served(toy_target, toy_draft, "fixed", job=worker.Job(stop=lambda: True))
    assert not server.records


def test_the_wall_clock_serves_too(toy_target, toy_draft):
    server = served(toy_target, toy_draft, "prefix", rate=200, seconds=0.1, clock=WallClock())
    assert all(r.state == "finished" for r in server.records.values())
    summary = summarize(server, 200)
    assert summary.tokens_per_second > 0 and summary.tokens_per_second_per_user > 0 and summary.waited >= 0


# ------------------------------------------------------------------------------------------- simulation

GPU = RoundCosts(lambda tokens, rows: max(0.02, 0.0004 * tokens), lambda tokens, rows: 0.001, serial=False)
CHANCES = SurvivalModel((0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55), 0.3)


def simulated(policy, rate, seconds=8, seed=0, chances=CHANCES, rows=400, k=4):
    made = make(policy, GPU, k, 7, confident=chances.confident, deterministic=False)
    server = Server(
        SimulatedEngine(chances), made, ServerLimits(rows=rows, tokens=4096, chunk=512), SimulatedClock(GPU)
    )
    jobs = arrivals(rate, seconds, [(0,) * 20], (60, 200), seed)
    return summarize(serve(server, jobs), rate), server


@pytest.mark.slow
def test_verify_length_shrinks_as_load_rises():
    """Simulated, with the scheduler: long blocks when the server is idle, short ones when it is full."""
    lengths = [simulated("prefix", rate, 20 if rate < 1 else 8)[0].mean_verify_length for rate in (0.3, 10, 60)]
    assert lengths[0] > lengths[1] > lengths[2]
    assert lengths[0] > 5 and lengths[2] < 1.5


@pytest.mark.slow
def test_the_scheduler_beats_what_is_fixed_over_loads():
    """Simulated: at a low load it is as fast for a user as long blocks, at a full one as fast as none, where each
    fixed K is behind at one of them."""
    low = {p: simulated(p, 0.3, 20)[0].tokens_per_second_per_user for p in NAMES}
    full = {p: simulated(p, 60)[0].tokens_per_second for p in NAMES}
    assert low["prefix"] > 1.8 * low["none"]
    assert full["prefix"] > 1.15 * full["fixed"] and full["prefix"] > 0.98 * full["none"]


@pytest.mark.slow
def test_without_confidences_it_learns_from_verdicts():
    blind = SurvivalModel(CHANCES.conditional, 0.0, confident=False)
    summary, _ = simulated("prefix", 0.3, 20, chances=blind)
    assert summary.mean_verify_length > 4
    assert summary.acceptance_rate > 0.35
    hopeless = SurvivalModel((0.01,) * 7, 0.0, confident=False)
    summary, _ = simulated("prefix", 40, chances=hopeless)
    assert summary.mean_verify_length < 0.1


def test_a_policy_that_stopped_drafting_tries_again():
    for policy in (Uniform(GPU, 4), Prefix(GPU, 4)):
        for _ in range(500):
            policy.observe(
                Verdict(
                    row=0,
                    context=0,
                    anchor=0,
                    proposed=4,
                    verified=4,
                    accepted=0,
                    positions=(),
                    emitted=(0,),
                    kind="leftover",
                    bonus_token=0,
                    bonus_uniform=0.0,
                )
            )
        lengths = [policy.draft_lengths(list(range(300)), 0) for _ in range(3 * PROBE_EVERY)]
        assert sum(map(sum, lengths)) == 3


@pytest.mark.slow
def test_a_thousand_requests_at_once_are_served_in_seconds():
    summary, server = simulated("prefix", 500, seconds=2.5, rows=2000)
    assert summary.requests > 1000 and summary.finished == summary.requests
    assert max(t.running for t in server.round_stats) > 800


def test_arrivals_follow_their_rate_and_repeat():
    jobs = arrivals(5.0, 400, PROMPTS, (2, 4), seed=4, burst=3)
    assert len(jobs) == pytest.approx(2000, rel=0.12)
    assert jobs == arrivals(5.0, 400, PROMPTS, (2, 4), seed=4, burst=3)
    assert jobs[0].arrival == jobs[2].arrival < jobs[3].arrival
    assert {j.limit for j in jobs} == {2, 3, 4} and {j.prompt for j in jobs} == set(map(tuple, PROMPTS))
    for bad in ((0, 1), (1, 0), (float("nan"), 1)):
        with pytest.raises(SettingsError, match="above 0"):
            arrivals(*bad, PROMPTS, (1, 2))
    with pytest.raises(SettingsError, match="Survival"):
        SurvivalModel((1.5,))


def test_nothing_served_has_no_rates():
    server = Server(SimulatedEngine(CHANCES), make("none", GPU, 0, 7), ServerLimits(), SimulatedClock(GPU))
    summary = summarize(server, 1.0)
    assert summary.tokens_per_second is None and summary.mean_verify_length is None and summary.waited is None
    with pytest.raises(SettingsError, match="policy"):
        make("other", GPU, 1, 7)
