"""CUDA graphs as far as a processor can show them: sizes, fixed inputs, stores that are used again, and launches
against eager passes, with a recorder that notes the work and does it again where CUDA would launch it.
"""

import gc
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters.ngram import NgramDrafter
from specviz.engine.loop import decode
from specviz.models import graphs
from specviz.models.causal import CausalModel
from specviz.models.graphs import GraphCache, Graphs, bucket, columns_bucket
from specviz.trace.records import Settings

TOLERANCE = 2e-6


class FakeRecorder:
    """Does the work once as CUDA would while warming up; a launch does it again, reading only what the inputs hold
    then, and leaves the results at the same place."""

    def __init__(self, fails: bool = False):
        self.fails = fails

    def record(self, work):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        kept = {name: t.clone() for name, t in work().items()}

        def replay():
            for name, fresh in work().items():
                kept[name].copy_(fresh)

        for place in kept.values():  # recording computes nothing
            place.fill_(float("nan") if place.is_floating_point() else -1)
        return replay, kept


def model(recorder=None, kv_heads=2):
    torch.manual_seed(0)
    made = CausalModel(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=97,
                hidden_size=48,
                intermediate_size=64,
                num_hidden_layers=3,
                num_attention_heads=4,
                head_dim=12,
                num_key_value_heads=kv_heads,
                max_position_embeddings=1024,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
    )
    if recorder is not None:
        made.graphs = Graphs(made._fused, made.layers, made.device, made.dtype, made.vocab_size, 1023, recorder)
    return made


def test_sizes_hold_what_is_asked_and_nothing_larger_than_known():
    assert [bucket(n, graphs.TOKENS) for n in (1, 3, 6, 7, 17, 18)] == [1, 4, 6, 9, 17, None]
    assert [columns_bucket(n, 4096) for n in (1, 256, 257, 3000, 9000)] == [256, 256, 512, 4096, 4096]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_launches_give_what_eager_passes_give(kv_heads):
    """Forty uneven passes over three rows that come and go, with rollbacks: logits and taps of both ways agree."""
    chance = random.Random(0)
    eager, recorded = model(kv_heads=kv_heads), model(FakeRecorder(), kv_heads)
    caches = [m.new_cache() for m in (eager, recorded)]
    assert isinstance(caches[1], GraphCache)
    alive: list[int] = []
    for step in range(40):
        if len(alive) < 3 and step % 5 == 0:
            alive.append(step)
            prompt = [chance.randrange(97) for _ in range(chance.randrange(20, 40))]
            for m, cache in zip((eager, recorded), caches):
                cache.add(step, 400)
                m.forward(cache, [step], [prompt], logits=False)
        rows = chance.sample(alive, chance.randrange(1, len(alive) + 1))
        tokens = [[chance.randrange(97) for _ in range(chance.randrange(1, 8))] for _ in rows]
        taps = (0, 2) if step % 3 else ()
        wanted = True if step % 4 else [1] * len(rows)
        a, b = (m.forward(cache, rows, tokens, taps, wanted) for m, cache in zip((eager, recorded), caches))
        for x, y in zip(a.logits, b.logits):
            assert x.shape == y.shape and (x - y).abs().max() < TOLERANCE
        for x, y in zip(a.taps or (), b.taps or ()):
            assert x.shape == y.shape and (x - y).abs().max() < TOLERANCE
        assert (a.taps is None) == (b.taps is None)
        for row, new in zip(rows, tokens):
            back = chance.randrange(len(new))
            for cache in caches:
                cache.truncate(row, cache.lengths[row] - back)
        if step % 11 == 10:
            gone = alive.pop(0)
            for cache in caches:
                cache.drop(gone)
    assert recorded.graphs.replayed == 40 and 1 < recorded.graphs.recorded < 40
    assert (eager.forwards, eager.tokens_forwarded) == (recorded.forwards, recorded.tokens_forwarded)


def test_results_are_copies_that_the_next_launch_leaves_alone():
    recorded = model(FakeRecorder())
    cache = recorded.new_cache()
    cache.add(0, 64)
    first = recorded.forward(cache, [0], [[1, 2]], taps=(1,))
    before = [t.clone() for t in (*first.logits, *first.taps)]
    recorded.forward(cache, [0], [[3, 4]], taps=(1,))
    assert recorded.graphs.recorded == 1
    assert all(torch.equal(a, b) for a, b in zip(before, (*first.logits, *first.taps)))


