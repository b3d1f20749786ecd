"""Retuning: orders that cannot be, the split, one whole retuning of a tiny drafter, Stop, and what is claimed of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters import checkpoints
from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.engine.model_store import LoadedModel
from specviz.errors import SettingsError
from specviz.models.causal import CausalModel
from specviz.training import evaluate, retune
from specviz.training.corpus import Corpus
from specviz.training.retune import Retune, RetuneOrder

VOCAB, SIZE = 60, 32
PROMPTS = tuple(f"prompt number {i}" for i in range(8))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A tiny target and an untrained hybrid drafter in the place of the embedded ones."""
    torch.manual_seed(0)
    module = (
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=SIZE,
                intermediate_size=48,
                num_hidden_layers=4,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
        .eval()
        .requires_grad_(False)
    )

    class Tokenizer:
        chat_template = eos_token_id = None

        def encode(self, text, add_special_tokens):
            return [ord(c) % VOCAB for c in text]

    class Store:
        def open(self, *_, **__):
            return LoadedModel(CausalModel(module), Tokenizer(), "cpu", "fp32")

    net = BlockNet(
        BlockConfig(
            hidden_size=SIZE,
            vocab_size=VOCAB,
            layers=2,
            heads=4,
            kv_heads=2,
            head_dim=8,
            ffn=48,
            taps=(0, 2),
            block=16,
            serial=24,
        ),
        torch.arange(0, VOCAB, 2),
    )
    source = checkpoints.save(tmp_path / "shipped", "hybrid", net, {"licence": "Apache-2.0"})
    monkeypatch.setattr(retune, "trained", lambda: {"hybrid": source})
    chance = np.random.default_rng(0)
    old = Corpus(
        chance.integers(0, VOCAB, 60).astype(np.uint16),
        np.full(3, 20, np.uint16),
        np.full(3, 6, np.uint16),
        np.zeros(3, np.float32),
        np.full(3, -1, np.int16),
    )
    monkeypatch.setattr(retune, "_old_domain", lambda: old)
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    return Store()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": PROMPTS[:7]}, "8 to 200 prompts"),
        ({"prompts": (*PROMPTS, " ")}, "none empty"),
        ({"prompts": (*PROMPTS, PROMPTS[0])}, "twice"),
        ({"name": "../x"}, "name"),
        ({"name": ""}, "name"),
        ({"seconds": 0}, "more than 0 seconds"),
        ({"k": 17}, "K must be"),
        ({"answer_tokens": 9}, "16 to 512"),
    ],
)
def test_an_order_that_cannot_be_is_refused_in_a_sentence(change, words):
    with pytest.raises(SettingsError, match=words):
        replace(RetuneOrder(PROMPTS), **change)


def test_a_whole_retuning_judges_on_prompts_it_never_trained_on_and_keeps_a_drafter(tiny, monkeypatch):
    trained_on = []
    real = retune.Retune._train

    def spying(self, net, s):
        trained_on.extend(tuple(s.store.batch([n]).tokens[0].tolist()) for n in s.train)
        return real(self, net, s)

    monkeypatch.setattr(retune.Retune, "_train", spying)
    job = Retune(RetuneOrder(PROMPTS, "mine", seconds=0.5, answer_tokens=16), tiny).execute()
    assert job.status == "complete", job.error
    found = job.result
    assert (found.prompts, found.held_out) == (8, 2) and found.steps > 0
    assert len(trained_on) == 12, "six prompts, two answers each"
    held = [tuple(ord(c) % VOCAB for c in PROMPTS[i]) for i in (3, 7)]
    assert not any(text[: len(prompt)] == prompt for text in trained_on for prompt in held)
    assert found.before.live.identical_to_plain == found.after.live.identical_to_plain == 2
    assert len(found.after.overlap) == 8 and found.folder.name == "mine"
    assert checkpoints.load_block_net(found.folder).config.serial == 24
    assert found.folder == retune.folder_of("mine")


def test_stop_keeps_nothing(tiny):
    job = Retune(RetuneOrder(PROMPTS, "mine", seconds=600, answer_tokens=16), tiny)
    job.stop()
    assert job.execute().status == "stopped" and job.error is None
    assert job.result is None and not retune.folder_of("mine").exists()


def _live(counts):
    blank = dict.fromkeys(
        (
            "mean_acceptance_length_ci",
            "mean_acceptance_length_without_loops",
            "plain_tokens_per_second",
            "identical_to_plain",
        )
    )
    total = sum(t for t, _ in counts) / sum(p for _, p in counts)
    return evaluate.Live(
        mean_acceptance_length=total,
        acceptance_by_position=[],
        survival_by_position=[],
        overlap_by_position=[],
        distinct_4=1.0,
        looping_prompts=0,
        prompts=len(counts),
        tokens_per_second=1.0,
        first_differences=[],
        by_prompt=tuple(counts),
        **blank,
    )


def test_the_gain_is_paired_and_its_interval_says_how_sure_it_is():
    before = _live([(20, 10), (60, 20), (15, 10)])
    assert evaluate.gain(before, before) == (0, 0, 0)
    after = _live([(20, 8), (60, 16), (15, 8)])  # every prompt in four fifths of the passes
    difference, low, high = evaluate.gain(before, after)
    assert difference == pytest.approx(95 / 32 - 95 / 40) and 0 < low <= difference <= high
    mixed = _live([(20, 8), (60, 25), (15, 9)])
    assert evaluate.gain(before, mixed)[1] < 0 < evaluate.gain(before, mixed)[2]
    with pytest.raises(ValueError, match="at least two"):
        evaluate.gain(_live([(1, 1)]), _live([(1, 1)]))


def test_the_sentence_claims_a_change_only_where_the_interval_excludes_none():
    side = retune.Judged(_live([(20, 10), (30, 15)]), [0.5], [0.5])
    say = lambda gain: retune.Retuned(side, side, gain, 8, 2, 1, 1, 1.0, None).sentence  # noqa: E731
    assert "longer" in say((0.2, 0.1, 0.3)) and "shorter" in say((-0.2, -0.3, -0.1))
    assert "no clear change" in say((0.2, -0.1, 0.5))


def test_results_by_kind_of_text_pool_the_passes_of_each_kind():
    found = evaluate.by_kind(["code", "story", "code"], _live([(20, 10), (60, 20), (40, 10)]))
    assert found["code"][0] == 3.0 and found["code"][1] <= 3.0 <= found["code"][2] and found["code"][3] == 2
    assert found["story"] == (3.0, 3.0, 3.0, 1)
