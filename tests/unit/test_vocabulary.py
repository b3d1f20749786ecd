"""A pair is judged by what its token ids mean."""

import json

import pytest
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.errors import PairError
from specviz.loader.compatibility import check_pair, compare
from specviz.loader.pairs import find_pair


def test_the_same_tokenizer_fits():
    match = compare(byte_level_tokenizer(), byte_level_tokenizer(), 300, 300)
    assert match.ok and match.shared == 300


def test_a_vocabulary_that_is_padded_differently_fits_and_shares_the_smaller_size():
    match = compare(byte_level_tokenizer(), byte_level_tokenizer(), 152_064, 151_936)
    assert match.ok and match.shared == 151_936 and "padded to 152,064 and 151,936" in match.reason


def test_equal_sizes_do_not_make_equal_tokens():
    match = compare(byte_level_tokenizer(("the", "cat")), byte_level_tokenizer(("the", "dog")), 300, 300)
    assert not match.ok and match.shared == 0
    assert "token 258 is 'ca' in the target and 'do' in the drafter (2 ids differ)" in match.reason


def test_another_end_token_does_not_fit():
    match = compare(byte_level_tokenizer(eos="<|end|>"), byte_level_tokenizer(eos="<|stop|>"), 300, 300)
    assert not match.ok and "'<|end|>'" in match.reason
    target, draft = byte_level_tokenizer(), byte_level_tokenizer()
    draft.eos_token = "the"
    match = compare(target, draft, 300, 300)
    assert not match.ok and "ends its text" in match.reason


def test_a_few_added_tokens_do_no_harm_and_many_missing_ones_do():
    longer = byte_level_tokenizer()
    longer.add_tokens(["<think>", "</think>"])
    assert compare(longer, byte_level_tokenizer(), 300, 300).ok
    assert compare(byte_level_tokenizer(), longer, 300, 300).ok
    many = byte_level_tokenizer()
    many.add_tokens([f"<extra{i}>" for i in range(100)])
    match = compare(many, byte_level_tokenizer(), 400, 300)
    assert not match.ok and "lacks 100 tokens" in match.reason


def test_folders_are_compared_before_any_weights_are_read(tmp_path):
    folders = []
    for name, words in (("target", ("the", "cat")), ("same", ("the", "cat")), ("other", ("a", "mouse"))):
        tiny_model(320 if name == "same" else 300).config.save_pretrained(tmp_path / name)
        byte_level_tokenizer(words).save_pretrained(tmp_path / name)
        folders.append(tmp_path / name)
    match = check_pair(folders[0], folders[1])
    assert match.ok and match.shared == 300
    with pytest.raises(PairError, match=r"token 256 is 'th' in the target and 'mo' in the drafter"):
        check_pair(folders[0], folders[2])


def test_the_toy_pair_fits():
    toy = find_pair("toy")
    assert check_pair(toy.target.path, toy.draft.path).shared == 6


def test_the_embedded_target_does_not_fit_the_toy_drafter(embedded_folder):
    with pytest.raises(PairError, match="This drafter does not fit this target"):
        check_pair(embedded_folder, find_pair("toy").draft.path)
    assert check_pair(embedded_folder, embedded_folder).shared == 49_152
    assert json.loads((embedded_folder / "config.json").read_text())["vocab_size"] == 49_152
