"""Peers decode the task that we decode, whatever the model's generation config asks for; else no winner is named."""

import json
import sys

import pytest
import torch
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.bench import benchmark, peers, systems
from specviz.bench.peers import Generation
from specviz.bench.report import winner
from specviz.bench.same_task import Departure, departure
from specviz.bench.systems import System
from specviz.engine.loop import decode
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.loader import generation_config, load_model
from specviz.models.causal import CausalModel
from specviz.trace.records import Settings

WISHES = {
    "repetition_penalty": 1.9,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [1, 2, 3],
    "forced_eos_token_id": 7,
    "min_new_tokens": 4,
    "bad_words_ids": [[9]],
    "num_beams": 3,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.8,
    "top_k": 20,
}


@pytest.fixture
def wishing(tmp_path):
    """A model folder whose generation config asks for much."""
    tiny_model().save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(WISHES))
    return tmp_path


def plain(model, prompt, tokens, eos=frozenset()):
    rounds = decode(model, None, [prompt], Settings(k=0, max_new_tokens=tokens), eos_ids=eos, record=False)
    return [t for r in rounds for v in r.rows for t in v.emitted]


@pytest.mark.parametrize("eos", [False, True])
def test_transformers_decodes_our_task_whatever_the_model_asks_for(wishing, eos):
    """Plain, by lookup and assisted; the same module asked without this care says something else."""
    ours = CausalModel(load_model.load_module(wishing, "cpu", "fp32"))
    prompt = [84, 72, 69, 32, 67, 84, 72, 69]
    text = plain(ours, prompt, 24)
    ends = frozenset({max(text, key=text.index)} if eos else ())
    wanted = plain(ours, prompt, 24, ends)
    assert (len(wanted) < 24) == eos
    stock = load_model.load_module(wishing, "cpu", "fp32", stock=True)
    careless = stock.generate(torch.tensor([prompt]), max_new_tokens=24, num_beams=1, do_sample=False, pad_token_id=0)
    assert careless[0, len(prompt) :].tolist() != text
    peer = peers.Transformers(stock, "cpu", "fp32", ends)
    assistant = load_model.load_module(wishing, "cpu", "fp32", stock=True)
    for run in (
        peer.runner(),
        peer.runner(prompt_lookup_num_tokens=4),
        peer.assisted(assistant, 3, "constant", 0.0),
        peer.assisted(assistant, *peers.ASSISTED[0]),
    ):
        assert run([prompt], 24).texts == [wanted]


def test_llama_server_is_asked_for_greedy_decoding_and_nothing_else():
    asked = peers._SERVER_GREEDY
    assert asked["temperature"] == 0 and asked["repeat_penalty"] == 1 and asked["dry_multiplier"] == 0
    assert not asked["frequency_penalty"] and not asked["presence_penalty"] and asked["samplers"][0] == "top_k"


def test_a_run_says_what_the_model_asks_for_and_it_does_not_do(wishing, empty_home):
    run = Run(
        RunRequest(str(wishing), "ngram", "the cat", Settings(max_new_tokens=4), raw=True, precision="fp32")
    ).execute()
    assert run.status == "complete", run.error
    assert "asks for repetition_penalty 1.9, no_repeat_ngram_size 2" in run.trace.note
    assert "suggests temperature 0.7, top_p 0.8, top_k 20" in run.trace.note


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"repetition_penalty": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0, "suppress_tokens": null}',
        '{"do_sample": false, "temperature": 0.7, "eos_token_id": 2}',
        "[1]",
        "not JSON",
    ],
)
def test_nothing_is_said_where_nothing_is_asked_for(tmp_path, text):
    (tmp_path / "generation_config.json").write_text(text)
    assert generation_config.note(tmp_path) == "" and generation_config.note(tmp_path / "none") == ""


@pytest.fixture
def said(toy_target):
    return {0: [plain(toy_target, [0, 1, 3], 12)], 1: [plain(toy_target, [0, 2], 12)]}


GROUPS = [[[0, 1, 3]], [[0, 2]]]


def test_texts_that_part_by_more_than_rounding_are_another_task(toy_target, said):
    def found(other, precision="fp32"):
        return departure(toy_target, GROUPS, said, other, precision)

    assert found(said) is None and found({1: said[1]}) is None
    text = said[1][0]
    least = _logits(toy_target, [0, 2, *text[:4]]).argmin().item()
    changed = [*text[:4], least, *text[5:]]
    first = found({0: said[0], 1: [changed]})
    assert (first.prompt, first.token) == (1, 4) and first.gap > 0.1 and "token 5 of prompt 2" in str(first)
    assert found({1: [text[:6]]}) == Departure(1, 6, None)
    assert found({1: [[*text[:4], 10**6]]}).gap == float("inf")


def test_a_near_tie_is_rounding_and_no_other_task(toy_target, said, monkeypatch):
    text = said[1][0]
    second = _logits(toy_target, [0, 2, *text[:4]]).topk(2).indices[1].item()
    other = {1: [[*text[:4], second, 0, 0, 0]]}
    monkeypatch.setitem(sys.modules["specviz.bench.same_task"].NEAR_TIE, "fp32", 100.0)
    assert departure(toy_target, GROUPS, said, other, "fp32") is None


def _logits(model, tokens):
    cache = model.new_cache()
    cache.add(0, len(tokens))
    return model.forward(cache, [0], [tokens], logits=[1]).logits[0][0]


def test_no_winner_is_named_between_different_tasks():
    def system(name, rate, departs=None):
        rates = dict(enumerate([rate] * 6))
        made = System(name, "plain", "fp32", lambda group, tokens: Generation([[]], 1.0), 3, rates=rates)
        made.departs = departs
        return made

    ours, fair = system("specviz", 9.0), system("transformers", 4.0)
    assert winner([ours, fair]) == ours.label
    for rate in (1.0, 99.0):
        other = system("vLLM", rate, Departure(0, 3, 2.0))
        assert winner([ours, fair, other]) == f"no winner: {other.label} decoded another task"


def test_a_peer_with_another_task_is_reported_and_left_out_of_the_ratios(at_embedded_home, monkeypatch):
    """transformers with a repetition penalty, as its own config might ask for."""
    real = peers.Transformers._greedy
    monkeypatch.setattr(peers.Transformers, "_greedy", lambda self, **more: real(self, repetition_penalty=3.0, **more))
    scale = systems.Scale(picking=1, prompts=3, tokens=12, steps=2, picking_tokens=8, seconds=60, least=2, assisted=0)
    found = benchmark.bench("toy", ["ngram"], [2], "fp32", "cpu", True, scale)
    assert found["winner"].startswith("no winner: transformers") and "another task" in found["winner"]
    assert found["speedup_vs_transformers_plain"] is None
    assert any("decoded another task: at token" in note for note in found["notes"])
    rows = {(r["system"], r["setting"]): r["same_task"] for r in found["rows"]}
    assert rows["specviz", "ngram"] and not rows["transformers", "plain"]
