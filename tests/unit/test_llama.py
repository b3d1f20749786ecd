"""A plain Llama is read without transformers and computes what transformers' own module computes."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model

from specviz.errors import FetchError
from specviz.loader import llama, model_folder
from specviz.loader.config_and_tokenizer import load_config
from specviz.loader.llama import Llama, LlamaConfig
from specviz.loader.load_model import load_module, stock_like
from specviz.models.causal import CausalModel

TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6]]


def logits(model: CausalModel) -> torch.Tensor:
    cache = model.new_cache()
    cache.add(0, len(TOKENS[0]))
    return model.forward(cache, [0], TOKENS).logits[0]


def write(folder, **values):
    """A folder of a random Llama of two layers whose heads are wider than its width has room for."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    }
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes | values))
    module.save_pretrained(folder, max_shard_size="20KB" if values.get("tie_word_embeddings") else "1GB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_those_that_transformers_reads(tmp_path, tied, precision):
    """Every tensor by name, shape, type and value, from one file or from shards; the logits to the last bit; and the
    stock module's own forward within rounding."""
    folder = write(tmp_path, tie_word_embeddings=tied)
    ours, stock = load_module(folder, "cpu", precision), load_module(folder, "cpu", precision, stock=True)
    assert isinstance(ours, Llama) and not isinstance(stock, Llama)
    wanted = stock.state_dict()
    found = ours.state_dict()
    assert found.keys() == wanted.keys() and all(torch.equal(found[k], wanted[k]) for k in wanted)
    assert {p.dtype for p in ours.parameters()} == {p.dtype for p in stock.parameters()}
    assert not ours.training and not any(p.requires_grad for p in ours.parameters())
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == tied
    plain = stock(torch.tensor(TOKENS)).logits[0].float()
    close = 1e-5 if precision == "fp32" else 3e-2
    torch.testing.assert_close(logits(CausalModel(ours)), plain, atol=close, rtol=close)
    assert torch.equal(logits(CausalModel(ours)), logits(CausalModel(stock)))


def test_the_config_says_what_transformers_says(tmp_path):
    folder = write(tmp_path, eos_token_id=7, bos_token_id=None, pad_token_id=3)
    ours, stock = load_config(folder), load_config(folder, stock=True)
    assert isinstance(ours, LlamaConfig)
    for name in (field.name for field in dataclasses.fields(LlamaConfig)):
        assert getattr(ours, name) == getattr(stock, name if name != "name_or_path" else "_name_or_path"), name
    assert LlamaConfig.from_dict(stock.to_dict() | {"name_or_path": str(folder)}) == ours
    assert LlamaConfig.from_dict(ours.to_dict()) == ours == ours.get_text_config()


def test_defaults_and_older_spellings_are_read_as_transformers_reads_them(tmp_path):
    """No head_dim, no key-value heads, theta beside the rope settings; nothing said of tying or special tokens."""
    raw = {
        "model_type": "llama",
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rope_theta": 5000.0,
        "rope_scaling": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    ours, stock = load_config(tmp_path), load_config(tmp_path, stock=True)
    assert isinstance(ours, LlamaConfig) and ours.rope_parameters == stock.rope_parameters
    for name in (
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "max_position_embeddings",
    ):
        assert getattr(ours, name) == getattr(stock, name), name


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "mistral"},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        {"vocab_size": None},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None},
        {"hidden_size": "32"},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"eos_token_id": "x"},
        {"tie_word_embeddings": "yes"},
        {"rope_theta": "x", "rope_parameters": None},
        {"num_hidden_layers": 0},
        {"rms_norm_eps": None},
    ],
)
def test_whatever_is_not_plain_is_left_to_transformers(tmp_path, change):
    config = json.loads((write(tmp_path) / "config.json").read_text())
    assert LlamaConfig.from_dict(config) is not None
    assert LlamaConfig.from_dict(config | change) is None


def test_tokens_that_end_a_text_come_from_both_files(tmp_path):
    folder = write(tmp_path, eos_token_id=7)
    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 7]}')
    ours, stock = (CausalModel(load_module(folder, "cpu", "fp32", stock=stock)) for stock in (False, True))
    assert ours.eos_ids() == stock.eos_ids() == {7, 9}
    (folder / "generation_config.json").write_text("{")
    assert CausalModel(load_module(folder, "cpu", "fp32")).eos_ids() == {7}


def test_files_that_do_not_fit_the_config_get_the_sentences_of_the_stock_loader(tmp_path):
    """A tensor too few or of another shape is a sentence; a head stored beside a tied embedding, and a tensor that
    nobody knows, are no fault."""
    folder = write(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")

    def changed(**values):
        save_file(
            {k: v for k, v in (tensors | values).items() if v is not None},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        return load_module(folder, "cpu", "fp32")

    with pytest.raises(FetchError, match=r"incomplete: model\.norm\.weight"):
        changed(**{"model.norm.weight": None})
    with pytest.raises(FetchError, match="do not load as a causal LM"):
        changed(**{"model.norm.weight": torch.ones(31)})
    assert isinstance(changed(**{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}), Llama)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    assert not isinstance(changed(), Llama)


def test_first_layers_and_stock_twins_are_made_of_a_plain_llama(tmp_path):
    """The stand-in drafter shares the target's tensors, and transformers' module takes the same weights."""

    target = CausalModel(load_module(write(tmp_path), "cpu", "fp32"))
    first = target.first(1).module
    assert isinstance(first, Llama) and len(first.model.layers) == 1 and first.config.num_hidden_layers == 1
    assert first.model.embed_tokens.weight.data_ptr() == target.embedding.data_ptr()
    twin = stock_like(target.config)
    twin.load_state_dict(target.module.state_dict())
    torch.testing.assert_close(twin(torch.tensor(TOKENS)).logits[0], logits(target), atol=1e-5, rtol=1e-5)


def test_nothing_is_drawn_for_weights_that_are_read(tiny_folder, monkeypatch):
    wanted = tiny_model().lm_head.weight
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda *_, **__: pytest.fail("drawn"))
    monkeypatch.setattr(torch.nn.init, "normal_", lambda *_, **__: pytest.fail("drawn"))
    read = llama.read(model_folder.inspect(tiny_folder), "cpu", torch.float32)
    assert torch.equal(read.lm_head.weight, wanted)


@pytest.mark.slow
def test_a_fresh_process_decodes_without_transformers(tiny_folder, empty_home):
    """From the folder to the first token, with prompt lookup as drafter: neither transformers nor torch's compiler,
    both of which take seconds to import, nor any of this project's parts that need them."""
    script = (
        "import sys\n"
        "from specviz.engine.request import RunRequest\n"
        "from specviz.engine.run import Run\n"
        "from specviz.trace.records import Settings\n"
        "settings = Settings(k=2, max_new_tokens=1)\n"
        "run = Run(RunRequest(sys.argv[1], 'ngram', 'the cat', settings, device='cpu')).execute()\n"
        "assert run.status == 'complete', run.error\n"
        "assert len(run.trace.token_ids(0)) == 1\n"
        "slow = {'transformers', 'torch._dynamo', 'sympy', 'scipy', 'accelerate'} & set(sys.modules)\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tiny_folder)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
