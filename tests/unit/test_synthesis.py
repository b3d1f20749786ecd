"""Corpus synthesis: conversations follow the template, are functions of their numbers, and shards are continued."""

import itertools

import numpy as np
import pytest
import torch
from test_training import VOCAB, module

from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.training import features, prompts, recipes, shards, synthesis
from specviz.training.corpus import Corpus
from specviz.training.prompts import Plan, UserTurn

END, USER, ANSWER, SYSTEM = 7, 8, 9, 10


class Tokenizer:
    """One character a token; a turn is its role's token, its text and the end token."""

    chat_template = "a template"

    def apply_chat_template(self, turns, tokenize, add_generation_prompt):
        marks = {"user": "\1", "assistant": "\2", "system": "\3"}
        return "".join(f"{marks[t['role']]}{t['content']}\0" for t in turns) + "\2"

    def encode(self, text, add_special_tokens=False):
        return [END + ord(c) if c < "\4" else 11 + ord(c) * 7 % (VOCAB - 11) for c in text]


def made(monkeypatch=None, plans=None, **options):
    """A synthesis on a tiny random target; plans: taken in turn instead of random ones."""
    if plans:
        monkeypatch.setattr(synthesis, "plan", lambda random: plans[int(random.integers(len(plans)))])
    return synthesis.Synthesis(CausalModel(module()), Tokenizer(), **{"rows": 8, "seed": 1, "capacity": 200, **options})


def a_plan(*turns, temperature=1.0, answer_tokens=24, system=None):
    return Plan(kind="short", system=system, turns=turns, temperature=temperature, answer_tokens=answer_tokens)


PLANS = [a_plan(UserTurn("abc"), UserTurn("d")), a_plan(UserTurn("", True), system="be brief"), a_plan(UserTurn("xyz"))]


def test_conversations_follow_the_template_and_their_plans(monkeypatch):
    writer = made(monkeypatch, PLANS)
    turns = 0
    for done in writer.run(iter(range(40))):
        tokens = done.tokens
        for number, (start, end) in enumerate(done.answers):
            assert tokens[start - 1] == ANSWER and tokens[start - 2] == END
            assert END not in tokens[start : end - 1] and end - start <= done.plan.answer_tokens
            user = done.plan.turns[number]
            if not user.by_target:
                given = writer.template.encode(user.text)
                assert tokens[start - 2 - len(given) : start - 2] == given and tokens[start - 3 - len(given)] == USER
            turns += 1
        assert not tokens or (tokens[0] == SYSTEM) == (done.plan.system is not None)
        assert not done.answers or done.answers[-1][1] == len(tokens)
    assert turns > 20 and writer.counts.kept + writer.counts.short + writer.counts.bad_turn >= 40 - 1


def test_a_conversation_is_a_function_of_its_number_whatever_is_written_beside_it(monkeypatch):
    alone = {c.number: c.tokens for c in made(monkeypatch, PLANS, rows=1).run(iter([3, 11]))}
    crowd = {c.number: c.tokens for c in made(monkeypatch, PLANS, rows=8).run(iter(range(16)))}
    assert alone == {n: crowd[n] for n in (3, 11)}
    other = {c.number: c.tokens for c in made(monkeypatch, PLANS, seed=2).run(iter([3, 11]))}
    assert other != alone


@pytest.mark.slow
def test_sampled_answers_follow_the_target_and_greedy_ones_its_argmax(monkeypatch):
    """The first answer token of 2,000 conversations against the target's own distribution, by total variation."""
    writer = made(monkeypatch, [a_plan(UserTurn("abc"), answer_tokens=4, temperature=0.1)], rows=64)
    counts = np.zeros(VOCAB)
    for done in writer.run(iter(range(2000))):
        counts[done.tokens[done.written_from]] += 1
    prompt = torch.tensor([[*writer.template.before_user(None), *writer.template.encode("abc"), END, ANSWER]])
    p = torch.softmax(module()(prompt).logits[0, -1] / 0.1, -1).numpy()
    assert 0.5 * np.abs(counts / counts.sum() - p).sum() < 0.07 < p.max()
    greedy = made(monkeypatch, [a_plan(UserTurn("abc"), temperature=0.0, answer_tokens=4)])
    assert {c.tokens[c.written_from] for c in greedy.run(iter(range(4)))} == {int(p.argmax())}


