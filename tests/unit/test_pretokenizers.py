"""Pre-tokenizers of GGUF files by name: the splits that the models' published tokenizers make, and refusals."""

import pytest
from tokenizers import Tokenizer, decoders, models

from specviz.errors import FetchError
from specviz.loader import pretokenizers
from specviz.loader.pretokenizers import RULES

TEXT = "\n\n1. It's 12345 AbcDef,x(y)  \tz\u00e9  end  "
NEWLINES_ONE = ["\n\n", "1", ".", " It", "'s"]
CODE, SPACES = [",", "x", "(", "y", ")"], ["  ", "\t", "zé", " ", " end", "  "]
WORDS = [" AbcDef", ",x", "(y", ")", "  ", "\tzé", " ", " end", "  "]
DIGITS = [" ", "1", "2", "3", "4", "5"]

KNOWN = {
    "smollm": [*NEWLINES_ONE, *DIGITS, " AbcDef", *CODE, *SPACES],
    "gpt-2": ["\n", "\n", "1", ".", " It", "'s", " 12345", " AbcDef", *CODE, *SPACES],
    "default": ["\n", "\n", "1", ".", " It", "'", "s", " ", "123", "45", " AbcDef", *CODE, *SPACES],
    "falcon": ["\n", "\n", "1", ".", " It", "'", "s", " ", "123", "45", " AbcDef", *CODE, *SPACES],
    "llama-bpe": [*NEWLINES_ONE, " ", "123", "45", *WORDS],
    "dbrx": [*NEWLINES_ONE, " ", "123", "45", *WORDS],
    "qwen2": [*NEWLINES_ONE, *DIGITS, *WORDS],
    "qwen35": [*NEWLINES_ONE, *DIGITS, *WORDS],
    "seed-coder": [*NEWLINES_ONE, *DIGITS, *WORDS],
    "bailingmoe": [*NEWLINES_ONE, *DIGITS, *WORDS],
    "minicpm5": [*NEWLINES_ONE, " ", "123", "45", *WORDS],
    "deepseek-v3": [*NEWLINES_ONE, " ", "123", "45", *WORDS],
    "tekken": [*NEWLINES_ONE, *DIGITS, " Abc", "Def", *WORDS[1:]],
    "gpt-4o": ["\n\n", "1", ".", " It's", " ", "123", "45", " Abc", "Def", *WORDS[1:]],
    "bloom": ["\n\n", "1", ".", " It's", " 12345", " AbcDef", ",", "x", "(", "y", ")  \t", "zé", " ", " end", "  "],
    "viking": ["\n\n", "1", ".", " It's", *DIGITS, " AbcDef", ",", "x", "(", "y", ")  \t", "zé", " ", " end", "  "],
    "deepseek-coder": [
        "\n",
        "\n",
        "1",
        ".",
        " It",
        "'",
        "s",
        *DIGITS,
        " AbcDef",
        *CODE,
        "  ",
        "\tzé",
        " ",
        " end",
        "  ",
    ],
    "deepseek-llm": [
        "\n",
        "\n",
        "1",
        ".",
        " It",
        "'",
        "s",
        *DIGITS,
        " AbcDef",
        *CODE,
        "  ",
        "\tz",
        "é",
        " ",
        " end",
        "  ",
    ],
    "chameleon": [
        "\n",
        "\n",
        "1",
        ".",
        " It",
        "'",
        "s",
        *DIGITS,
        " AbcDef",
        *CODE,
        "  ",
        "\t",
        "zé",
        "  ",
        "end",
        "  ",
    ],
}


def pieces(name: str, text: str) -> list[str]:
    """How the pre-tokenizer of a name splits a text, in the text's own letters."""
    return [text[start:end] for _, (start, end) in RULES[name].pre_tokenizer().pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_text_with_lines_digits_and_signs_is_split_as_the_models_of_that_name_do(name):
    assert pieces(name, TEXT) == KNOWN[name]


def test_what_tells_relatives_apart():
    assert pieces("seed-coder", "a!\n\nb") == ["a", "!", "\n\n", "b"]
    assert pieces("qwen2", "a!\n\nb") == ["a", "!\n\n", "b"]
    assert pieces("gpt-4o", "a//\n/b") == ["a", "//\n/", "b"]
    assert pieces("exaone-moe", "to be sure 12\n\n") == ["to be sure", " ", "1", "2", "\n\n"]
    assert pieces("exaone-moe", "a!\n\nb") == ["a", "!\n", "\n", "b"]
    assert pieces("qwen2", "ni\u0302n") == ["ni", "\u0302n"] and pieces("qwen35", "ni\u0302n") == ["ni\u0302n"]
    assert pieces("deepseek-v3", "ab漢字kana") == ["ab", "漢字", "kana"] and pieces("qwen2", "ab漢字") == ["ab漢字"]
    assert pieces("llama-bpe", "IT'S") == ["IT", "'S"] and pieces("smollm", "IT'S") == ["IT", "'", "S"]
    assert pieces("deepseek-llm", "aä ä漢") == ["a", "ä", " ä", "漢"]


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_pre_tokenizer_loses_a_character(name):
    text = TEXT + "漢字 한국어 🙂\r\n\r\n x\u0301 ١٢٣ ½ <|end|> ١"
    spelled = "".join(piece for piece, _ in RULES[name].pre_tokenizer().pre_tokenize_str(text))
    assert decoders.ByteLevel().decode([spelled]) == text


def test_names_that_transformers_knows_too_have_the_same_expressions():
    from transformers.integrations.gguf import gguf_tokenizer_mapping

    theirs = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS
    both = sorted(theirs.keys() & RULES.keys())
    assert len(both) > 15
    assert [RULES[name].steps for name in both] == [(theirs[name],) for name in both]


@pytest.mark.parametrize("name", ["kimi-k2", "afmoe", "superbpe", "no such name"])
def test_a_name_whose_rules_are_not_known_is_refused_with_the_name(name):
    with pytest.raises(FetchError, match=rf"a\.gguf names the pre-tokenizer '{name}'.*safetensors"):
        pretokenizers.rules_of(name, "a.gguf")


def test_normalizing_and_whole_words_of_the_vocabulary_go_with_the_name():
    backend = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "Ã": 3, "©": 4, "e": 5, "Ì": 6, "ģ": 7}, []))
    pretokenizers.apply(RULES["llama-bpe"], backend)
    assert backend.encode("ab").ids == [2] and backend.encode("e\u0301").ids == [5, 6, 7]
    pretokenizers.apply(RULES["qwen2"], backend)
    assert backend.encode("ab").ids == [0, 1] and backend.encode("e\u0301").ids == [3, 4]


def test_the_embedded_model_reads_a_numbered_list_with_its_own_tokens(embedded_folder):
    backend = Tokenizer.from_file(str(embedded_folder / "tokenizer.json"))
    assert backend.encode("\n\n1.").tokens == ["ĊĊ", "1", "."]
    assert backend.encode("in 2024, x = 10").tokens == ["in", "Ġ", "2", "0", "2", "4", ",", "Ġx", "Ġ=", "Ġ", "1", "0"]
