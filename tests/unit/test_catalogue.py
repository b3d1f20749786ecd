"""The catalogue is complete, cited, dense, and of the right magnitude; shapes match published sizes."""

import json

import pytest

from specviz.errors import FetchError, SettingsError
from specviz.hardware import catalogue, shapes
from specviz.hardware.costs import pass_cost
from specviz.loader.hub_config import hub_config

NAMES = [
    "H100 SXM",
    "H100 PCIe",
    "H200 SXM",
    "B200",
    "A100 40 GB",
    "A100 80 GB SXM",
    "L4",
    "L40S",
    "T4",
    "A10G",
    "V100 SXM2",
    "RTX 3060 12 GB",
    "RTX 3090",
    "RTX 4070",
    "RTX 4090",
    "RTX 5090",
    "RTX 6000 Ada",
    "MI300X",
    "Apple M2 Max",
    "Apple M4 Max",
    "Jetson AGX Orin 64 GB",
]


def test_every_device_people_meet_is_there():
    assert {d.name for d in catalogue.DEVICES} >= set(NAMES)
    assert sum(d.kind == "CPU" for d in catalogue.DEVICES) >= 2
    assert len({d.name for d in catalogue.DEVICES}) == len(catalogue.DEVICES) >= 20


@pytest.mark.parametrize("device", catalogue.DEVICES, ids=lambda d: d.name)
def test_every_row_is_cited_and_of_the_right_magnitude(device):
    """Known fault: a slip by 1000. Bandwidths lie in 10 GB/s to 10 TB/s, peaks in 0.5 TFLOP/s to 5 PFLOP/s."""
    assert device.source and 2018 <= int(device.published) <= 2026
    assert 5e10 < device.bandwidth < 1e13 and 8e9 < device.memory < 2e12
    assert all(5e11 < peak < 5e15 for peak in device.peaks.values())
    assert "fp32" in device.peaks and {"bf16", "fp16"} & set(device.peaks)
    for precision in device.peaks:
        assert 2 < device.ceilings(precision).ridge < 1000


@pytest.mark.parametrize(
    "name,sparse",
    [
        ("H100 SXM", 1979e12),
        ("H100 PCIe", 1513e12),
        ("A100 40 GB", 624e12),
        ("L4", 242e12),
        ("L40S", 733e12),
        ("RTX 4090", 330.4e12),
        ("RTX 5090", 419e12),
        ("B200", 4500e12),
        ("MI300X", 2614.9e12),
    ],
)
def test_peaks_are_half_of_the_figures_with_sparsity(name, sparse):
    """Known fault: the maker's 'with sparsity' figure taken for the peak."""
    assert catalogue.device(name).peaks["bf16"] == pytest.approx(sparse / 2, rel=0.02)


def test_a_precision_the_device_lacks_is_refused():
    with pytest.raises(SettingsError, match="fp16"):
        catalogue.device("T4").ceilings("bf16")
    with pytest.raises(SettingsError, match="H100 SXM"):
        catalogue.device("H900")


def test_a_device_of_your_own():
    mine = catalogue.own(1e11, 1e12, 16e9, "fp32")
    assert mine.ceilings("fp32").ridge == 10
    for bad in ((0, 1e12, 1e9), (1e11, float("nan"), 1e9), (1e11, 1e12, float("inf")), (100, 1e12, 1e9)):
        with pytest.raises(SettingsError, match="believable"):
            catalogue.own(*bad)


@pytest.mark.parametrize(
    "name,billions",
    [
        ("SmolLM2-135M", 0.1345),
        ("Qwen3-4B", 4.02),
        ("Mistral-7B-v0.3", 7.25),
        ("Llama-3.1-8B", 8.03),
        ("gpt-oss-20b", 20.9),
        ("Qwen3-32B", 32.8),
        ("Llama-3.1-70B", 70.6),
        ("DeepSeek-V3", 671),
    ],
)
def test_built_in_shapes_have_their_published_size(name, billions):
    shape = shapes.shape(name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert pass_cost(shape, [1], [128], 1).bytes < shape.stored_bytes * 1.01 + 128 * shape.cache_bytes_per_token


def test_an_unknown_shape_is_refused():
    with pytest.raises(SettingsError, match="Llama"):
        shapes.shape("GPT-9")


@pytest.mark.parametrize("device", catalogue.DEVICES, ids=lambda d: d.name)
def test_every_row_says_whether_it_was_checked_or_is_from_memory(device):
    assert device.source in device.provenance and device.published in device.provenance
    assert ("from memory" in device.provenance) == (not device.checked)
    assert catalogue.own(1e11, 1e12, 16e9).provenance == "typed in."


def test_configs_of_the_built_in_shapes_give_the_shapes_and_say_how_weights_are_stored():
    assert shapes.shape("deepseek-v3").weight_bytes == 1.0
    assert shapes.shape("gpt-oss-20b").expert_weight_bytes == pytest.approx(4.25 / 8)
    assert shapes.shape("Llama-3.1-8B").weight_bytes == 2.0


@pytest.mark.parametrize(
    "quantised,bytes_",
    [({"quant_method": "gptq", "bits": 4}, 4 / 8 + 2.5 / 128), ({"quant_method": "fp8"}, 1.0), (None, 2.0)],
)
def test_weights_are_as_wide_as_the_config_says(quantised, bytes_):
    config = shapes.CONFIGS["Llama-3.1-8B"] | {"quantization_config": quantised}
    assert shapes.from_config(config, "x").weight_bytes == pytest.approx(bytes_)


@pytest.mark.parametrize(
    "text,words",
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[1]", "no model_type"),
        ("{}", "no model_type"),
        ("[" * 100_000, "no JSON"),
        ("x" * 1_000_001, "larger than any"),
        (b"\xff\xfe", "no JSON"),
    ],
)
def test_what_is_no_config_is_refused_in_a_sentence(text, words):
    with pytest.raises(SettingsError, match=words):
        shapes.parse_config(text)


def test_a_hub_config_comes_from_the_local_cache_without_network(monkeypatch, tmp_path):
    import huggingface_hub

    file = tmp_path / "config.json"
    file.write_text(json.dumps(shapes.CONFIGS["Qwen3-4B"]))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: str(file))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("asked the network"))
    assert hub_config("Qwen/Qwen3-4B") == shapes.CONFIGS["Qwen3-4B"]


def test_a_hub_that_cannot_be_reached_and_a_name_that_is_no_id_are_sentences(monkeypatch):
    import huggingface_hub

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(FetchError, match="cannot be reached"):
        hub_config("someone/something")
    with pytest.raises(SettingsError, match="Hub id such as"):
        hub_config("GPT-9")
