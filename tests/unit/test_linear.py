"""oneDNN's matmul equals torch's, and the choice between them follows the measurement."""

import pytest
import torch

from specviz.models import linear
from specviz.models.linear import (
    ROW_COUNTS,
    Int8Linear,
    Linear,
    WeightFormat,
    can_pack,
    fits_int8,
    measure,
    pick_format,
)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("rows", [1, 2, 6, 17, 130])
def test_a_reordered_weight_gives_the_same_product(dtype, tolerance, rows):
    weight = torch.randn(48, 32, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if not can_pack(weight):
        pytest.skip(f"no reordered product of {dtype} on this processor")
    x = torch.randn(rows, 32, dtype=dtype, generator=torch.Generator().manual_seed(1))
    packed = Linear(weight, (True,) * len(ROW_COUNTS))
    torch.testing.assert_close(packed(x), Linear(weight)(x), atol=tolerance * 10, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_measured_and_the_stock_product_is_kept_where_no_copy_can_be_made(dtype, empty_home, monkeypatch):
    monkeypatch.setattr(linear, "can_pack", lambda weight: False)
    weights = [torch.randn(48, 32, dtype=dtype) for _ in range(2)]
    assert measure(weights) == ()
    assert pick_format(weights, 2**25).use_packed == ()


def test_each_row_count_uses_the_result_of_the_next_measured_one(monkeypatch):
    """Stock up to 2 rows, reordered from 3 to 8, stock above, as a table says: counted by which product is called."""
    weight = torch.randn(8, 8)
    if not can_pack(weight):
        pytest.skip("no reordered product on this processor")
    layer = Linear(weight, [size in (4, 8) for size in ROW_COUNTS])
    stock = []
    monkeypatch.setattr(linear.functional, "linear", lambda x, w: stock.append(len(x)) or x @ w.t())
    for rows in (1, 2, 3, 8, 9, 128, 500):
        layer(torch.randn(rows, 8))
    assert stock == [1, 2, 9, 128, 500]


def test_no_copy_is_made_with_an_empty_table():
    assert Linear(torch.randn(4, 4))._packed is None


def test_measure_gives_a_result_for_every_row_count():
    weights = [torch.randn(64, 64) for _ in range(2)]
    assert len(measure(weights)) == (len(ROW_COUNTS) if can_pack(weights[0]) else 0)


def test_int8_linear_is_within_its_rounding_and_independent_of_the_row_count():
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0))
    if not fits_int8([weight]):
        pytest.skip("this torch has no int8 product")
    x = torch.randn(17, 96, generator=torch.Generator().manual_seed(1))
    layer = Int8Linear(weight)
    whole = layer(x)
    torch.testing.assert_close(whole, x @ weight.t(), atol=0.3, rtol=0.02)
    assert whole.dtype == x.dtype and layer.weight.dtype == torch.int8
    for rows in (1, 2, 5):
        assert torch.equal(layer(x[:rows]), whole[:rows])


def test_int8_is_refused_for_shapes_that_its_operator_would_overrun():
    assert not fits_int8([torch.zeros(64, 96), torch.zeros(64, 33)])


def test_the_fastest_format_among_the_allowed_types_is_picked(empty_home, monkeypatch):
    """int8 is chosen when its products are the fastest and only if it is allowed; small models stay as they are."""
    weights = [torch.randn(64, 64) for _ in range(2)]
    if not can_pack(weights[0]) or not fits_int8(weights):
        pytest.skip("no other product on this processor")
    monkeypatch.setattr(linear, "_seconds", lambda layers, dtype, rows: layers[0].weight.element_size())
    large = 2**25
    assert pick_format(weights, large, (torch.bfloat16, torch.int8)) == WeightFormat(torch.int8)
    assert pick_format(weights, large).dtype == torch.float32
    assert pick_format(weights, 1000, (torch.int8,)) == WeightFormat(torch.float32)
    assert isinstance(WeightFormat(torch.int8).linear(weights[0]), Int8Linear)


def test_the_measurement_is_cached_unless_other_programs_were_running(empty_home, monkeypatch):
    """Measured again after a busy machine, for other shapes, and if the file is invalid; otherwise once."""
    weights = [torch.randn(64, 64) for _ in range(2)]
    if not can_pack(weights[0]):
        pytest.skip("no reordered product on this processor")
    timed = []
    monkeypatch.setattr(linear, "_seconds", lambda layers, dtype, rows: timed.append(rows) or len(timed))

    def times(*arguments) -> int:
        timed.clear()
        pick_format(*arguments)
        return len(timed)

    monkeypatch.setattr(linear.ceilings, "load_of_others", lambda device: lambda: 0.9)
    assert times(weights, 2**25) == times(weights, 2**25) == 2 * len(ROW_COUNTS)
    monkeypatch.setattr(linear.ceilings, "load_of_others", lambda device: lambda: 0.01)
    assert times(weights, 2**25) == 2 * len(ROW_COUNTS)
    first = pick_format(weights, 2**25)
    assert times(weights, 2**25) == 0 and pick_format(weights, 2**25) == first
    assert times([torch.randn(32, 64)], 2**25) == 2 * len(ROW_COUNTS)
    monkeypatch.setattr(linear.facts, "read", lambda *_: {"dtype": "torch.float32", "use_packed": [1, 2]})
    assert times(weights, 2**25) == 2 * len(ROW_COUNTS)
