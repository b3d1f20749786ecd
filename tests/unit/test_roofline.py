"""Points on the roofline: fractions, flags, prediction and the batch of the briefing's 12 %."""

import pytest

from specviz.errors import SettingsError
from specviz.hardware.costs import ModelShape
from specviz.hardware.roofline import (
    batch_for_busy,
    expected_tokens,
    explained,
    modelled_seconds,
    plain_seconds,
    point,
    predicted_speedup,
    round_points,
    step_cost,
    utilization,
)
from specviz.trace.records import Baseline, Ceilings, Cost, Round, Verdict

ROOFS = Ceilings(
    device="cpu",
    precision="fp32",
    bandwidth=1e10,
    flops=1e11,
    bandwidth_spread=(9e9, 1e10),
    flops_spread=(9e10, 1e11),
    measured_at="2026-01-01T00:00:00+00:00",
)
LLAMA = ModelShape(
    name="llama-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128256,
    weight_bytes=2,
    cache_bytes=2,
    activation_bytes=2,
)
H100 = Ceilings(
    device="cuda",
    precision="bf16",
    bandwidth=3.35e12,
    flops=989e12,
    bandwidth_spread=(3.35e12,) * 2,
    flops_spread=(989e12,) * 2,
    measured_at="2026-01-01T00:00:00+00:00",
)


def test_fractions_of_a_memory_bound_step():
    p = point("plain", Cost(10**9, 10**9), 0.125, ROOFS)
    assert (p.busy_fraction, p.stream_fraction, p.overhead_fraction) == pytest.approx((0.08, 0.8, 0.2))
    assert (p.bound, p.roof, p.flagged) == ("memory", "memory", False)
    assert (p.intensity, p.throughput, p.bandwidth) == (1, 8e9, 8e9)


def test_a_step_that_neither_roof_explains_is_overhead():
    p = point("plain", Cost(10**9, 10**9), 1.0, ROOFS)
    assert p.bound == "overhead" and p.roof == "memory" and p.overhead_fraction == pytest.approx(0.9)


def test_beyond_the_ridge_compute_binds():
    p = point("verify", Cost(10**11, 10**9), 1.25, ROOFS)
    assert (p.bound, p.roof, p.busy_fraction) == ("compute", "compute", pytest.approx(0.8))


def test_a_point_above_its_roof_is_flagged_and_never_over_100_per_cent():
    """Known fault: utilization over 100 %."""
    p = point("verify", Cost(10**9, 10**9), 0.05, ROOFS)
    assert p.flagged and "measure the ceilings again" in p.warning
    assert max(p.busy_fraction, p.stream_fraction) <= 1 and p.overhead_fraction == 0
    assert point("plain", Cost(10**9, 10**9), 0.125, ROOFS).warning is None


@pytest.mark.parametrize(
    "cost,seconds",
    [(Cost(1, 1), 0.0), (Cost(1, 1), -1.0), (Cost(1, 0), 1.0), (Cost(1, 1), float("nan")), (Cost(1, 1), float("inf"))],
)
def test_what_has_no_place_on_the_roofline_is_refused(cost, seconds):
    with pytest.raises(SettingsError):
        point("draft", cost, seconds, ROOFS)


def _round(draft_cost: Cost) -> Round:
    return Round(
        index=0,
        rows=(),
        draft_seconds=0.01,
        verify_seconds=0.2,
        other_seconds=0.001,
        recording_seconds=0.0,
        target_tokens=5,
        draft_tokens=4,
        target_cost=Cost(5 * 10**9, 10**9),
        draft_cost=draft_cost,
    )


def test_a_lookup_has_no_draft_point_and_plain_comes_from_the_baseline():
    baseline = Baseline((0.3, 0.2, 0.2), (0.25, 0.15, 0.13), (2, 1, 1), Cost(10**9, 10**9))
    points = round_points(_round(Cost(0, 0)), baseline, ROOFS)
    assert set(points) == {"verify", "plain"}
    assert points["plain"].seconds == pytest.approx(0.14), "only steps with as many rows as the counted one"
    assert set(round_points(_round(Cost(10, 10)), Baseline(), ROOFS)) == {"draft", "verify"}
    assert round_points(_round(Cost(10, 10)), baseline, None) == {}
    assert plain_seconds(Baseline()) is None


