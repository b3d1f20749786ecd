"""The commands `train` and `drafters`: what they accept, and that bad input is refused in a sentence."""

import argparse

import pytest

from specviz import cli_training
from specviz.errors import SettingsError


def parsed(*words):
    parser = argparse.ArgumentParser()
    cli_training.add_parsers(parser.add_subparsers(required=True))
    return parser.parse_args(words)


@pytest.mark.parametrize("words", [
    ("train", "corpus", "x", "--tokens", "0"), ("train", "corpus", "x", "--rows", "9999"),
    ("train", "drafter", "hybrid", "x", "y", "--minutes", "0"),
    ("train", "drafter", "hybrid", "x", "y", "--learning-rate", "2"),
    ("drafters", "eval", "--k", "0"), ("drafters", "eval", "--k", "17"), ("drafters", "eval", "--count", "0"),
    ("drafters", "eval", "--temperature", "-1"),
])
def test_values_that_cannot_be_are_refused_before_anything_is_loaded(words):
    arguments = parsed(*words)
    with pytest.raises(SettingsError):
        arguments.handler(arguments)


def test_prompts_are_the_lines_of_a_file_or_held_out_ones(tmp_path):
    class Tokenizer:
        def apply_chat_template(self, turns, add_generation_prompt, return_dict):
            return {"input_ids": [len(turns[0]["content"])]}

    file = tmp_path / "p.txt"
    file.write_text("one\n\nthree\n")
    assert cli_training._prompts(str(file), Tokenizer()) == [[3], [5]]
    held = cli_training._prompts("heldout", Tokenizer())
    assert len(held) > 20 and all(len(p) > 20 for p in held)
    with pytest.raises(SettingsError, match="cannot be read"):
        cli_training._prompts(str(tmp_path / "none.txt"), Tokenizer())
    file.write_text("\n")
    with pytest.raises(SettingsError, match="no prompt"):
        cli_training._prompts(str(file), Tokenizer())


def test_a_typed_kind_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        parsed("train", "drafter", "magic", "x", "y")
    assert "invalid choice" in capsys.readouterr().err
