"""What a GGUF file says beside its weights acts in the converted model exactly, or is refused with its name."""

import json
import re

import numpy
import pytest
import torch
from tiny_models import byte_level_tokenizer, tiny_model, write_tiny_gguf

from specviz.errors import FetchError
from specviz.loader import gguf, gguf_facts
from specviz.loader.config_and_tokenizer import load_tokenizer
from specviz.loader.load_model import load_module, load_source
from specviz.loader.pairs import Source
from specviz.models.causal import CausalModel

IDS = torch.tensor([[(7 * i) % 250 for i in range(120)]])
FACTORS = [1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 32.0, 32.0]


def sharp_model() -> torch.nn.Module:
    """The tiny model with weights so large that positions decide what is attended to."""
    model = tiny_model()
    for parameter in model.model.layers.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(12)
    return model


@pytest.fixture
def convert(tmp_path):
    """Converts a tiny GGUF file with additions; returns the folder."""

    def run(more=None):
        folder = tmp_path / "converted"
        folder.mkdir(exist_ok=True)
        write_tiny_gguf(tmp_path / "tiny.gguf", more, sharp_model())
        gguf.convert(tmp_path / "tiny.gguf", folder)
        return folder

    return run


def with_rope(**rope_parameters) -> torch.nn.Module:
    """The sharp model with other rotary positions, by transformers itself."""
    from transformers import LlamaForCausalLM

    plain = sharp_model()
    config = type(plain.config).from_dict(plain.config.to_dict() | {"rope_parameters": rope_parameters})
    model = LlamaForCausalLM(config)
    model.load_state_dict(plain.state_dict())
    return model.eval()


def same_logits(folder, wanted: torch.nn.Module) -> None:
    """The converted folder computes as `wanted` does, by transformers and by our forward; the model as it was not."""
    with torch.no_grad():
        expected = wanted(IDS).logits[0]
        got = load_module(folder, "cpu", "fp32", stock=True)(IDS).logits[0]
        ours = CausalModel(load_module(folder, "cpu", "fp32"))
        cache = ours.new_cache()
        cache.add(0, IDS.shape[1])
        own = ours.forward(cache, [0], [IDS[0].tolist()]).logits[0]
        assert (sharp_model()(IDS).logits[0] - expected).abs().max() > 1e-2
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(own, expected, atol=2e-5, rtol=1e-4)


def add_yarn(writer):
    import gguf as package

    writer.add_rope_scaling_type(package.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)


def add_linear(writer):
    import gguf as package

    writer.add_rope_scaling_type(package.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def test_factors_of_the_rotary_frequencies_divide_them_one_by_one(convert):
    folder = convert(lambda w: w.add_tensor("rope_freqs.weight", numpy.array(FACTORS, dtype=numpy.float32)))
    wanted = sharp_model()
    wanted.model.rotary_emb.inv_freq = wanted.model.rotary_emb.inv_freq / torch.tensor(FACTORS)
    same_logits(folder, wanted)


def test_factors_of_llama_3_act_as_its_scaling_in_transformers(convert):
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    wanted = with_rope(**scaling)
    factors = (tiny_model().model.rotary_emb.inv_freq / wanted.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 7.9 and factors.min() == 1.0
    same_logits(convert(lambda w: w.add_tensor("rope_freqs.weight", factors.astype(numpy.float32))), wanted)


def test_linear_scaling_acts_as_in_transformers(convert):
    same_logits(convert(add_linear), with_rope(rope_type="linear", factor=4.0, rope_theta=10000.0))


def test_a_factor_without_a_type_and_the_old_key_are_linear_scaling(convert):
    wanted = with_rope(rope_type="linear", factor=2.0, rope_theta=10000.0)
    same_logits(convert(lambda w: w.add_rope_scaling_factor(2.0)), wanted)
    same_logits(convert(lambda w: w.add_float32("llama.rope.scale_linear", 2.0)), wanted)


def test_yarn_acts_as_in_transformers(convert):
    same_logits(
        convert(add_yarn),
        with_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0),
    )


def test_another_rotary_base_is_kept(convert):
    same_logits(convert(lambda w: w.add_rope_freq_base(500.0)), with_rope(rope_type="default", rope_theta=500.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.1),
        ("embedding_scale", 12.0),
        ("residual_scale", 0.2),
        ("attention.clamp_kqv", 8.0),
        ("expert_count", 8),
        ("expert_used_count", 2),
        ("attention.sliding_window", 16),
        ("rope.dimension_count", 8),
        ("attention.layer_norm_epsilon", 1e-3),
        ("attention.value_length", 8),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.yarn_attn_factor", 2.0),
        ("rope.scaling.yarn_log_multiplier", 0.1),
        ("a_key_of_next_year", 1),
        ("nextn_predict_layers", 1),
        ("attention.causal", False),
    ],
)
def test_a_value_that_would_be_lost_is_refused_with_its_name(key, value):
    config, plain = (
        tiny_model().config,
        {
            "general.architecture": "llama",
            "llama.embedding_length": 32,
            "llama.context_length": 128,
            "llama.attention.head_count": 2,
        },
    )
    with pytest.raises(FetchError, match=rf"a\.gguf sets llama\.{re.escape(key)} .*safetensors"):
        gguf_facts.complete(config, plain | {f"llama.{key}": value}, None, [], "a.gguf")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.scale", 0.25),
        ("logit_scale", 1.0),
        ("expert_count", 0),
        ("attention.sliding_window", 4096),
        ("rope.dimension_count", 16),
        ("attention.key_length", 16),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.type", "none"),
        ("attention.causal", True),
        ("feed_forward_length", 64),
    ],
)
def test_a_value_that_changes_nothing_is_taken(key, value):
    config, plain = (
        tiny_model().config,
        {
            "general.architecture": "llama",
            "llama.embedding_length": 32,
            "llama.context_length": 128,
            "llama.attention.head_count": 2,
        },
    )
    gguf_facts.complete(config, plain | {f"llama.{key}": value}, None, [], "a.gguf")
    assert config.rope_parameters["rope_type"] == "default"


