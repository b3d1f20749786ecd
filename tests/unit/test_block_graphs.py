"""CUDA graphs of block drafters, tested on the CPU with a fake recorder: graphs draft what eager rounds draft."""

import random

import pytest
import torch
from test_graphs import FakeRecorder
from test_training import SIZE, TAPS, VOCAB, block_net, module

from specviz.drafters.base import Request
from specviz.drafters.block_graphs import BlockGraphs
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.engine.loop import decode
from specviz.models.causal import CausalModel
from specviz.models.graphs import GraphCache
from specviz.sampling.distributions import dense
from specviz.trace.records import Settings

KINDS = {
    "parallel": ParallelDrafter,
    "hybrid": HybridDrafter,
    "sampled": lambda net, target, settings: ParallelDrafter(net, target, settings, sampled=True),
}
WARPS = [Settings(temperature=0.0), Settings(temperature=1.0), Settings(temperature=0.9, top_k=7, top_p=0.8)]


@pytest.fixture(scope="module")
def target():
    return CausalModel(module())


def launched(drafter, fails=False):
    """A drafter whose graphs come from a recorder that runs the work again."""
    drafter.graphs = BlockGraphs(drafter.fused, torch.device("cpu"), 500, FakeRecorder(fails))
    drafter._cache = drafter.graphs.new_cache()
    return drafter


def both(kind, target, settings):
    """The same drafter twice: eager, and launched."""
    return KINDS[kind](block_net(), target, settings), launched(KINDS[kind](block_net(), target, settings))


def same(one, other):
    assert one.tokens == other.tokens and one.first_guess == other.first_guess
    assert (one.confidence is None) == (other.confidence is None)
    for a, b in zip(one.confidence or (), other.confidence or ()):
        assert a == pytest.approx(b, abs=1e-5)
    for a, b in zip((*one.draft_probs, *one.draft_logits), (*other.draft_probs, *other.draft_logits)):
        torch.testing.assert_close(dense(a), dense(b), atol=2e-5, rtol=1e-4)
    assert (one.draft_tokens, one.cost) == (other.draft_tokens, other.cost)


@pytest.mark.parametrize("settings", WARPS, ids=["greedy", "sampled", "cut"])
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_draft_what_eager_rounds_draft(target, kind, settings):
    """Thirty rounds over rows that come and go, with their own K, commits of uneven length, and rows that sit out."""
    chance = random.Random(0)
    pair = both(kind, target, settings)
    assert isinstance(pair[1]._cache, GraphCache)
    alive, anchors = [], {}
    for step in range(30):
        if len(alive) < 3 and step % 4 == 0:
            prompt = [chance.randrange(VOCAB) for _ in range(chance.randrange(1, 9))]
            taps = torch.randn(len(prompt) - 1, len(TAPS) * SIZE)
            alive.append(step)
            anchors[step] = prompt[-1]
            for drafter in pair:
                drafter.start(step, prompt, taps, 200)
        rows = chance.sample(alive, chance.randrange(1, len(alive) + 1))
        requests = []
        for row in rows:
            k = chance.randrange(1, 9)
            requests.append(Request(row, anchors[row], k, tuple(chance.random() for _ in range(k))))
        same(*(drafter.propose(requests).on_host() for drafter in pair))
        for row in rows if step % 3 else alive:  # also rows that proposed nothing
            emitted = [chance.randrange(VOCAB) for _ in range(chance.randrange(1, 5))]
            taps = torch.randn(len(emitted), len(TAPS) * SIZE)
            for drafter in pair:
                drafter.commit(row, emitted, taps)
            anchors[row] = emitted[-1]
        if step % 9 == 8:
            gone = alive.pop(0)
            for drafter in pair:
                drafter.drop(gone)
    graphs = pair[1].graphs
    assert graphs.replayed == 30 and 1 < graphs.recorded < 30 and not graphs.eager, graphs.note


def test_more_context_than_a_graph_takes_runs_eagerly_and_the_next_round_is_a_graph_again(target):
    pair = both("hybrid", target, WARPS[1])
    for drafter in pair:
        drafter.start(0, [1, 2, 3], torch.ones(2, len(TAPS) * SIZE), 200)
    for n in (40, 2):
        taps = torch.randn(n, len(TAPS) * SIZE)
        for drafter in pair:
            drafter.commit(0, [5] * n, taps)
        same(*(drafter.propose([Request(0, 5, 4, (0.3, 0.6, 0.1, 0.9))]).on_host() for drafter in pair))
    assert (pair[1].graphs.eager, pair[1].graphs.replayed) == (1, 1)


def test_proposing_twice_without_a_commit_gives_the_same_drafts(target):
    """New context enters once, however often it is asked for."""
    drafter = both("parallel", target, WARPS[0])[1]
    drafter.start(0, [1, 2, 3], torch.ones(2, len(TAPS) * SIZE), 60)
    drafter.commit(0, [4, 5], torch.ones(2, len(TAPS) * SIZE))
    request = Request(0, 5, 4, (0.5,) * 4)
    first, second = (drafter.propose([request]).on_host() for _ in range(2))
    assert first.tokens == second.tokens and drafter._cache.lengths[0] == 4
    torch.testing.assert_close(dense(first.draft_logits[0]), dense(second.draft_logits[0]))


@pytest.mark.parametrize("settings", [Settings(k=5, temperature=t, max_new_tokens=40) for t in (0.0, 1.0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_run_gives_the_same_texts(target, kind, settings):
    prompts = [[3, 14, 15, 9, 26, 5, 35], [7, 8], [1]]

    def texts(drafter):
        said = [[] for _ in prompts]
        for round_ in decode(target, drafter, prompts, settings, eos_ids=frozenset(), record=False):
            for verdict in round_.rows:
                said[verdict.row] += verdict.emitted
        return said

    eager, graphed = both(kind, target, settings)
    assert texts(graphed) == texts(eager)
    assert graphed.graphs.replayed > graphed.graphs.recorded


def test_if_recording_fails_rounds_run_eagerly_and_the_note_gives_the_reason(target):
    eager = KINDS["hybrid"](block_net(), target, WARPS[1])
    broken = launched(KINDS["hybrid"](block_net(), target, WARPS[1]), fails=True)
    for drafter in (eager, broken):
        drafter.start(0, [1, 2, 3], torch.ones(2, len(TAPS) * SIZE), 60)
    same(*(drafter.propose([Request(0, 3, 3, (0.3, 0.6, 0.1))]).on_host() for drafter in (eager, broken)))
    assert "stream is capturing" in broken.graphs.note and "eagerly" in broken.graphs.note
