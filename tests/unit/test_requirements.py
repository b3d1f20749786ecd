"""What a pair needs is told before anything is fetched, and what does not fit is refused."""

import shutil
from collections import namedtuple

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from specviz.errors import MemoryBudgetError, SettingsError
from specviz.format import gigabytes
from specviz.hardware.machine import resolve_device
from specviz.loader import requirements as module
from specviz.loader import space
from specviz.loader.load_model import load_module
from specviz.loader.pairs import CATALOGUE, EMBEDDED, find_pair, size_of
from specviz.loader.precision import resolve_precision
from specviz.loader.requirements import cache_values, needs
from specviz.loader.space import disk_bytes

Usage = namedtuple("Usage", "total used free")


def free(monkeypatch, memory: int, disk: int = 10**12):
    monkeypatch.setattr(module, "free_memory_bytes", lambda device: memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(disk, 0, disk))


def test_the_embedded_pair_needs_a_wheel_its_file_and_the_converted_weights(empty_home, monkeypatch):
    free(monkeypatch, 8 * 10**9)
    told = needs(find_pair(EMBEDDED), "cpu", "fp32")
    assert told.fits and told.download == 92_871_040
    assert 92_871_040 + 98_362_432 + 538_000_000 < told.disk < 950_000_000
    assert 538_000_000 < told.memory < 1_200_000_000
    assert "Download 93 MB" in told.sentence and told.sentence.endswith("It fits.")
    assert needs(find_pair(EMBEDDED), "cpu", "bf16").memory < told.memory


def test_what_is_here_already_needs_no_download(at_embedded_home):
    told = needs(find_pair(EMBEDDED), "cpu", "fp32")
    assert told.download == 0 and told.disk == 0 and "Nothing to fetch" in told.sentence
    assert needs(find_pair("toy"), "cpu", "fp32").download == 0


def test_a_pair_adds_up_target_and_draft(empty_home, monkeypatch):
    free(monkeypatch, 64 * 10**9)
    pair = find_pair("qwen3-4b")
    told = needs(pair, "cpu", "bf16")
    assert told.download == size_of(pair.target).download_bytes + size_of(pair.draft).download_bytes
    assert told.memory > 2 * (4_022_468_096 + 596_049_920)
    assert needs(pair, "cpu", "bf16", rows=8).memory > told.memory


def test_too_little_memory_or_disk_is_said(empty_home, monkeypatch):
    free(monkeypatch, 10**9)
    told = needs(find_pair("qwen3-4b"), "cpu", "bf16")
    assert not told.fits and "does not fit the memory" in told.sentence
    free(monkeypatch, 10**12, disk=10**6)
    told = needs(find_pair("qwen3-4b"), "cpu", "bf16")
    assert not told.fits and "does not fit the disk" in told.sentence


def test_an_unknown_hub_id_is_not_guessed(empty_home):
    told = needs(find_pair("some/model"), "cpu", "fp32")
    assert told.download is None and told.memory is None and "not known" in told.sentence


def test_the_hub_is_asked_for_sizes_when_that_is_wanted(empty_home, monkeypatch):
    free(monkeypatch, 64 * 10**9)
    File, Total = namedtuple("File", "rfilename size"), namedtuple("Total", "total")
    info = namedtuple("Info", "siblings safetensors")(
        [File("model.safetensors", 2 * 10**9), File("config.json", 1000), File("pytorch_model.bin", 2 * 10**9)],
        Total(10**9),
    )
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    told = needs(find_pair("some/model"), "cpu", "bf16", ask_hub=True)
    assert told.download == 2 * 10**9 + 1000 and told.memory == 2 * 10**9 + space.WORKING_BYTES
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: 1 / 0)
    assert needs(find_pair("some/model"), "cpu", "bf16", ask_hub=True).download is None


def test_loading_checks_the_memory_first(tiny_folder, monkeypatch):
    monkeypatch.setattr(space, "free_memory_bytes", lambda device: 1000)
    with pytest.raises(MemoryBudgetError, match=r"needs about 20 MB of cpu memory in fp32"):
        load_module(tiny_folder, "cpu", "fp32")