@pytest.mark.parametrize(
    "key", ["tokenizer.ggml.suppress_tokens", "tokenizer.ggml.precompiled_charsmap", "xielu.eps", "split.count"]
)
def test_an_unknown_key_of_tokenizer_or_file_is_refused_with_its_name(key):
    facts = {"general.architecture": "llama", "llama.context_length": 128, key: 3}
    with pytest.raises(FetchError, match=re.escape(key)):
        gguf_facts.complete(tiny_model().config, facts, None, [], "a.gguf")


def test_tensors_that_the_model_has_no_place_for_are_refused(convert):
    with pytest.raises(FetchError, match=r"tiny\.gguf holds [\d,]+ weights where a llama of its sizes has [\d,]+"):
        convert(lambda w: w.add_tensor("blk.0.attn_q.bias", numpy.zeros(32, dtype=numpy.float32)))


def test_tokens_that_end_a_turn_end_the_text(convert):
    end = byte_level_tokenizer().eos_token_id
    assert json.loads((convert() / "config.json").read_bytes())["eos_token_id"] == end
    folder = convert(lambda w: (w.add_eot_token_id(281), w.add_eom_token_id(282)))
    for stock in (False, True):
        assert CausalModel(load_module(folder, "cpu", "fp32", stock)).eos_ids() == {end, 281, 282}


def test_control_tokens_that_end_texts_elsewhere_are_known_by_their_spelling():
    facts = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.token_type": [3, 3, 1, 3, 3, 3]}
    tokens = ["</s>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "other"]
    assert gguf_facts.end_tokens(facts, tokens) == [0, 1, 3, 4]  # <|eot_id|> is a word there
    assert gguf_facts.end_tokens(
        facts | {"tokenizer.ggml.token_type": [3] * 6}, ["</s>", "<|call|>", "a", "<|end|>", "<|return|>", "b"]
    ) == [0, 1, 4]


def test_bos_and_spaces_are_as_the_file_and_its_pre_tokenizer_say(convert):
    end = byte_level_tokenizer().eos_token_id
    for more, first in (
        (None, False),
        (lambda w: w.add_tokenizer_pre("llama-bpe"), True),
        (lambda w: (w.add_tokenizer_pre("llama-bpe"), w.add_add_bos_token(False)), False),
        (lambda w: w.add_add_bos_token(True), True),
    ):
        folder = convert(more)
        for stock in (False, True):
            ids = load_tokenizer(folder, stock).encode("the cat")
            assert (ids[0] == end) == first and ids.count(end) == first
    with pytest.raises(FetchError, match="add_space_prefix"):
        convert(lambda w: w.add_add_space_prefix(True))
    with pytest.raises(FetchError, match="'kimi-k2'"):
        convert(lambda w: w.add_tokenizer_pre("kimi-k2"))


@pytest.mark.parametrize("stock", [False, True])
def test_ends_of_tokenizer_template_and_configs_are_united(tmp_path, stock):
    """Each of four places names another token: all four end the text."""
    tokenizer = byte_level_tokenizer(eos="<|eos|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", "<|a|>", "<|b|>", "<|other|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<|other|>{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|other|>{% endif %}"
    )
    model = tiny_model()
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<|eos|>", "<|im_end|>", "<|a|>", "<|b|>")}
    model.config.eos_token_id = ids["<|a|>"]
    model.generation_config.eos_token_id = ids["<|b|>"]
    if stock:
        model.config.rope_parameters = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_source(Source("folder", "tiny", path=str(tmp_path)), "cpu", "fp32")
    assert CausalModel(loaded.module).eos_ids() == set(ids.values())
