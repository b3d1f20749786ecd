"""calibration.py against hand-counted cases."""

import pytest

from specviz.bench import lanes
from specviz.trace import calibration


def test_bins_count_what_fell_in_them():
    data = calibration.reliability([0.05, 0.05, 0.95, 1.0, 0.55], [0, 1, 1, 1, 0])
    assert data["count"].tolist() == [2, 1, 2] and data.happened.tolist() == [1, 0, 2]
    assert data.low.tolist() == [0.0, 0.5, 0.9] and data.share.tolist() == [0.5, 0.0, 1.0]
    assert calibration.expected_error([0.05, 0.05, 0.95, 1.0, 0.55], [0, 1, 1, 1, 0]) == pytest.approx(
        (2 * 0.45 + 0.55 + 2 * 0.025) / 5
    )


def test_auc_counts_pairs_and_ties_half():
    assert calibration.auc([0.9, 0.2, 0.5], [1, 0, 0]) == 1.0
    assert calibration.auc([0.5, 0.5], [1, 0]) == 0.5
    assert calibration.auc([0.1, 0.9], [1, 0]) == 0.0
    assert calibration.auc([0.1, 0.9], [1, 1]) is None and calibration.auc([], []) is None
    assert calibration.expected_error([], []) is None


def test_the_error_takes_probabilities_as_well():
    assert calibration.expected_error([0.5, 0.5, 0.9], [0.4, 0.8, 0.9]) == pytest.approx(0.2 / 3)


def test_wilsons_interval_is_wide_for_few_and_never_leaves_zero_to_one():
    assert calibration.wilson(0, 0) == (0.0, 1.0)
    low, high = calibration.wilson(1, 1)
    assert low == pytest.approx(0.2065, abs=1e-4) and high == 1.0
    low, high = calibration.wilson(50, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))


def test_confidences_of_the_shipped_lanes_multiply_along_each_chain():
    """Products never rise within a round, only the hybrid tells any, and a survivor's chain survived before it."""
    data = calibration.confidences(lanes.load())
    assert set(data.drafter) == {"hybrid"} and data["product"].between(0, 1).all()
    starts = data.position == 1
    chain = starts.cumsum()
    for _, part in list(data.groupby(chain))[:40]:
        assert part["product"].is_monotonic_decreasing and part.survived.is_monotonic_decreasing
        assert part["product"].iloc[-1] == pytest.approx(part.confidence.prod())
        assert part.judged.sum() == min(len(part), part.survived.sum() + 1)
    table = calibration.by_position(data)
    assert table.judged.is_monotonic_decreasing and (table.accepted <= table.judged).all()
