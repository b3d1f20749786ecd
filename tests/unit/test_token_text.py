"""Every token id has its own legible text, and the bytes of a text's tokens join up to the text."""

import pytest
from tiny_models import byte_level_tokenizer

from specviz.trace.token_text import legible, piece_table, token_bytes

TEXTS = (
    "the cat",
    " leading and trailing ",
    "tab\there\nand\r\n\n",
    "naïve café",
    "日本語の文",
    "🙂👩‍👩‍👧 and 🇫🇷",
    "def f(x):\n\treturn x",
    "\u200b\ufeff zero width",
    "a\\xb7c",
    "ĠĊ▁ letters that vocabularies use as signs",
)


def sentencepiece_tokenizer():
    """A vocabulary as SentencePiece writes it: ▁ for a space, <0xNN> for bytes that have no token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += ["th", "the", "▁the"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@pytest.mark.parametrize("make", [byte_level_tokenizer, sentencepiece_tokenizer])
@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_join_up_to_the_text(make, text):
    if make is sentencepiece_tokenizer and "▁" in text:
        pytest.skip("SentencePiece itself reads ▁ as a space")
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(token_bytes(tokenizer, i) for i in ids) == text.encode()


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_with_the_embedded_tokenizer(embedded_folder, text):
    from specviz.loader.config_and_tokenizer import load_tokenizer

    tokenizer = load_tokenizer(embedded_folder)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(token_bytes(tokenizer, i) for i in ids).decode()
    assert joined == tokenizer.decode(ids)
    assert joined == text


def test_a_part_of_a_character_is_shown_as_its_bytes():
    tokenizer = byte_level_tokenizer()
    ids = tokenizer("é🙂", add_special_tokens=False)["input_ids"]
    assert list(piece_table(tokenizer, ids).values()) and len(ids) == 6
    assert [legible(token_bytes(tokenizer, i)) for i in ids] == ["\\xc3", "\\xa9", "\\xf0", "\\x9f", "\\x99", "\\x82"]
    assert legible("🙂".encode() + b"\xf0\x9f") == "🙂\\xf0\\x9f"


def test_special_tokens_are_verbatim_spaces_stay_and_padding_ids_say_so():
    tokenizer = byte_level_tokenizer()
    end, the = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("the")
    space = tokenizer.convert_tokens_to_ids("Ġ")
    table = piece_table(tokenizer, [end, the, space, the, 49_153])
    assert table == {end: "<|end|>", the: "the", space: " ", 49_153: "<pad 49153>"}


def test_sentencepiece_spaces_and_bytes():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["▁the", "<0xE2>", "</s>"])
    assert list(piece_table(tokenizer, ids).values()) == ["\\xe2", " the", "</s>"]


def test_the_toy_words_have_their_spaces():
    from specviz.loader.config_and_tokenizer import load_tokenizer
    from specviz.loader.pairs import find_pair

    table = piece_table(load_tokenizer(find_pair("toy").target.path), range(6))
    assert list(table.values()) == [" the", " cat", " dog", " sees", " and", "."]
