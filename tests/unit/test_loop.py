"""The loop on the toy pair: equality with plain decoding, rows, rollback, ends, counts, and chance."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters.autoregressive import AutoregressiveDrafter, first_layers
from specviz.drafters.ngram import NgramDrafter
from specviz.engine import loop
from specviz.engine.loop import Measurements, decode
from specviz.errors import SettingsError
from specviz.models.causal import CausalModel
from specviz.sampling.rejection import warp
from specviz.trace.records import MAX_K, Settings

PROMPTS = [[0, 1, 3], [0], [0, 2, 3, 0, 1, 4, 0], [5, 0, 1]]


def make(name, target, draft, settings):
    if name == "ngram":
        return NgramDrafter(target.vocab_size, target.device)
    if name == "first-layers":
        return first_layers(target, target.first(1), settings)
    if name == "itself":
        return AutoregressiveDrafter(target, target.vocab_size, settings)
    return AutoregressiveDrafter(draft, target.vocab_size, settings)


def run(target, draft, name, prompts, settings, **options):
    drafter = make(name, target, draft, settings) if name else None
    texts = [[] for _ in prompts]
    rounds = list(decode(target, drafter, prompts, settings, **options))
    for round_ in rounds:
        for v in round_.rows:
            texts[v.row] += v.emitted
    return texts, rounds


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "autoregressive", "first-layers", "itself"])
@pytest.mark.parametrize("k", [1, 4, 16])
def test_greedy_speculative_equals_plain_alone_and_in_a_batch(toy_target, toy_draft, drafter, k):
    settings = Settings(k=k, max_new_tokens=40)
    plain = [run(toy_target, toy_draft, None, [p], settings)[0][0] for p in PROMPTS]
    assert all(len(text) == 40 for text in plain)
    assert run(toy_target, toy_draft, drafter, PROMPTS, settings)[0] == plain
    for prompt, text in zip(PROMPTS, plain):
        assert run(toy_target, toy_draft, drafter, [prompt], settings)[0] == [text]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "autoregressive"])
def test_same_seed_gives_the_same_run_alone_or_in_a_batch(toy_target, toy_draft, drafter):
    """Row r of a batch draws from the stream of its own seed: alone with that seed it repeats every verdict."""
    settings = Settings(k=3, temperature=1.0, seed=11, max_new_tokens=30)
    texts, rounds = run(toy_target, toy_draft, drafter, PROMPTS, settings)
    assert texts == run(toy_target, toy_draft, drafter, PROMPTS, settings)[0]
    assert len(set(map(tuple, texts))) > 1
    for row, prompt in enumerate(PROMPTS):
        text, alone = run(toy_target, toy_draft, drafter, [prompt], settings, seeds=[11 + row])
        assert text == [texts[row]]
        together = [v for r in rounds for v in r.rows if v.row == row]
        keep = ("accepted", "emitted", "kind", "bonus_uniform", "context", "proposed")
        assert [[getattr(v, n) for n in keep] for r in alone for v in r.rows] == [
            [getattr(v, n) for n in keep] for v in together
        ]


def test_an_own_drafter_that_is_the_target_is_always_accepted(toy_target, toy_draft):
    """p = q: every draft is accepted. A cache that missed a token (the last draft after a full acceptance) or
    kept a rejected one would break it."""
    settings = Settings(k=4, temperature=1.0, max_new_tokens=60)
    _, rounds = run(toy_target, toy_draft, "itself", PROMPTS, settings)
    assert all(v.accepted == v.proposed for r in rounds for v in r.rows)
    assert all(r.draft_tokens <= sum(v.proposed + 1 for v in r.rows) for r in rounds)


def test_k_may_change_between_rounds_without_stale_caches(toy_target, toy_draft):
    """K cycles through 3, 0, 0, 5, 1: greedy text stays the plain text, and a drafter equal to the target is
    still always accepted."""
    cycle = [3, 0, 0, 5, 1]
    settings = Settings(k=16, max_new_tokens=50)
    plain, _ = run(toy_target, toy_draft, None, PROMPTS, settings)
    for drafter in ("autoregressive", "ngram"):
        texts, _ = run(toy_target, toy_draft, drafter, PROMPTS, settings, choose_k=lambda row: cycle[row.rounds % 5])
        assert texts == plain
    sampled = Settings(k=16, temperature=1.0, max_new_tokens=50)
    _, rounds = run(toy_target, toy_draft, "itself", PROMPTS, sampled, choose_k=lambda row: cycle[row.rounds % 5])
    assert all(v.accepted == v.proposed for r in rounds for v in r.rows)
    assert {v.proposed for r in rounds for v in r.rows} >= {0, 1, 3, 5}


def test_a_chosen_k_is_capped_at_max_k(toy_target, toy_draft, monkeypatch):
    """`choose_k` may ask for more drafts than a Verdict may have; the limit is MAX_K, wherever that is set."""
    assert MAX_K == loop.MAX_K
    for limit in (MAX_K, 3):
        monkeypatch.setattr(loop, "MAX_K", limit)
        settings = Settings(k=1, max_new_tokens=60)
        _, rounds = run(toy_target, toy_draft, "autoregressive", PROMPTS[:1], settings, choose_k=lambda row: 99)
        assert max(v.proposed for r in rounds for v in r.rows) == limit


def test_verifying_less_than_was_proposed_changes_no_greedy_text(toy_target, toy_draft):
    settings = Settings(k=5, max_new_tokens=40)
    plain, _ = run(toy_target, toy_draft, None, PROMPTS, settings)
    texts, rounds = run(
        toy_target,
        toy_draft,
        "autoregressive",
        PROMPTS,
        settings,
        verify_lengths=lambda proposal: [len(t) // 2 for t in proposal.tokens],
    )
    assert texts == plain
    assert any(v.proposed > v.verified for r in rounds for v in r.rows)
    assert all(v.proposed >= v.verified >= v.accepted for r in rounds for v in r.rows)


def test_an_end_token_inside_a_block_ends_the_row_there(toy_target, toy_draft):
    """The full stop taken as end of text: nothing after it is emitted or counted, in whichever slot it falls."""
    settings = Settings(k=8, temperature=1.0, max_new_tokens=60)
    seen = Counter()
    for seed in range(12):
        texts, rounds = run(
            toy_target,
            toy_draft,
            "autoregressive",
            PROMPTS,
            settings,
            eos_ids=frozenset({5}),
            seeds=[seed * 10 + i for i in range(4)],
        )
        for row, text in enumerate(texts):
            assert 5 not in text[:-1]
            last = [v for r in rounds for v in r.rows if v.row == row][-1]
            assert last.finished == ("eos" if text[-1] == 5 else "length")
            assert len(last.emitted) == last.accepted + (last.bonus_token is not None)
            if last.finished == "eos":
                seen[last.kind] += 1
                if last.kind is None:
                    assert last.emitted[-1] == last.positions[last.accepted - 1].draft_token == 5
                    assert all(p.accept_uniform is None for p in last.positions[last.accepted :])
    assert seen[None] and seen["leftover"] + seen["all_accepted"]


def test_the_length_limit_is_met_exactly_and_never_overdrafted(toy_target, toy_draft):
    for length in range(1, 8):
        texts, rounds = run(toy_target, toy_draft, "itself", [[0, 1]], Settings(k=4, max_new_tokens=length))
        assert [len(t) for t in texts] == [length]
        assert rounds[-1].rows[0].finished == "length"
        assert sum(v.accepted for r in rounds for v in r.rows) == sum(v.proposed for r in rounds for v in r.rows)


def test_rows_that_begin_with_the_same_prompt_read_it_once_and_each_says_what_it_says_alone(toy_target, toy_draft):
    prompts = [[0, 1, 3, 0], [2, 3], [0, 1, 3, 0], [0, 1, 3, 0], [4], [4]]
    settings = Settings(k=3, temperature=1.0, max_new_tokens=20)
    before = toy_target.tokens_forwarded
    texts, rounds = run(toy_target, toy_draft, "autoregressive", prompts, settings)
    assert toy_target.tokens_forwarded - before == 3 + 1 + sum(r.target_tokens for r in rounds)
    for row, prompt in enumerate(prompts):
        alone, _ = run(toy_target, toy_draft, "autoregressive", [prompt], replace(settings, seed=row))
        assert alone == [texts[row]]
    assert len({tuple(texts[row]) for row in (0, 2, 3)}) > 1, "each with its own chance"


def test_one_forward_of_k_plus_1_positions_per_round_and_the_prompt_once(toy_target, toy_draft):
    forwards, tokens = toy_target.forwards, toy_target.tokens_forwarded
    _, rounds = run(toy_target, toy_draft, "autoregressive", PROMPTS, Settings(k=4, max_new_tokens=30))
    assert toy_target.forwards - forwards == 1 + len(rounds)
    verified = sum(v.verified + 1 for r in rounds for v in r.rows)
    assert sum(r.target_tokens for r in rounds) == verified
    assert toy_target.tokens_forwarded - tokens == sum(len(p) - 1 for p in PROMPTS) + verified
    for _, v in ((r, v) for r in rounds for v in r.rows):
        assert len(v.positions) == v.verified + 1


def test_closing_the_generator_ends_the_run_and_baseline_steps_leave_no_trace(toy_target, toy_draft):
    settings = Settings(k=3, temperature=1.0, max_new_tokens=30)
    texts, _ = run(toy_target, toy_draft, "autoregressive", PROMPTS, settings)
    measured = Measurements()
    with_baseline, _ = run(
        toy_target, toy_draft, "autoregressive", PROMPTS, settings, baseline_every=1, measured=measured
    )
    assert with_baseline == texts
    assert len(measured.baseline.seconds) > 3
    assert measured.prefill_seconds > 0
    generator = decode(toy_target, None, PROMPTS, settings)
    next(generator)
    generator.close()
    with pytest.raises(StopIteration):
        next(generator)


def test_positions_record_p_q_and_tails_that_add_up(toy_target, toy_draft):
    """Support and tails together are whole distributions; the verdict follows from the recorded numbers; the
    overlap and the leftover of the record are those of the full vectors (six tokens: the support is all)."""
    _, rounds = run(toy_target, toy_draft, "autoregressive", PROMPTS, Settings(k=4, temperature=1.0, max_new_tokens=40))
    for v in (v for r in rounds for v in r.rows):
        for slot, x in enumerate(v.positions):
            assert sum(x.target_probs) + x.tail_target == pytest.approx(1, abs=1e-12)
            logits = torch.tensor(x.target_logits)
            order = torch.tensor(x.support).argsort()
            recorded = torch.tensor(x.target_probs, dtype=torch.float64)
            torch.testing.assert_close(warp(logits, 1.0)[order], recorded[order])
            assert x.target_logsumexp == pytest.approx(float(logits.double().logsumexp(0)), abs=1e-9)
            if x.accept_uniform is not None:
                p, q = x.probs(x.draft_token)
                assert (x.accept_uniform * q < p) == (x.verdict == "accepted")
            assert x.verdict == (
                "bonus"
                if slot == v.verified
                else "accepted"
                if slot < v.accepted
                else "rejected"
                if slot == v.accepted and v.kind == "leftover"
                else "dropped"
            )


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["autoregressive", "ngram", "first-layers"])
def test_sampled_texts_follow_the_targets_law(toy_target, toy_draft, drafter):
    """Chi-square of 3,000 two-token texts, through the whole loop in batches, against the chain rule."""
    settings = Settings(k=2, temperature=1.0, top_p=0.95, max_new_tokens=2)
    counts = Counter()
    for batch in range(60):
        texts, _ = run(
            toy_target,
            toy_draft,
            drafter,
            [[0, 1, 3, 0]] * 50,
            settings,
            record=False,
            seeds=range(50 * batch, 50 * batch + 50),
        )
        counts.update(map(tuple, texts))
    with torch.inference_mode():
        cache = toy_target.new_cache()
        cache.add(0, 20)
        first = warp(toy_target.forward(cache, [0], [[0, 1, 3, 0]]).logits[0][-1], 1.0, 0, 0.95)
        law = {}
        for a in range(6):
            cache.truncate(0, 4)
            second = warp(toy_target.forward(cache, [0], [[a]]).logits[0][0], 1.0, 0, 0.95)
            law |= {(a, b): float(first[a] * second[b]) for b in range(6)}
    assert set(counts) <= {text for text, chance in law.items() if chance > 0}
    likely = [text for text, chance in law.items() if chance * 3000 >= 5]
    observed = [counts[t] for t in likely]
    expected = [law[t] * 3000 for t in likely]
    rest = 3000 - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, 3000 - sum(observed)], [*expected, rest]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_vocabularies_padded_differently_draft_for_each_other(toy_draft):
    """A target with more ids than its drafter, and one with fewer: padding ids that the target emits do not break the
    drafter, and the drafter never proposes ids that the target lacks."""

    def padded(size):
        torch.manual_seed(0)
        config = LlamaConfig(**toy_draft.config.to_dict() | {"vocab_size": size, "tie_word_embeddings": False})
        return CausalModel(LlamaForCausalLM(config))

    for sizes in ((9, 6), (6, 9)):
        target, draft = map(padded, sizes)
        settings = Settings(k=3, temperature=2.0, max_new_tokens=40)
        drafter = AutoregressiveDrafter(draft, target.vocab_size, settings)
        rounds = list(decode(target, drafter, [[0, 1]] * 4, settings))
        emitted = {t for r in rounds for v in r.rows for t in v.emitted}
        assert max(emitted) == sizes[0] - 1
        assert all(
            x.draft_token is None or x.draft_token < min(sizes) for r in rounds for v in r.rows for x in v.positions
        )


@pytest.mark.parametrize(
    "prompts, words",
    [
        ([], "batch"),
        ([[]], "empty"),
        ([[0, 99]], "does not know"),
        ([[0]] * 65, "batch"),
        ([[0] * 5000], "Shorten"),
    ],
)
def test_bad_prompts_are_refused_with_a_sentence(toy_target, prompts, words):
    with pytest.raises(SettingsError, match=words):
        next(decode(toy_target, None, prompts, Settings()))


@pytest.mark.parametrize(
    "bad",
    [
        {"k": -1},
        {"k": 99},
        {"k": 2.5},
        {"k": True},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.01},
        {"max_new_tokens": 0},
        {"max_new_tokens": 10**9},
        {"seed": -1},
        {"top_k": -3},
    ],
)
def test_bad_settings_are_refused_with_a_sentence(bad):
    with pytest.raises(SettingsError, match=r"must be|must"):
        Settings(**bad)
