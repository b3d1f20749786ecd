"""The commands `train` and `drafters`: what they accept, and that bad input is refused in a sentence."""

import argparse
import json

import numpy as np
import pytest
import torch
from tiny_models import byte_level_tokenizer, write_dflash

from specviz.cli import drafter_evaluation, main, training
from specviz.errors import SettingsError
from specviz.training.corpus import Corpus


def parsed(*words):
    parser = argparse.ArgumentParser()
    training.add_parsers(parser.add_subparsers(required=True))
    return parser.parse_args(words)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "corpus", "x", "--tokens", "0"),
        ("train", "corpus", "x", "--rows", "9999"),
        ("train", "corpus", "x", "--share", "3/2"),
        ("train", "corpus", "x", "--share", "half"),
        ("train", "drafter", "hybrid", "x", "y", "--minutes", "0"),
        ("train", "drafter", "hybrid", "x", "y", "--learning-rate", "2"),
        ("drafters", "eval", "--k", "0"),
        ("drafters", "eval", "--k", "17"),
        ("drafters", "eval", "--count", "0"),
        ("drafters", "eval", "--temperature", "-1"),
    ],
)
def test_values_that_cannot_be_are_refused_before_anything_is_loaded(words):
    arguments = parsed(*words)
    with pytest.raises(SettingsError):
        arguments.handler(arguments)


def test_prompts_are_the_lines_of_a_file_or_held_out_ones(tmp_path):
    class Tokenizer:
        chat_template = eos_token_id = None

        def encode(self, text, add_special_tokens):
            return [len(text)]

    file = tmp_path / "p.txt"
    file.write_text("one\n\nthree\n")

    def prompts(source, count=99):
        return drafter_evaluation._prompts(str(source), Tokenizer(), count)

    assert prompts(file) == ([], [[3], [5]]) and prompts(file, 1) == ([], [[3]])
    kinds, held = prompts("heldout")
    assert len(held) > 20 and all(len(p) > 20 for p in held) and kinds == []
    with pytest.raises(SettingsError, match="cannot be read"):
        prompts(tmp_path / "none.txt")
    file.write_text("\n")
    with pytest.raises(SettingsError, match="no prompt"):
        prompts(file)
    kinds, found = prompts("validation")
    assert len(kinds) == len(found) >= 20 and len(set(kinds)) == 8
    assert len(set(prompts("validation", 8)[0])) == 8, "the first prompts are of every kind"


def test_a_typed_kind_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        parsed("train", "drafter", "magic", "x", "y")
    assert "invalid choice" in capsys.readouterr().err


def test_eval_measures_any_drafter_of_a_pair_end_to_end(tmp_path, toy_target, capsys):
    """On the toy pair, in a second: one of the pair's own and a published one's folder; every promised key is there."""
    (tmp_path / "prompts.txt").write_text("the cat sees the\nthe dog and\n")
    folder = write_dflash(tmp_path / "mine", toy_target)
    words = [
        "drafters",
        "eval",
        "--pair",
        "toy",
        "--prompts",
        str(tmp_path / "prompts.txt"),
        "--k",
        "3",
        "--max-new-tokens",
        "12",
        "--drafter",
        str(folder),
        "--drafter",
        "autoregressive",
        "--json",
    ]
    assert main.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert [d["name"] for d in told["drafters"]] == [str(folder), "autoregressive"] and told["prompts"] == 2
    for one in told["drafters"]:
        assert one["identical_to_plain"] == 2 and one["tokens_per_second"] > 0 and one["plain_tokens_per_second"] > 0
        assert {
            "mean_acceptance_length",
            "mean_acceptance_length_ci",
            "acceptance_by_position",
            "alpha_by_position",
            "draft_seconds_by_k",
            "distinct_4",
        } <= one.keys()
    assert list(told["drafters"][0]["draft_seconds_by_k"]) == [str(k) for k in range(1, 8)]  # its block's K
    assert main.main(words[:-1]) == 0
    assert "mean acceptance length" in capsys.readouterr().out


def test_eval_tells_what_the_serial_pass_adds_with_its_interval(at_embedded_home, capsys):
    words = [
        "drafters",
        "eval",
        "--count",
        "2",
        "--k",
        "3",
        "--max-new-tokens",
        "12",
        "--drafter",
        "hybrid",
        "--drafter",
        "parallel",
    ]
    assert main.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    lengths = {d["name"]: d["mean_acceptance_length"] for d in told["drafters"]}
    found = told["hybrid_minus_parallel"]
    assert found["mean_acceptance_length"] == pytest.approx(lengths["hybrid"] - lengths["parallel"])
    assert found["ci"][0] <= found["mean_acceptance_length"] <= found["ci"][1]
    assert main.main(words) == 0
    assert "hybrid minus parallel: mean acceptance length" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pair", "toy"], "no trained drafters"),
        (["--pair", "toy", "--drafter", "ngram"], "held-out prompts"),
        (["--drafter", "magic"], "has no drafter 'magic'"),
    ],
)
def test_eval_says_what_it_cannot_measure(words, said, capsys):
    assert main.main(["drafters", "eval", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture
def chatty_folder(tmp_path):
    """A random target of six layers with a chat template, as a model folder."""
    from test_training import module
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {**module().config.to_dict(), "num_hidden_layers": 6, "vocab_size": 300, "max_position_embeddings": 256}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(tmp_path / "target")
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.slow
def test_a_corpus_and_both_kinds_of_drafters_are_made_from_the_command_line_and_continued(
    chatty_folder, tmp_path, capsys
):
    pair, shards = ["--pair", str(chatty_folder)], str(tmp_path / "shards")
    write = ["train", "corpus", shards, *pair, "--tokens", "2000", "--rows", "32"]
    assert main.main(write) == 0 and "answer tokens in" in capsys.readouterr().out
    assert main.main(write) == 0, "nothing is left to write"

    def train(kind, to, *more):
        capsys.readouterr()
        words = ["train", "drafter", kind, shards, str(tmp_path / to), *pair, "--minutes", "0.02", *more]
        assert main.main(words) == 0
        return json.loads(capsys.readouterr().out)

    first = train("hybrid", "a")
    assert first["steps"] > 0 and set(first["alpha_by_position"]) == {"parallel", "hybrid"}
    again = train("hybrid", "a")
    assert again["steps"] == first["steps"], "a finished run is not trained further"
    other = train("hybrid", "b", "--from", str(tmp_path / "a" / "hybrid"))
    assert other["steps"] > 0
    assert train("autoregressive", "c")["steps"] > 0
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"parallel", "hybrid", "training"}


def test_what_cannot_be_trained_is_refused_in_a_sentence(tmp_path, capsys):
    assert main.main(["train", "corpus", str(tmp_path / "x"), "--pair", "toy", "--tokens", "10"]) == 2
    assert "no chat template" in capsys.readouterr().err
    tokens = np.zeros(400, np.uint16)
    Corpus(tokens, np.full(20, 20), np.full(20, 5), np.zeros(20, np.float32), np.full(20, -1)).save(tmp_path / "s.npz")
    assert main.main(["train", "drafter", "hybrid", str(tmp_path), str(tmp_path / "y"), "--pair", "toy"]) == 2
    assert "needs a target of at least 3" in capsys.readouterr().err
    words = ["train", "drafter", "autoregressive", str(tmp_path), str(tmp_path / "y"), "--pair", "toy", "--from", "a"]
    assert main.main(words) == 2 and "--from is for hybrid" in capsys.readouterr().err