def test_devices_and_precisions_that_are_not_there_are_refused():
    assert resolve_device("cpu") == "cpu" and resolve_device("auto") in ("cpu", "cuda", "mps")
    assert resolve_precision("auto", "cpu") == "fp32" and resolve_precision("bf16", "cpu") == "bf16"
    with pytest.raises(SettingsError, match="no device 'tpu'"):
        resolve_device("tpu")
    with pytest.raises(SettingsError, match="no precision 'int8'"):
        resolve_precision("int8", "cpu")
    for device, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if not there:
            with pytest.raises(SettingsError, match="choose cpu or auto"):
                resolve_device(device)


def test_sizes_of_the_catalogue_agree_with_the_embedded_model(embedded_folder):
    config = AutoConfig.from_pretrained(embedded_folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    size = size_of(find_pair(EMBEDDED).target)
    assert sum(p.numel() for p in model.parameters()) == size.parameters
    assert cache_values(config.to_dict()) == size.cache_values
    assert size.vocabulary == config.vocab_size


def shapes() -> dict[str, PretrainedConfig]:
    """The published shapes of the catalogue's models, as transformers configs."""

    def llama(vocabulary, layers, hidden, ffn, heads, kv_heads, head):
        return LlamaConfig(
            vocab_size=vocabulary,
            num_hidden_layers=layers,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head,
            tie_word_embeddings=True,
        )

    def other(kind, vocabulary, layers, hidden, ffn, heads, kv_heads, **more):
        return kind(
            vocab_size=vocabulary,
            num_hidden_layers=layers,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            tie_word_embeddings=True,
            **more,
        )

    def neox(layers, hidden, heads):
        return GPTNeoXConfig(
            vocab_size=50_304,
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            tie_word_embeddings=False,
        )

    return {
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": llama(49_152, 24, 2048, 8192, 32, 32, 64),
        "HuggingFaceTB/SmolLM2-360M-Instruct": llama(49_152, 32, 960, 2560, 15, 5, 64),
        "HuggingFaceTB/SmolLM2-135M-Instruct": llama(49_152, 30, 576, 1536, 9, 3, 64),
        "meta-llama/Llama-3.2-3B-Instruct": llama(128_256, 28, 3072, 8192, 24, 8, 128),
        "meta-llama/Llama-3.2-1B-Instruct": llama(128_256, 16, 2048, 8192, 32, 8, 64),
        "Qwen/Qwen2.5-1.5B-Instruct": other(Qwen2Config, 151_936, 28, 1536, 8960, 12, 2),
        "Qwen/Qwen2.5-0.5B-Instruct": other(Qwen2Config, 151_936, 24, 896, 4864, 14, 2),
        "Qwen/Qwen3-4B": other(Qwen3Config, 151_936, 36, 2560, 9728, 32, 8, head_dim=128),
        "Qwen/Qwen3-0.6B": other(Qwen3Config, 151_936, 28, 1024, 3072, 16, 8, head_dim=128),
        "google/gemma-3-1b-it": other(Gemma3TextConfig, 262_144, 26, 1152, 6912, 4, 1, head_dim=256),
        "google/gemma-3-270m-it": other(Gemma3TextConfig, 262_144, 18, 640, 2048, 4, 1, head_dim=256),
        "openai-community/gpt2-large": GPT2Config(n_layer=36, n_embd=1280, n_head=20),
        "distilbert/distilgpt2": GPT2Config(n_layer=6),
        "EleutherAI/pythia-1.4b": neox(24, 2048, 16),
        "EleutherAI/pythia-160m": neox(12, 768, 12),
    }


def test_sizes_of_the_catalogue_follow_from_the_models_shapes():
    known = shapes()
    for source in (source for pair in CATALOGUE for source in (pair.target, pair.draft)):
        if source is None or source.kind != "hub":
            continue
        config, size = known[source.repo], size_of(source)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == size.parameters, source.repo
        assert cache_values(config.to_dict()) == size.cache_values, source.repo
        assert config.vocab_size == size.vocabulary, source.repo


def test_downloads_of_the_catalogue_are_16_or_32_bit_weights():
    for pair in CATALOGUE:
        for source in (pair.target, pair.draft):
            size = source and size_of(source)
            if size and source.kind == "hub":
                assert 1.9 < size.download_bytes / size.parameters < 4.4, source.repo
                assert disk_bytes(source, size) > size.download_bytes


def test_bytes_in_words():
    assert gigabytes(92_871_040) == "93 MB" and gigabytes(8_045_000_000) == "8.04 GB"
