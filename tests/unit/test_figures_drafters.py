"""figures/drafters.py on the lanes that ship: what is drawn is what the tables say, and empty input is no error."""

import pytest

from specviz.bench import draft_cost, lanes
from specviz.trace import calibration, metrics, rejections
from specviz.views.figures import drafter_charts as figures
from specviz.views.figures import template


@pytest.fixture(scope="module")
def shipped():
    return lanes.load()


def test_speed_pools_all_prompts_and_takes_plain_from_the_same_run(shipped):
    data = figures.speed_table(shipped)
    assert data.drafter.tolist() == lanes.drafters_of(shipped)
    row = data[data.drafter == "hybrid"].iloc[0]
    rounds = [r for t in lanes.of_drafter(shipped, "hybrid") for r in t.rounds]
    plain = [r for t in lanes.of_drafter(shipped, lanes.PLAIN) for r in t.rounds]
    assert row.tokens_per_pass == pytest.approx(metrics.tokens_per_pass(rounds))
    assert row.low <= row.tokens_per_pass <= row.high
    assert row.speedup == pytest.approx(metrics.tokens_per_second(rounds) / metrics.tokens_per_second(plain))
    assert "tokens per target pass" in template.title_of(figures.speed_figure(data))
    only = {k: t for k, t in shipped.items() if k[1] != lanes.PLAIN}
    assert figures.speed_table(only).speedup.isna().all()


def test_acceptance_adds_up_and_thin_positions_are_hollow(shipped):
    data = figures.acceptance_table(shipped)
    for _, part in data.groupby("drafter"):
        assert (part.accepted <= part.judged).all() and (part.judged <= part.proposed).all()
        assert part.judged.tolist()[1:] <= part.accepted.tolist()[:-1]
    chart = figures.acceptance_figure(data, "of_judged")
    for drawn in chart.data:
        part = data[(data.drafter == drawn.name) & data.of_judged.notna()]
        assert [s.endswith("-open") for s in drawn.marker.symbol] == (part.judged < figures.THIN).tolist()


def test_costs_are_drawn_in_both_units():
    cost = draft_cost.load()
    data = figures.cost_table(cost)
    assert (data.plain_steps * cost.plain_seconds - data.seconds).abs().max() < 1e-12
    chart = figures.cost_figure(data, cost.plain_seconds)
    top, steps = chart.layout.yaxis.range[1], chart.layout.yaxis2.range[1]
    assert top / (1e3 * cost.plain_seconds) == pytest.approx(steps)
    assert "autoregressive" in template.title_of(chart)


def test_failures_name_the_worst_group_that_is_not_thin(shipped):
    data = rejections.judged(shipped)
    rates = rejections.rates(data, "position")
    chart = figures.failures_figure(rates, "position", "all")
    solid = rates[rates.judged >= figures.THIN]
    assert f"position {int(solid.sort_values('share').position.iloc[-1])}:" in template.title_of(chart)


def test_calibration_charts_say_their_counts(shipped):
    data = calibration.confidences(shipped)
    table = calibration.reliability(data["product"].tolist(), data.survived.astype(float).tolist())
    chart = figures.reliability_figure(table, 0.02, 0.9, "Survival")
    assert f"{len(data)} drafts" in template.title_of(chart) and sum(chart.data[2].y) == len(data)
    assert "sure" in template.title_of(figures.confidence_figure(calibration.by_position(data)))


def test_nothing_at_all_is_drawn_without_an_error():
    for chart in (
        figures.speed_figure(figures.speed_table({})),
        figures.acceptance_figure(figures.acceptance_table({}), "of_judged"),
        figures.failures_figure(rejections.rates(rejections.judged({}), "position"), "position", "none"),
        figures.confidence_figure(calibration.by_position(calibration.confidences({}))),
        figures.reliability_figure(calibration.reliability([], []), None, None, "x"),
    ):
        assert template.title_of(chart)