def test_useful_arithmetic_is_less_than_executed_and_bandwidth_goes_by_the_pass():
    verdict = Verdict(
        row=0,
        context=5,
        anchor=0,
        proposed=4,
        verified=4,
        accepted=1,
        positions=(),
        emitted=(1, 2),
        kind="leftover",
        bonus_token=2,
        bonus_uniform=0.5,
    )
    round_ = Round(
        index=0,
        rows=(verdict,),
        draft_seconds=0.05,
        verify_seconds=0.2,
        other_seconds=0.0,
        recording_seconds=0.0,
        target_tokens=5,
        draft_tokens=4,
        target_cost=Cost(5 * 10**9, 10**9),
        draft_cost=Cost(10**9, 10**8),
    )
    used = utilization(round_, ROOFS)
    assert used.model_flops == pytest.approx(2e9 / 1e11 / 0.25)
    assert used.hardware_flops == pytest.approx(6e9 / 1e11 / 0.25)
    assert used.model_bandwidth == pytest.approx(1e9 / 1e10 / 0.2)
    with pytest.raises(SettingsError):
        utilization(
            Round(
                index=0,
                rows=(),
                draft_seconds=0.0,
                verify_seconds=0.0,
                other_seconds=0.0,
                recording_seconds=0.0,
                target_tokens=0,
                draft_tokens=0,
                target_cost=Cost(0, 0),
                draft_cost=Cost(0, 0),
            ),
            ROOFS,
        )


def test_predicted_speedup():
    assert predicted_speedup(3.0, 0.5, 1.0) == 2.0
    assert predicted_speedup(1.0, 0.0, 1.0) == 1.0
    assert expected_tokens(0.8, 4) == pytest.approx((1 - 0.8**5) / 0.2)
    assert expected_tokens(1.0, 4) == 5 and expected_tokens(0.0, 4) == 1
    with pytest.raises(SettingsError):
        predicted_speedup(1.0, 0.1, 0.0)


def test_the_batch_that_is_12_per_cent_busy():
    """On an H100's datasheet roofs a plain step is 12 % busy at a few dozen rows, and a verify of 5 near 58 %."""
    pair = batch_for_busy(LLAMA, H100, 0.12, k=4, context=128)
    assert pair.plain.busy_fraction == pytest.approx(0.12, abs=0.005)
    assert 20 < pair.batch < 60
    assert 0.5 < pair.verify.busy_fraction < 0.65
    assert pair.verify.seconds < 1.2 * pair.plain.seconds


def test_no_batch_is_told_where_there_is_none():
    long = batch_for_busy(LLAMA, H100, 0.5, k=4, context=100_000)
    assert long is None


def test_modelled_time_follows_the_binding_roof():
    assert modelled_seconds(Cost(10**9, 10**9), ROOFS) == pytest.approx(0.1)
    assert modelled_seconds(Cost(10**11, 10**9), ROOFS, 0.5) == pytest.approx(1.5)
    assert step_cost(LLAMA, 1, 4, 0).bytes < 1.1 * step_cost(LLAMA, 1, 0, 0).bytes


def test_peaks_are_dense():
    """Known fault: half-empty 'sparse' peaks, twice the dense ones. The ridge of an H100 is near 295 FLOP/byte."""
    from specviz.hardware import catalogue

    device = catalogue.device("H100 SXM")
    assert device.ceilings("bf16").ridge == pytest.approx(295, rel=0.01)


def test_a_measured_pass_is_taken_apart_and_the_parts_add_up():
    # 0.1 s of traffic allowed; 0.05 s of dispatch; products take 0.3 s where 0.08 s are allowed
    parts = explained(0.6, Cost(10**9, 10**9), ROOFS, 0.05, 0.3, Cost(10**9, 8 * 10**8))
    assert (parts.roofs, parts.dispatch, parts.kernels) == pytest.approx((0.1, 0.05, 0.22))
    assert explained(0.3, Cost(10**9, 10**9), ROOFS, 0.05, 9.0, Cost(10**9, 8 * 10**8)).rest == pytest.approx(0)
    assert parts.seconds == pytest.approx(0.6) and parts.error == pytest.approx(0.15 / 0.6 - 1)
    assert "do not reach the roofs" in parts.culprit or "attention" in parts.culprit


def test_what_is_off_by_more_than_a_quarter_is_explained_and_only_that():
    assert explained(0.12, Cost(10**9, 10**9), ROOFS).culprit is None
    assert "matrix products" in explained(0.4, Cost(10**9, 10**9), ROOFS, 0.0, 0.35, Cost(10**9, 10**9)).culprit
    assert "attention" in explained(0.4, Cost(10**9, 10**9), ROOFS, 0.0, 0.1, Cost(10**9, 10**9)).culprit
    assert "faster" in explained(0.05, Cost(10**9, 10**9), ROOFS).culprit
