"""Quantised configs are counted by their own bits, scales included, or said to be not known."""

import pytest

from specviz.errors import SettingsError
from specviz.hardware import shapes


@pytest.mark.parametrize(
    "quantised, bytes_",
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + 2.5 / 64),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1.0 + 4 / 128**2),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "strategy": "group", "group_size": 128, "symmetric": True}}
                },
            },
            0.5 + 2 / 128,
        ),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            0.5 + 4 / 64,
        ),
    ],
)
def test_bytes_of_a_quantised_weight_are_read_from_the_config_and_the_head_stays_as_it_is(quantised, bytes_):
    config = shapes.CONFIGS["Llama-3.1-8B"]
    plain, shape = shapes.from_config(config), shapes.from_config(config | {"quantization_config": quantised})
    tables = 2 * plain.vocab * plain.hidden
    assert shape.weight_bytes == pytest.approx(bytes_) and shape.head_bytes == 2
    assert shape.stored_bytes == pytest.approx((plain.parameters - tables) * bytes_ + 2 * tables)


def test_mlx_quantises_the_tables_too():
    shape = shapes.from_config(shapes.CONFIGS["Llama-3.1-8B"] | {"quantization": {"bits": 4, "group_size": 64}})
    assert shape.weight_bytes == shape.head_bytes == 0.5 + 4 / 64
    assert shape.stored_bytes == pytest.approx(shape.parameters * (0.5 + 4 / 64))


@pytest.mark.parametrize(
    "quantised",
    [
        {"quant_method": "torchao"},
        {"quant_method": "unheard-of"},
        {"quant_method": "awq", "bits": 4},
        {"quant_method": "compressed-tensors"},
        {"bits": 4, "group_size": 64, "model.layers.0": {"bits": 8}},
        "int4",
    ],
)
def test_bits_that_a_config_does_not_tell_are_not_known(quantised):
    with pytest.raises(SettingsError, match="not known"):
        shapes.from_config(shapes.CONFIGS["Llama-3.1-8B"] | {"quantization_config": quantised})
