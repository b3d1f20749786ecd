"""Run: from an order to a trace, on the toy pair. How it starts, ends, is stopped, is left, and fails."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from specviz.drafters.ngram import NgramDrafter
from specviz.engine import model_store
from specviz.engine import run as runs
from specviz.engine.model_store import LoadedModel, ModelStore, storage_bytes
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.errors import MemoryBudgetError, PairError, SettingsError
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.models.weight_storage import Fp16Linear, Int8Linear
from specviz.trace.files import dumps, loads
from specviz.trace.records import Settings


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def at_home(home, monkeypatch):
    """The ceilings are measured once for all tests of this file."""
    monkeypatch.setenv("SPECVIZ_HOME", str(home))


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


def order(drafter="autoregressive", text="the cat sees", rows=1, **settings) -> RunRequest:
    wanted = {"k": 3, "temperature": 1.0, "max_new_tokens": 24} | settings
    return RunRequest("toy", drafter, text, Settings(**wanted), rows=rows, device="cpu")


def endless(rows=1) -> RunRequest:
    """Longer than any test waits."""
    return order("ngram", k=1, max_new_tokens=4000, rows=rows)


def slow(monkeypatch, seconds=0.02):
    """Let each round take a while, as on a real model."""
    real = runs.decode

    def decode(*arguments, **options):
        for round_ in real(*arguments, **options):
            time.sleep(seconds)
            yield round_

    monkeypatch.setattr(runs, "decode", decode)


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


# ---------------------------------------------------------------------------------------------- a whole run


def test_a_run_goes_from_loading_to_running_to_complete_and_its_trace_is_whole(store):
    run = Run(order(rows=2), store)
    seen = [run.status]
    assert run.alive and run.trace is None
    run.start()
    while run.alive:
        run.poll()
        if run.status != seen[-1]:
            seen.append(run.status)
        time.sleep(0.001)
    assert [*dict.fromkeys([*seen, run.status])] == ["loading", "running", "complete"]
    trace = run.trace
    assert loads(dumps(trace)) == trace and trace.end == "complete" and run.error is None
    assert [len(trace.token_ids(row)) for row in range(2)] == [24, 24]
    assert trace.rounds == tuple(run.rounds) and trace.texts == (run.text(0), run.text(1))
    assert trace.machine.ceilings is not None and trace.prefill_seconds > 0 and trace.baseline.seconds
    assert all(row.finished == "length" for row in trace.rounds[-1].rows)


def test_rows_have_their_own_seeds_and_repeat_what_each_seed_gives_alone(store):
    together = Run(order(rows=3, seed=7), store).execute().trace
    assert [p.seed for p in together.prompts] == [7, 8, 9]
    assert len({tuple(together.token_ids(row)) for row in range(3)}) > 1
    for row in range(3):
        alone = Run(order(seed=7 + row), store).execute().trace
        assert alone.token_ids() == together.token_ids(row)


@pytest.mark.parametrize("drafter", ["autoregressive", "ngram", "first-layers"])
def test_every_drafter_of_the_pair_gives_the_plain_greedy_text(store, drafter):
    plain = Run(order(drafter, k=0, temperature=0.0), store).execute().trace
    fast = Run(order(drafter, k=4, temperature=0.0, rows=2), store).execute().trace
    assert fast.token_ids(0) == fast.token_ids(1) == plain.token_ids()
    assert all(v.proposed == 0 for r in plain.rounds for v in r.rows)


def test_a_model_is_loaded_once_and_shared(store, monkeypatch):
    Run(order(), store).execute()
    monkeypatch.setattr(runs.load_model, "load_source", lambda *_: pytest.fail("it loaded again"))
    assert Run(order("first-layers"), store).execute().status == "complete"


# ------------------------------------------------------------------------------------------- stop and leave


def test_stop_ends_the_run_within_a_step_and_keeps_the_rounds(store, monkeypatch):
    slow(monkeypatch)
    run = Run(endless(rows=2), store).start()
    wait_for(lambda: len(run.rounds) >= 3)
    run.stop()
    before = len(run.rounds)
    wait_for(lambda: not run.alive)
    assert run.status == "stopped" and run.error is None and len(run.rounds) <= before + 1
    assert run.trace.end == "stopped" and run.trace.rounds == tuple(run.rounds)
    assert loads(dumps(run.trace)) == run.trace


@pytest.mark.parametrize("loaded", [True, False], ids=["model in memory", "model read"])
def test_stop_during_loading_ends_without_a_trace(store, loaded, monkeypatch):
    """Whether the model is in memory or has to be read: no round is decoded after Stop."""
    run, opened = Run(order(), store if loaded else ModelStore()), []
    real = run.store.open

    def stopped_meanwhile(*arguments, **options):
        opened.append(real(*arguments, **options))
        run.stop()
        return opened[-1]

    monkeypatch.setattr(run.store, "open", stopped_meanwhile)
    run.execute()
    assert opened and run.status == "stopped" and run.error is None
    assert run.trace is None and not run.rounds


def test_a_run_that_nobody_polls_stops_itself(store, monkeypatch):
    monkeypatch.setattr("specviz.worker.ABANDONED_SECONDS", 0.3)
    slow(monkeypatch)
    run = Run(endless(), store).start()
    end = time.monotonic() + 60
    while not run.rounds and time.monotonic() < end:
        run.poll()
        time.sleep(0.01)
    wait_for(lambda: not run.alive, 20)
    assert run.status == "stopped" and run.trace.rounds


def test_a_run_that_is_polled_goes_on(store, monkeypatch):
    monkeypatch.setattr("specviz.worker.ABANDONED_SECONDS", 1.0)
    slow(monkeypatch)
    run = Run(endless(), store).start()
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        run.poll()
        time.sleep(0.05)
    assert run.alive
    run.stop()
    run.join(60)
    assert run.status == "stopped"


def test_a_run_in_the_foreground_needs_no_polling(store, monkeypatch):
    monkeypatch.setattr("specviz.worker.ABANDONED_SECONDS", 0.0)
    assert Run(order(), store).execute().status == "complete"


def test_two_runs_at_once_do_not_disturb_each_other(store):
    """Same models, same time, different orders: each gives what it gives alone."""
    orders = [
        order(rows=2, seed=3, max_new_tokens=80),
        order("ngram", "the dog", seed=40, k=5, max_new_tokens=80),
        order("first-layers", "the cat and", seed=9, temperature=0.0, max_new_tokens=80),
    ]
    alone = [Run(o, store).execute().trace for o in orders]
    together = [Run(o, store).start() for o in orders]
    while any(run.alive for run in together):
        for run in together:
            run.poll()
        time.sleep(0.01)
    for run, trace in zip(together, alone):
        assert run.status == "complete", run.error
        assert [run.trace.token_ids(i) for i in range(run.order.rows)] == [
            trace.token_ids(i) for i in range(run.order.rows)
        ]


def test_a_model_that_two_runs_ask_for_at_once_is_loaded_once(monkeypatch):
    loads_seen, real = [], runs.load_model.load_source

    def load_source(source, *rest):
        loads_seen.append(source)
        return real(source, *rest)

    monkeypatch.setattr(runs.load_model, "load_source", load_source)
    fresh, target = ModelStore(), find_pair("toy").target
    threads = [threading.Thread(target=fresh.open, args=(target, "cpu", "fp32")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads_seen == [target]


def test_the_store_forgets_the_oldest_model_when_its_budget_is_spent(monkeypatch):
    tight, toy = ModelStore(budget_share=0.0), find_pair("toy")
    first = tight.open(toy.target, "cpu", "fp32")
    assert tight.open(toy.target, "cpu", "fp32") is first
    tight.open(toy.draft, "cpu", "fp32")
    assert tight.open(toy.target, "cpu", "fp32") is not first


def packed_model(outputs: int) -> LoadedModel:
    """A model whose parameters are tiny and whose packed weights [outputs, 64] are not."""
    product = Int8Linear(torch.randn(outputs, 64))
    model = SimpleNamespace(module=torch.nn.Embedding(1, 8), products=[(product, product.shape)])
    return LoadedModel(model, None, "cpu", "fp32")


def test_the_store_counts_parameters_and_packed_weights():
    assert sorted(storage_bytes(packed_model(128).model).values()) == [8 * 4, 128 * 2, 128 * 64]
    packed = Fp16Linear(torch.randn(128, 64))
    model = SimpleNamespace(module=torch.nn.Embedding(1, 8), products=[(packed, packed.shape)])
    assert sorted(storage_bytes(model).values()) == [8 * 4, 128 * 64 * 2]
    linear = torch.nn.Linear(64, 32, bias=False)  # a product that is a layer of the module counts once
    assert list(storage_bytes(SimpleNamespace(module=linear, products=[(linear, (32, 64))])).values()) == [32 * 64 * 4]


def test_the_budget_is_spent_by_packed_weights(monkeypatch):
    """Two models fit by their parameters (64 bytes); with their packed weights one must go."""
    monkeypatch.setattr(model_store, "free_memory_bytes", lambda device: 1000)
    for outputs, remaining in ((128, 1), (4, 2)):
        some = ModelStore(budget_share=0.5)
        for key in ("older", "newer"):
            some._get((key, "cpu", "fp32"), lambda: packed_model(outputs))  # noqa: B023
        assert len(some._models) == remaining


def test_the_store_counts_shared_layers_once():
    fresh, toy = ModelStore(), find_pair("toy")
    target = fresh.open(toy.target, "cpu", "fp32")
    alone = storage_bytes(target.model)
    both = alone | storage_bytes(fresh.first_layers(target, toy.target, 1))
    assert sum(both.values()) < 1.5 * sum(alone.values()) and sum(alone.values()) > 0


# ------------------------------------------------------------------------------------------------- failure


class Breaks(NgramDrafter):
    """A drafter with a defect that shows in its third proposal."""

    calls = 0
    error: Exception = RuntimeError("index 7 is out of bounds")

    def propose(self, requests):
        self.calls += 1
        if self.calls == 3:
            raise self.error
        return super().propose(requests)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("index 7 is out of bounds"), "RuntimeError"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryBudgetError("The cache does not fit: lower the batch."), "lower the batch"),
    ],
)
def test_a_drafter_that_breaks_fails_the_run_with_a_sentence_and_its_rounds_are_kept(store, monkeypatch, error, says):
    def broken(name, pair, target, *_):
        drafter = Breaks(target.model.vocab_size, target.model.device)
        drafter.error = error
        return drafter

    monkeypatch.setattr(runs, "make_drafter", broken)
    run = Run(order("ngram", k=2, max_new_tokens=60), store).execute()
    assert run.status == "failed" and not run.alive
    assert says in run.error and run.error.endswith(".") and "\n" not in run.error
    assert len(run.rounds) == 2 and run.trace.end == "stopped" and len(run.trace.rounds) == 2
    assert run.trace.token_ids() and loads(dumps(run.trace)) == run.trace


def test_the_next_run_after_a_failed_one_is_as_if_nothing_had_been(store, monkeypatch):
    good = Run(order("ngram"), store).execute().trace
    with monkeypatch.context() as patch:
        patch.setattr(
            runs, "make_drafter", lambda name, pair, target, *_: Breaks(target.model.vocab_size, target.model.device)
        )
        assert Run(order("ngram", k=2, max_new_tokens=60), store).execute().status == "failed"
    assert Run(order("ngram"), store).execute().trace.token_ids() == good.token_ids()


def test_a_run_that_would_not_fit_the_memory_is_refused_before_it_begins(store, monkeypatch):
    monkeypatch.setattr(runs, "free_memory_bytes", lambda device: 10_000)
    run = Run(order(), store).execute()
    assert run.status == "failed" and "lower the batch" in run.error and not run.rounds and run.trace is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("the elephant", "It knows only"),
        ("the" + " cat" * 4400, "tokens"),
    ],
    ids=["unknown words", "too long"],
)
def test_a_prompt_that_cannot_be_decoded_fails_with_a_sentence(store, text, says):
    run = Run(order(text=text), store).execute()
    assert run.status == "failed" and says in run.error and run.trace is None


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (RunRequest("toy", "ngram", " "), SettingsError, "empty"),
        (RunRequest("toy", "oracle", "the"), PairError, "has no drafter 'oracle': choose one of"),
        (RunRequest("toy", "x" * 10_000, "the"), PairError, "choose one of"),
        (RunRequest("toyy", "ngram", "the"), PairError, "Did you mean toy?"),
        (RunRequest("toy", "ngram", "the", rows=0), SettingsError, "from 1 to 64"),
        (RunRequest("toy", "ngram", "the", rows=65), SettingsError, "from 1 to 64"),
        (RunRequest("toy", "ngram", "the", rows="2"), SettingsError, "from 1 to 64"),
    ],
    ids=["empty prompt", "drafter", "long drafter", "pair", "no rows", "many rows", "rows as text"],
)
def test_an_order_that_makes_no_sense_is_refused_at_once(wrong, error, says):
    with pytest.raises(error) as told:
        Run(wrong)
    assert says in str(told.value) and len(str(told.value)) < 600


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": "tpu"}, "There is no device"),
        ({"precision": "fp8"}, "There is no precision"),
    ],
)
def test_an_unknown_device_or_precision_fails_with_a_sentence(store, changes, says):
    run = Run(RunRequest("toy", "ngram", "the", **changes), store).execute()
    assert run.status == "failed" and says in run.error


def test_the_embedded_pair_has_a_drafter_that_needs_no_further_weights():
    pair = find_pair(EMBEDDED)
    assert set(pair.drafters) & {"ngram", "first-layers"} and pair.draft is None