@pytest.mark.parametrize("length", range(20, 45, 4))
def test_conversations_end_at_the_capacity_whatever_their_turns_are(length, monkeypatch):
    """Given turns that leave room for anything from a whole answer to none, and answers that never end."""
    tokens = itertools.cycle([i for i in range(VOCAB) if i != END])
    monkeypatch.setattr(synthesis, "draw", lambda logits, all_: [next(tokens) for _ in all_])
    plans = [a_plan(UserTurn("a" * n), UserTurn("b" * n), answer_tokens=99) for n in (length, 3)]
    writer = made(monkeypatch, plans, capacity=50)
    done = list(writer.run(iter(range(24))))
    assert len(done) == 24 and {len(c.tokens) for c in done} == {50}


def test_a_turn_of_the_target_that_never_ends_is_dropped(monkeypatch):
    tokens = itertools.cycle([i for i in range(VOCAB) if i != END])
    monkeypatch.setattr(synthesis, "draw", lambda logits, all_: [next(tokens) for _ in all_])
    writer = made(monkeypatch, [a_plan(UserTurn("", True))])
    assert [c.answers for c in writer.run(iter(range(5)))] == [[]] * 5 and writer.counts.bad_turn == 5


def test_a_capacity_without_room_for_an_answer_is_refused(monkeypatch):
    with pytest.raises(SpecVizError, match="10 tokens leave no room"):
        list(made(monkeypatch, [a_plan(UserTurn("a" * 9))], capacity=10).run(iter([0])))


def test_an_answer_that_loops_is_cut_where_the_loop_begins(monkeypatch):
    chance = np.random.default_rng(0)
    drawn = itertools.chain(chance.integers(12, VOCAB, 60).tolist(), itertools.cycle([20, 21, 22]))
    monkeypatch.setattr(synthesis, "draw", lambda logits, all_: [next(drawn) for _ in all_])
    writer = made(monkeypatch, [a_plan(UserTurn("a"), answer_tokens=190)], rows=1)
    [done] = writer.run(iter([0]))
    [(start, end)] = done.answers
    assert done.looped and writer.counts.looped == 1 and 16 <= end - start <= 64 and len(done.tokens) == end


def test_shards_are_continued_and_made_again_alike(tmp_path, monkeypatch):
    def write(folder, tokens, rows=8):
        return shards.write_shards(made(monkeypatch, PLANS, rows=rows), folder, tokens, per_shard=4)

    first = write(tmp_path / "a", 40)
    kept = {p.name: p.read_bytes() for p in (tmp_path / "a").glob("*.npz")}
    assert write(tmp_path / "a", 40) == first and {p.name for p in (tmp_path / "a").iterdir()} == set(kept)
    total = write(tmp_path / "a", first + 60)
    files = sorted((tmp_path / "a").glob("*.npz"))
    assert total >= first + 60 and len(files) > len(kept)
    assert all((tmp_path / "a" / name).read_bytes() == content for name, content in kept.items())
    assert sum(Corpus.load(p).answer_tokens for p in files) == total
    (tmp_path / "a" / files[0].name).unlink()
    write(tmp_path / "a", total, rows=3)  # another batch, the same shard
    assert np.array_equal(Corpus.load(files[0]).token_ids, np.load(_file(kept[files[0].name], tmp_path))["token_ids"])


def test_two_processes_share_a_folder(tmp_path, monkeypatch):
    for part in range(2):
        writer = made(monkeypatch, PLANS, rows=5)
        shards.write_shards(writer, tmp_path / "two", 60 + 60 * part, per_shard=4, share=(part, 2))
    numbers = {int(p.stem[1:]) for p in (tmp_path / "two").glob("*.npz")}
    assert {n % 2 for n in numbers} == {0, 1}
    shards.write_shards(made(monkeypatch, PLANS), tmp_path / "one", 400, per_shard=4)
    for path in (tmp_path / "two").glob("*.npz"):
        if (other := tmp_path / "one" / path.name).exists():
            assert np.array_equal(Corpus.load(path).token_ids, Corpus.load(other).token_ids)


