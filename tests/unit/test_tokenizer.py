"""The tokenizer without transformers answers as transformers' own does."""

import json
import random

import pytest
from tiny_models import byte_level_tokenizer

from specviz.engine.prompts import PRESETS, encode
from specviz.loader.config_and_tokenizer import load_tokenizer
from specviz.loader.tokenizer import Tokenizer
from specviz.loader.toy import FOLDER
from specviz.trace.token_text import piece_table

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}{{ eos_token }}\n    {% endfor %}\n"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEXTS = [
    "",
    " ",
    "the cat",
    " leading and trailing ",
    "tab\there\nand\r\n\n\n",
    "naïve café ŒßẞİI",
    "日本語の文。한국어",
    "עברית العربية",
    "🙂👩‍👩‍👧 and 🇫🇷",
    "def f(x):\n\treturn x ** 2  # 3.14e-5\n",
    "\u200b\ufeff zero width",
    "a\\xb7c",
    "Ġ Ċ ▁",
    "e\u0301 = é",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|end|>the<|end|>",
    "<|im_start|",
    "https://example.org/?q=1&b=%20",
    "it's I'll WE'RE",
    "x" * 3000,
    "0123456789 " * 50,
    "\0",
    "\ufffd",
    *(preset.text for preset in PRESETS),
]


@pytest.fixture(params=[pytest.param("embedded", marks=pytest.mark.model), "written here"])
def folder(request, tmp_path):
    if request.param == "embedded":
        return request.getfixturevalue("embedded_folder")
    made = byte_level_tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(tmp_path)
    return tmp_path


def random_texts(count: int) -> list[str]:
    """Characters from all over Unicode, with spaces, line breaks and special tokens among them."""
    chance = random.Random(0)
    blocks = [range(32, 127)] * 4 + [
        range(0xA0, 0x250),
        range(0x370, 0x600),
        range(0x3040, 0x3100),
        range(0x4E00, 0x5000),
        range(0x1F300, 0x1F700),
        range(0x2000, 0x2070),
    ]
    parts = [" ", "\n", "  ", "<|im_end|>", "<|end|>", "ing ", "the "]
    return [
        "".join(
            chance.choice(parts) if chance.random() < 0.2 else chr(chance.choice(chance.choice(blocks)))
            for _ in range(chance.randrange(1, 60))
        )
        for _ in range(count)
    ]


@pytest.mark.slow
def test_ids_texts_and_vocabulary_are_those_of_transformers(folder):
    ours, stock = load_tokenizer(folder), load_tokenizer(folder, stock=True)
    assert isinstance(ours, Tokenizer) and not isinstance(stock, Tokenizer)
    assert (len(ours), ours.eos_token, ours.eos_token_id) == (len(stock), stock.eos_token, stock.eos_token_id)
    assert ours.get_vocab() == stock.get_vocab() and ours.chat_template == stock.chat_template
    assert ours.added_tokens_decoder.keys() == stock.added_tokens_decoder.keys()
    for text in [*TEXTS, *random_texts(400)]:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == stock.encode(text, add_special_tokens=special), text
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == stock.decode(ids, skip_special_tokens=skip), text
    every = range(len(ours) + 3)
    assert [ours.convert_ids_to_tokens(i) for i in every] == [stock.convert_ids_to_tokens(i) for i in every]
    assert piece_table(ours, every) == piece_table(stock, every)
    chance = random.Random(1)
    for _ in range(200):  # ids that no text has, with pieces of characters
        ids = [chance.randrange(len(ours)) for _ in range(12)]
        assert ours.decode(ids) == stock.decode(ids)


def test_chat_templates_are_rendered_as_by_transformers(folder):
    ours, stock = load_tokenizer(folder), load_tokenizer(folder, stock=True)
    assert isinstance(ours, Tokenizer)
    for text in TEXTS:
        for system in (None, "", "Be brief.\n<b>{{ no code }}</b>"):
            turns = [] if system is None else [{"role": "system", "content": system}]
            turns += [{"role": "user", "content": text}]
            for longer in (turns, [*turns, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "&"}]):
                for prompt in (True, False):
                    wanted = stock.apply_chat_template(longer, add_generation_prompt=prompt, tokenize=False)
                    assert ours.apply_chat_template(longer, add_generation_prompt=prompt, tokenize=False) == wanted
            if text.strip() and "\0" not in text:
                assert encode(ours, text, system) == encode(stock, text, system)


def test_the_toy_words_are_read_alike():
    ours, stock = load_tokenizer(FOLDER / "target"), load_tokenizer(FOLDER / "target", stock=True)
    assert isinstance(ours, Tokenizer)
    for text in ("the cat", "the cat sees the dog and the cat.", "and."):
        assert ours.encode(text) == stock.encode(text)
        assert ours.decode(ours.encode(text)) == stock.decode(stock.encode(text))
    for tokenizer in (ours, stock):
        with pytest.raises(Exception, match="WordLevel"):
            tokenizer.encode("Hello there")


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools }}",
        "{{ messages | tojson }}",
        "{% generation %}x{% endgeneration %}",
        "{{ strftime_now('%Y') }}",
        "{% set ns = namespace(a=1) %}{{ ns.a }}",
        "{{ dict(a=1) }}",
        "{% if %}",
    ],
)
def test_templates_that_need_more_are_left_to_transformers(tmp_path, template):
    made = byte_level_tokenizer()
    made.chat_template = template
    made.save_pretrained(tmp_path)
    assert not isinstance(load_tokenizer(tmp_path), Tokenizer)


def test_a_template_gets_at_nothing_but_the_turns(tmp_path):
    made = byte_level_tokenizer()
    made.chat_template = "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}"
    made.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert isinstance(ours, Tokenizer)
    with pytest.raises(Exception, match="unsafe"):
        ours.apply_chat_template([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer_class": "LlamaTokenizer"},
        {"clean_up_tokenization_spaces": True},
        {"add_prefix_space": True},
        {"bos_token": "<new>"},
        {"split_special_tokens": True},
        {"chat_template": [{"name": "default", "template": "x"}]},
    ],
)
def test_settings_that_change_something_are_left_to_transformers(tmp_path, change):
    byte_level_tokenizer().save_pretrained(tmp_path)
    assert isinstance(load_tokenizer(tmp_path), Tokenizer)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert not isinstance(load_tokenizer(tmp_path), Tokenizer)


def test_files_that_say_more_are_left_to_transformers(tmp_path):
    byte_level_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|end|>"}')
    assert not isinstance(load_tokenizer(tmp_path), Tokenizer)
