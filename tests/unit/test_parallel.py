"""The parallel drafter: live proposals equal teacher-forced ones, no trace of rejected drafts, rows apart, lossless."""

import pytest
import torch
from test_training import DRAFT_IDS, SIZE, TAPS, VOCAB, block_net, module

from specviz.drafters.base import Request
from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.engine.loop import decode
from specviz.errors import PairError
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import dense
from specviz.trace.records import Settings
from specviz.training import block
from specviz.training.features import Batch

PROMPT = [3, 14, 15, 9, 26, 5, 35]


@pytest.fixture(scope="module")
def target():
    return CausalModel(module())


def taps_of(target, tokens):
    cache = target.new_cache()
    cache.add(0, len(tokens))
    return target.forward(cache, [0], [tokens], TAPS, logits=False).taps[0]


def make(kind, target, net=None, **settings):
    return kind(net or block_net(), target, Settings(**settings))


def request(row, anchor, k):
    return Request(row, anchor, k, tuple((0.37 * (i + 1)) % 1 for i in range(k)))


def ready(drafter, target, prompt=PROMPT, row=0):
    drafter.start(row, prompt, taps_of(target, prompt[:-1]), 64)
    return drafter


@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_live_block_equals_the_teacher_forced_one(target, k):
    drafter = ready(make(ParallelDrafter, target), target)
    with torch.inference_mode():
        live, *_ = drafter.fused.draft(drafter._cache, drafter._inputs([request(0, PROMPT[-1], k)], [k]))
    text = torch.tensor([PROMPT + [0] * 9])
    taps = torch.zeros(1, text.shape[1], 2, SIZE)
    taps[0, : len(PROMPT) - 1] = taps_of(target, PROMPT[:-1]).view(-1, 2, SIZE)
    batch = Batch(text, torch.tensor([16]), torch.arange(text.shape[1])[None] >= 7, taps)
    with torch.no_grad():
        forced = block.block_states(
            drafter.net, target.embedding, batch, block.blocks_at(batch, torch.tensor([[len(PROMPT) - 1]]), k), (0, 1)
        )
    assert torch.allclose(live, forced[0, 0], atol=1e-4)


@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
def test_proposing_leaves_no_trace_and_k_only_cuts(target, kind):
    drafter = ready(make(kind, target), target)
    first = drafter.propose([request(0, PROMPT[-1], 5)]).on_host()
    drafter.propose([request(0, PROMPT[-1], 2)]).on_host()
    again = drafter.propose([request(0, PROMPT[-1], 5)]).on_host()
    assert first.tokens == again.tokens and torch.equal(dense(first.draft_probs[0]), dense(again.draft_probs[0]))
    assert first.draft_tokens == 5 and first.cost.flops > 0
    assert len(drafter.propose([request(0, PROMPT[-1], 12)]).on_host().tokens[0]) == drafter.max_k == 8


@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
def test_committing_bit_by_bit_equals_starting_with_the_longer_text(target, kind):
    text = [*PROMPT, 20, 21, 40, 8]
    drafter = ready(make(kind, target), target)
    taps = taps_of(target, text[:-1])
    drafter.propose([request(0, PROMPT[-1], 4)]).on_host()
    drafter.commit(0, [20, 21], taps[len(PROMPT) - 1 : len(PROMPT) + 1])
    drafter.propose([request(0, 21, 3)]).on_host()
    drafter.commit(0, [40], taps[len(PROMPT) + 1 : len(PROMPT) + 2])
    drafter.commit(0, [8], taps[len(PROMPT) + 2 : len(PROMPT) + 3])
    fresh = ready(make(kind, target), target, text)
    a, b = drafter.propose([request(0, 8, 6)]).on_host(), fresh.propose([request(0, 8, 6)]).on_host()
    assert a.tokens == b.tokens
    assert torch.allclose(dense(a.draft_logits[0])[:, DRAFT_IDS], dense(b.draft_logits[0])[:, DRAFT_IDS], atol=1e-4)