def _file(content, folder):
    (folder / "old.npz").write_bytes(content)
    return folder / "old.npz"


def test_a_shard_knows_which_tokens_are_answers(tmp_path, monkeypatch):
    writer = made(monkeypatch, [a_plan(UserTurn("abc"), UserTurn("d"), answer_tokens=8)])
    shards.write_shards(writer, tmp_path, 30, per_shard=4)
    corpus = Corpus.load(next(tmp_path.glob("*.npz")))
    for i in range(len(corpus)):
        text, answer = corpus.conversation(i), corpus.answers[corpus.bounds[i] : corpus.bounds[i + 1]]
        starts = np.flatnonzero(answer & ~np.roll(answer, 1))
        assert starts[0] == corpus.answer_start[i] and all(text[s - 1] == ANSWER for s in starts)
        assert answer.sum() <= 16 and answer[-1] and not answer[: starts[0]].any()


def test_prompts_are_a_function_of_the_generator_and_varied():
    plans = [prompts.plan(np.random.default_rng([0, n])) for n in range(600)]
    assert plans == [prompts.plan(np.random.default_rng([0, n])) for n in range(600)]
    assert {p.kind for p in plans} == set(prompts.KINDS)
    assert {len(p.turns) for p in plans} == {1, 2, 3} and {p.temperature for p in plans} == {0.0, 0.7, 0.8, 1.0}
    texts = {t.text for p in plans for t in p.turns if t.text}
    assert len(texts) > 550 and not any("{" in t and "}" not in t for t in texts)
    assert sum(p.system is not None for p in plans) > 80 and sum(t.by_target for p in plans for t in p.turns) > 100


def test_every_name_in_the_word_lists_is_a_list():
    import re

    lists = prompts.phrases()
    for name, entries in lists.items():
        assert entries and (name == "program" or all(n in lists for e in entries for n in re.findall(r"{(\w+)}", e)))


def test_validation_prompts_are_twenty_and_more_of_every_kind_and_none_is_in_the_word_lists():
    found = prompts.validation()
    assert set(found) == {"code", "copying", "list", "story", "maths", "translation", "chat", "misspelt"}
    texts = [text for entries in found.values() for text in entries]
    assert len(set(texts)) == len(texts) >= 20
    known = {entry.lower() for entries in prompts.phrases().values() for entry in entries}
    assert not {text.lower() for text in texts} & known


def test_the_whole_recipe_runs_from_shards_to_calibrated_drafters(tmp_path):
    """Corpus, taps, closed-form start, a few steps, calibration: every part fits the next."""
    from specviz.training import block, causal, confidence

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
    corpus.save(tmp_path / "s0.npz")
    s = recipes.setting(stock, features.TapStore(tmp_path, CausalModel(module())), torch.arange(0, VOCAB, 2))
    assert s.judging and s.calibrating and not set(s.judging) & set(s.calibrating)
    assert not set(s.held_out) & set(s.train)
    assert 0 < recipes.coverage(s) < 1
    net = recipes.block_net(s, layers=1)
    recipes.start_block(net, s, limit=40)
    done = recipes.train_block(
        net, s, block.BlockRecipe(block_lengths=(4, 8), slots_per_row=16), lambda at: at.step / 3
    )
    assert confidence.fit(net, s, limit=16, steps=5) > 0
    assert done.step == 3 and len(confidence.calibrate(net, s)) == net.config.block
    assert {len(v) for v in recipes.alpha_block(net, s).values()} == {8}
    small = recipes.causal_net(s, (0, 3))
    recipes.start_causal(small, s, limit=40)
    recipes.train_causal(small, s, causal.CausalRecipe(), lambda at: at.step / 2)
    assert 0 < recipes.alpha_causal(small, s) < 1