def test_padding_writes_nothing_into_a_row():
    """Three tokens are padded to four, and one row to itself: the columns behind stay as they were."""
    recorded = model(FakeRecorder())
    cache = recorded.new_cache()
    cache.add(0, 64)
    recorded.forward(cache, [0], [[1, 2, 3]])
    assert cache.lengths[0] == 3
    assert cache.store.keys[0][0, :, :3].abs().sum() > 0
    assert cache.store.keys[0][0, :, 3:].abs().sum() == 0
    assert cache.store.keys[0][1:-1].abs().sum() == 0


def test_the_next_run_takes_the_store_with_its_graphs_and_sees_nothing_of_the_last():
    eager, recorded = model(), model(FakeRecorder())

    def logits(m):
        cache = m.new_cache()
        cache.add(7, 100)
        m.forward(cache, [7], [[5] * 30], logits=False)
        return m.forward(cache, [7], [[1, 2]]).logits[0]

    want = logits(eager)
    assert (logits(recorded) - want).abs().max() < TOLERANCE
    gc.collect()
    made = recorded.graphs.recorded
    assert (logits(recorded) - want).abs().max() < TOLERANCE
    assert recorded.graphs.recorded == made


def test_two_runs_at_once_have_stores_of_their_own():
    recorded, eager = model(FakeRecorder()), model()
    one, two, alone = recorded.new_cache(), recorded.new_cache(), eager.new_cache()
    for cache in (one, two, alone):
        cache.add(0, 64)
    recorded.forward(one, [0], [[1, 2, 3]])
    recorded.forward(two, [0], [[9, 8, 7]])
    eager.forward(alone, [0], [[1, 2, 3]])
    got, want = recorded.forward(one, [0], [[4]]).logits[0], eager.forward(alone, [0], [[4]]).logits[0]
    assert (got - want).abs().max() < TOLERANCE


def test_a_store_that_grows_keeps_what_was_in_it():
    """More rows than slots, then longer rows: what was written before is still seen."""
    eager, recorded = model(), model(FakeRecorder())
    caches = [m.new_cache() for m in (eager, recorded)]
    for m, cache in zip((eager, recorded), caches):
        cache.add(0, 64)
        m.forward(cache, [0], [[1, 2, 3]])
        cache.add(1, 600)
        m.forward(cache, [1], [[4, 5]])
    a, b = (m.forward(cache, [0, 1], [[6], [7]]) for m, cache in zip((eager, recorded), caches))
    assert all((x - y).abs().max() < TOLERANCE for x, y in zip(a.logits, b.logits))
    assert caches[1].store.capacity == 1024


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_whole_run_says_the_same(temperature):
    """Decoding with drafts from launched passes emits the tokens of eager decoding, for three rows at once."""
    settings = Settings(k=4, temperature=temperature, max_new_tokens=30)
    prompts = [[1, 2, 3, 1, 2, 3], [4, 5, 4, 5, 4], [9] * 12]

    def texts(m):
        emitted = [[] for _ in prompts]
        for round_ in decode(
            m, NgramDrafter(97, m.device), prompts, settings, eos_ids=frozenset(), record=False, baseline_every=2
        ):
            for verdict in round_.rows:
                emitted[verdict.row] += verdict.emitted
        return emitted

    recorded = model(FakeRecorder())
    assert texts(recorded) == texts(model())
    assert recorded.graphs.replayed > recorded.graphs.recorded


def test_where_recording_fails_passes_run_eagerly_and_the_reason_is_told():
    eager, broken = model(), model(FakeRecorder(fails=True))
    out = []
    for m in (eager, broken):
        cache = m.new_cache()
        cache.add(0, 64)
        out.append(m.forward(cache, [0], [[1, 2, 3]]).logits[0])
    assert torch.equal(*out)
    assert "stream is capturing" in broken.graphs.note and "eagerly" in broken.graphs.note
    assert not isinstance(broken.new_cache(), GraphCache)


def test_long_passes_and_many_rows_run_eagerly_without_giving_up():
    recorded = model(FakeRecorder())
    cache = recorded.new_cache()
    cache.add(0, 200)
    recorded.forward(cache, [0], [[1] * 18])
    assert (recorded.graphs.replayed, recorded.graphs.eager, recorded.graphs.reason) == (0, 1, "")
    with pytest.raises(ValueError, match="capacity"):
        for _ in range(200):
            recorded.forward(cache, [0], [[1, 2, 3, 4]])


def test_a_processor_has_no_graphs():
    assert model().graphs is None