@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
@pytest.mark.parametrize("ks", [(2, 6, 4), (4, 4, 4)])  # those with the same K attend together
def test_rows_with_their_own_k_draft_as_if_alone(target, kind, ks):
    texts = {0: PROMPT, 5: [1, 2, 3], 7: [9]}  # the last one has no context at all
    together = make(kind, target, temperature=1.0)
    for row, text in texts.items():
        together.start(row, text, taps_of(target, text[:-1]) if len(text) > 1 else torch.empty(0, 2 * SIZE), 40)
    ks = dict(zip(texts, ks))
    out = together.propose([request(r, texts[r][-1], ks[r]) for r in texts]).on_host()
    for i, (row, text) in enumerate(texts.items()):
        alone = make(kind, target, temperature=1.0)
        alone.start(row, text, taps_of(target, text[:-1]) if len(text) > 1 else None, 40)
        single = alone.propose([request(row, text[-1], ks[row])]).on_host()
        assert single.tokens[0] == out.tokens[i] and len(out.tokens[i]) == ks[row]
        assert torch.allclose(dense(single.draft_probs[0]), dense(out.draft_probs[i]), atol=1e-5)
    together.drop(5)
    assert len(together.propose([request(0, PROMPT[-1], 2)]).on_host().tokens) == 1


def test_the_parallel_drafter_takes_the_likeliest_token_with_a_one_hot_q(target):
    out = ready(make(ParallelDrafter, target, temperature=1.0), target).propose([request(0, PROMPT[-1], 4)]).on_host()
    assert out.tokens[0] == dense(out.draft_logits[0]).argmax(-1).tolist()
    assert dense(out.draft_probs[0]).max(-1).values.tolist() == [1.0] * 4
    assert set(out.tokens[0]) <= set(DRAFT_IDS.tolist())


def test_the_sampled_form_draws_from_the_q_that_it_reports(target):
    drafter = ParallelDrafter(block_net(), target, Settings(temperature=1.0), sampled=True)
    ready(drafter, target)
    drawn = [
        drafter.propose([Request(0, PROMPT[-1], 1, (u,))]).on_host() for u in torch.linspace(0, 0.999, 400).tolist()
    ]
    counts = torch.bincount(torch.tensor([d.tokens[0][0] for d in drawn]), minlength=VOCAB) / 400
    assert torch.allclose(counts.double(), dense(drawn[0].draft_probs[0])[0], atol=0.01)


@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
@pytest.mark.parametrize("rows", [1, 3])
def test_greedy_decoding_with_it_writes_what_plain_decoding_writes(target, kind, rows):
    prompts = [PROMPT, [8, 9], [50, 51, 52, 53]][:rows]
    settings = Settings(k=4, temperature=0.0, max_new_tokens=24)

    def texts(drafter):
        out = {}
        for round_ in decode(target, drafter, prompts, settings, eos_ids=frozenset()):
            for verdict in round_.rows:
                out.setdefault(verdict.row, []).extend(verdict.emitted)
        return out

    assert texts(kind(block_net(), target, settings)) == texts(None)


def test_sampled_decoding_follows_the_targets_own_law(target):
    """Two tokens by the drafter's road, 600 texts, against the exact law of the first (total variation)."""
    settings = Settings(k=3, temperature=1.0, top_k=5, max_new_tokens=2)
    net = block_net()
    from specviz.sampling.rejection import warp

    cache = target.new_cache()
    cache.add(0, len(PROMPT))
    p = warp(target.forward(cache, [0], [PROMPT]).logits[0][-1], 1.0, 5)
    for kind in (ParallelDrafter, HybridDrafter):
        counts = torch.zeros(VOCAB).double()
        for start in range(0, 600, 60):
            drafter = kind(net, target, settings)
            for round_ in decode(
                target,
                drafter,
                [PROMPT] * 60,
                settings,
                seeds=range(start, start + 60),
                eos_ids=frozenset(),
                record=False,
            ):
                if round_.index == 0:
                    for verdict in round_.rows:
                        counts[verdict.emitted[0]] += 1
        assert (counts / 600 - p).abs().sum() / 2 < 0.08


def test_a_drafter_of_another_target_is_refused_in_a_sentence(target):
    net = BlockNet(
        BlockConfig(
            hidden_size=16, vocab_size=VOCAB, layers=1, heads=2, kv_heads=1, head_dim=8, ffn=16, taps=(0,), block=4
        ),
        DRAFT_IDS,
    )
    with pytest.raises(PairError, match="width 16"):
        ParallelDrafter(net, target, Settings())
