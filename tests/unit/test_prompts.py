"""Prompts: templates, raw text, presets, and text that is empty, enormous or no text."""

import pytest
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.engine.prompts import MAX_CHARACTERS, PRESETS, TOY_PRESETS, encode, preset, presets_for
from specviz.errors import SettingsError
from specviz.loader.config_and_tokenizer import load_tokenizer
from specviz.loader.pairs import find_pair
from specviz.models.causal import CausalModel

TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE


def tokenizer_with(template: str | None):
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_the_template_goes_around_the_prompt_and_its_special_tokens_are_single_ids():
    tokenizer = tokenizer_with(TEMPLATE)
    prompt = encode(tokenizer, "the cat", system="be brief")
    assert prompt.text == "[system]be brief<|end|>[user]the cat<|end|>[assistant]"
    assert not prompt.raw and prompt.note == ""
    assert prompt.ids.count(tokenizer.eos_token_id) == 2
    assert tokenizer.decode(prompt.ids) == prompt.text


def test_ids_are_those_of_the_tokenizers_own_template_call(embedded_folder):
    tokenizer = load_tokenizer(embedded_folder, stock=True)
    for candidate in PRESETS:
        turns = [{"role": "user", "content": candidate.text}]
        own = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
        assert list(encode(tokenizer, candidate.text).ids) == list(own)


def test_raw_text_has_no_template():
    prompt = encode(tokenizer_with(TEMPLATE), "the cat", raw=True, system="unused")
    assert prompt.raw and prompt.text == "the cat" and "not used with raw text" in prompt.note


def test_a_model_without_a_template_gets_raw_text_and_a_note():
    prompt = encode(tokenizer_with(None), "the cat")
    assert prompt.raw and "no chat template" in prompt.note


def test_a_template_without_system_prompts_gets_it_before_the_prompt():
    prompt = encode(tokenizer_with(NO_SYSTEM), "the cat", system="be brief")
    assert prompt.text == "[user]be brief\n\nthe cat<|end|>[assistant]" and "takes no system prompt" in prompt.note


def test_a_broken_template_is_a_sentence():
    with pytest.raises(SettingsError, match="use raw text"):
        encode(tokenizer_with("{{ raise_exception('never') }}"), "the cat")


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("text", ["", "\n" * 2])
def test_an_empty_prompt_is_refused(raw, text):
    if raw and text:
        assert encode(tokenizer_with(TEMPLATE), text, raw=True).ids  # line breaks are text to a base model
        return
    with pytest.raises(SettingsError, match="prompt is empty"):
        encode(tokenizer_with(TEMPLATE), text, raw=raw)


def test_an_enormous_prompt_is_refused_before_it_is_tokenized():
    class Explodes:
        chat_template = None

        def encode(self, *_, **__):
            raise AssertionError("tokenized")

    for arguments in ({"text": "x" * (MAX_CHARACTERS + 1)}, {"text": "x", "system": "y" * (MAX_CHARACTERS + 1)}):
        with pytest.raises(SettingsError, match=r"200,001 characters; at most 200,000"):
            encode(Explodes(), **arguments)


def test_a_prompt_that_does_not_fit_the_model_says_what_does():
    target = CausalModel(tiny_model())
    assert target.prompt_room(28) == 100
    with pytest.raises(SettingsError, match=r"has 101 tokens and at most 100 fit"):
        encode(tokenizer_with(None), "x" * 101, raw=True, max_tokens=target.prompt_room(28))
    assert len(encode(tokenizer_with(None), "x" * 100, raw=True, max_tokens=target.prompt_room(28)).ids) == 100


def test_what_is_no_text_is_replaced_and_said():
    prompt = encode(tokenizer_with(None), "a\ud800b\0c", raw=True)
    assert prompt.text == "a\ufffdb\ufffdc" and "replaced by U+FFFD" in prompt.note
    whole = encode(tokenizer_with(None), "\ud83d\ude42", raw=True)
    assert whole.text == "🙂" and whole.note == ""


def test_an_end_token_that_a_tokenizer_appends_is_taken_off():
    tokenizer = byte_level_tokenizer()

    class Appends:
        chat_template, eos_token, eos_token_id = None, tokenizer.eos_token, tokenizer.eos_token_id

        def encode(self, text, **_):
            return [*tokenizer.encode(text), tokenizer.eos_token_id]

    assert encode(Appends(), "the cat", raw=True).ids == tuple(tokenizer.encode("the cat"))


def test_the_toy_pair_takes_its_own_words_only():
    tokenizer = load_tokenizer(find_pair("toy").target.path)
    assert encode(tokenizer, TOY_PRESETS[0].text).ids == (0, 1, 3, 0, 2, 4)
    with pytest.raises(SettingsError, match="knows only: the cat dog sees and"):
        encode(tokenizer, "Hello there")


def test_there_are_six_presets_and_each_is_found_by_name():
    assert [p.name for p in PRESETS] == ["code", "copy-edit", "story", "list", "maths", "translation"]
    assert all(preset(p.name) is p for p in PRESETS) and presets_for("toy") == TOY_PRESETS
    assert presets_for("smollm2-135m") == PRESETS
    with pytest.raises(SettingsError, match="no preset"):
        preset("haiku")
