"""Batched generation: the lock-step model is the stock model, conversations follow the template, shards go on."""

import itertools

import numpy as np
import pytest
import torch
from test_training import VOCAB, module

from specviz.errors import SpecVizError
from specviz.training import features, recipes, synthesis
from specviz.training.corpus import Corpus

END = 7


class Tokenizer:
    """One character a token; the template is <...> with the end token between turn and answer."""

    def apply_chat_template(self, turns, tokenize, add_generation_prompt):
        return f"<<{turns[0]['content']}>!>"

    def encode(self, text, add_special_tokens=False):
        return [END if c == ">" else (ord(c) * 7) % VOCAB for c in text]

    def decode(self, ids):
        return "x" * len(ids)


def test_a_step_of_many_rows_at_their_own_places_is_the_stock_model():
    stock = module()
    model = synthesis.LockStep(stock, 3, 16, torch.float32)
    texts = torch.randint(0, VOCAB, (3, 8), generator=torch.Generator().manual_seed(0))
    for t in range(8):  # the third row starts again at step 4
        at = torch.tensor([t, t, t if t < 4 else t - 4])
        logits = model.step(texts[:, t], at)
    assert torch.allclose(logits[:2], stock(texts[:2]).logits[:, -1], atol=1e-4)
    assert torch.allclose(logits[2], stock(texts[2:, 4:]).logits[0, -1], atol=1e-4)


def test_conversations_follow_the_template_and_the_filters(tmp_path):
    made = synthesis.Synthesis(module(), Tokenizer(), rows=8, capacity=90, seed=1)
    corpus, tally = made.run(6)
    assert tally.kept == len(corpus) >= 6 and tally.answer_tokens == corpus.answer_tokens
    for i in range(len(corpus)):
        text, start = corpus.conversation(i).tolist(), int(corpus.answer_start[i])
        assert text[:2] == made.before and text[start - 3 : start] == made.after
        assert END not in text[start:-1] and (text[-1] == END or len(text) == 90)
        assert len(text) - start >= synthesis.SHORTEST_ANSWER
        if (topic := corpus.topic[i]) >= 0:
            assert text[2 : 2 + len(made.topics[topic])] == made.topics[topic]


@pytest.mark.slow
@pytest.mark.parametrize("share_composed", [0.0, 1.0], ids=["turns of the target", "given turns"])
def test_conversations_end_at_the_capacity_whatever_their_turns_are(share_composed, monkeypatch):
    """Given turns of 1 to 60 tokens in a capacity of 50, and a target that never ends a turn: cut, or not used."""
    monkeypatch.setattr(synthesis, "SHARE_COMPOSED", share_composed)
    monkeypatch.setattr(synthesis, "SHARE_WITH_TOPIC", 1.0)
    lengths, drawn = itertools.cycle(range(1, 61)), itertools.cycle([i for i in range(VOCAB) if i != END])
    monkeypatch.setattr(synthesis.turns, "compose", lambda random: "a" * next(lengths))
    made = synthesis.Synthesis(module(), Tokenizer(), rows=8, capacity=50, seed=1)
    monkeypatch.setattr(made, "_draw", lambda logits, rows: [next(drawn) for _ in rows])
    calls = itertools.count()
    corpus, tally = made.run(40 if share_composed else 1, stop=lambda: next(calls) >= 600)
    if not share_composed:  # a turn that never ends is no prompt
        assert corpus is None and tally.unfinished_prompt > 8
        return
    turns = {int(start) - 5 for start in corpus.answer_start}
    assert set(corpus.length.tolist()) == {50} and len(corpus) >= 40
    assert max(turns) == 50 - 5 - synthesis.SHORTEST_ANSWER, "the longest turn that leaves room for an answer is used"


def test_a_capacity_without_room_for_an_answer_is_refused():
    with pytest.raises(SpecVizError, match="at least 26 tokens"):
        synthesis.Synthesis(module(), Tokenizer(), rows=2, capacity=25)
    assert synthesis.Synthesis(module(), Tokenizer(), rows=2, capacity=26).model.capacity == 26


def test_shards_are_continued_until_there_are_enough_tokens(tmp_path):
    made = synthesis.Synthesis(module(), Tokenizer(), rows=8, capacity=90, seed=2)
    first = synthesis.write_shards(made, tmp_path, 100, conversations_per_shard=3)
    count = len(list(tmp_path.glob("*.npz")))
    total = synthesis.write_shards(made, tmp_path, first + 1, conversations_per_shard=3)
    assert first >= 100 and total > first and len(list(tmp_path.glob("*.npz"))) == count + 1
    assert sum(Corpus.load(p).answer_tokens for p in tmp_path.glob("*.npz")) == total


def test_the_whole_recipe_runs_from_shards_to_calibrated_drafters(tmp_path):
    """Corpus, taps, closed-form start, a few steps, calibration: every part fits the next."""
    from specviz.models.causal import CausalModel
    from specviz.training import block, causal

    stock = module()
    chance = np.random.default_rng(0)
    length = np.full(120, 40, np.uint16)
    corpus = Corpus(
        chance.integers(0, VOCAB, 120 * 40).astype(np.uint16),
        length,
        np.full(120, 8, np.uint16),
        np.zeros(120, np.float32),
        np.full(120, -1, np.int16),
    )
    features.compute(CausalModel(stock), corpus, tmp_path / "s0")
    s = recipes.setting(stock, features.TapStore(tmp_path), torch.arange(0, VOCAB, 2))
    assert s.judging and s.calibrating and not set(s.judging) & set(s.calibrating)
    assert not set(s.held_out) & set(s.train)
    assert 0 < recipes.coverage(s) < 1
    net = recipes.block_net(s, layers=1)
    recipes.start_block(net, s, limit=40)
    done = recipes.train_block(net, s, block.BlockRecipe(slots=(4, 8), anchors=16), lambda at: at.step / 3)
    assert recipes.fit_confidence(net, s, limit=16, steps=5) > 0
    assert done.step == 3 and len(recipes.calibrate(net, s)) == net.config.block
    assert {len(v) for v in recipes.alpha_block(net, s).values()} == {8}
    small = recipes.causal_net(s, (0, 3))
    recipes.start_causal(small, s, limit=40)
    recipes.train_causal(small, s, causal.CausalRecipe(), lambda at: at.step / 2)
    assert 0 < recipes.alpha_causal(small, s) < 1
