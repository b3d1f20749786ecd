"""The charts draw their tables, name their colours, and count by the stated definitions."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from specviz import format
from specviz.hardware import catalogue
from specviz.hardware.roofline import point
from specviz.trace.records import Baseline, Ceilings, Cost, Machine, Position, Prompt, Round, Settings, Trace, Verdict
from specviz.views.figures import busy_idle, device_load, palette, pass_times, roofline_chart, run_charts, template

CEILINGS = Ceilings(
    device="cpu",
    precision="fp32",
    bandwidth=5e10,
    flops=2e11,
    bandwidth_spread=(4e10, 6e10),
    flops_spread=(1e11, 3e11),
    measured_at="2026-01-01T00:00:00+00:00",
)


def _position(verdict: str, token: int | None) -> Position:
    half = (0.5, 0.5)
    return Position(
        draft_token=token,
        verdict=verdict,
        accept_uniform=None,
        support=(0, 1),
        target_logits=(0.0, 0.0),
        draft_logits=None,
        target_logsumexp=0.7,
        draft_logsumexp=None,
        target_probs=half,
        draft_probs=half,
        tail_target=0.0,
        tail_draft=0.0,
        tail_min=0.0,
        tail_leftover=0.0,
    )


def _round(index: int, accepted: int, k: int = 3) -> Round:
    """A round of one row that accepts `accepted` of k drafts; the next is rejected and the rest dropped."""
    lost = ["rejected"] + ["dropped"] * (k - accepted - 1) if accepted < k else []
    names = ["accepted"] * accepted + lost + ["bonus"]
    positions = tuple(_position(n, None if n == "bonus" else 1) for n in names)
    verdict = Verdict(
        row=0,
        context=10 + index,
        anchor=0,
        proposed=k,
        verified=k,
        accepted=accepted,
        positions=positions,
        emitted=(1,) * accepted + (0,),
        kind="all_accepted" if accepted == k else "leftover",
        bonus_token=0,
        bonus_uniform=0.5,
    )
    return Round(
        index=index,
        rows=(verdict,),
        draft_seconds=0.01,
        verify_seconds=0.05,
        other_seconds=0.002,
        recording_seconds=0.001,
        target_tokens=k + 1,
        draft_tokens=k,
        target_cost=Cost(4000, 800),
        draft_cost=Cost(300, 90),
    )


@pytest.fixture
def trace() -> Trace:
    return make_trace()


def make_trace(accepted=(3, 1, 0, 2)) -> Trace:
    return Trace(
        pair="toy",
        target="toy",
        drafter="autoregressive",
        drafter_label="a small model",
        settings=Settings(k=3),
        machine=Machine(device="cpu", name="x", precision="fp32", torch="2", transformers="5", threads=2),
        recorded_at="2026-01-01T00:00:00+00:00",
        prompts=(Prompt("a", None, True, 0, (0,)),),
        texts=("b",),
        pieces={0: "a", 1: "b"},
        rounds=tuple(_round(i, a) for i, a in enumerate(accepted)),
        prefill_seconds=0.1,
        baseline=Baseline((0.04, 0.042, 0.044), (0.038, 0.039, 0.04), (1, 1, 1), Cost(1000, 700)),
        end="complete",
    )


def test_tokens_per_round_are_counted_as_accepted_bonus_rejected_dropped(trace):
    data = run_charts.tokens_table(trace)
    assert data[["accepted", "bonus", "rejected", "dropped"]].to_numpy().tolist() == [
        [3, 1, 0, 0],
        [1, 1, 1, 1],
        [0, 1, 1, 2],
        [2, 1, 1, 0],
    ]
    assert "2.50 tokens per target pass" in template.title_of(run_charts.tokens_figure(data))


def test_acceptance_by_position_keeps_both_conventions_apart(trace):
    data = run_charts.acceptance_table(trace)
    assert data.proposed.tolist() == [4, 4, 4]
    assert data.judged.tolist() == [4, 3, 2]
    assert data.accepted.tolist() == [3, 2, 1]
    assert data.of_proposed.tolist() == [0.75, 0.5, 0.25]
    assert data.of_judged.tolist() == [0.75, 2 / 3, 0.5]


def test_ledger_adds_up_to_the_counted_flops(trace):
    data = run_charts.ledger_table(trace)
    speculative = data[data.decoding == "speculative"]
    assert speculative.flops_per_token.sum() == pytest.approx(4 * (4000 + 300) / 10)
    useful = speculative[speculative.part == "useful target work"].flops_per_token.item()
    assert useful == pytest.approx(4000 / 4)
    assert data[data.decoding == "plain"].flops_per_token.sum() == 1000
    assert not (data.flops_per_token.notna() & data.seconds_per_token.notna()).any()


def test_ledger_has_seconds_as_bars_of_their_own(trace):
    data = run_charts.ledger_table(trace)
    times = data[data.seconds_per_token.notna()].set_index(["decoding", "part"]).seconds_per_token
    assert times["speculative"].sum() == pytest.approx(trace.seconds / 10)
    assert times["speculative", "target passes"] == pytest.approx(4 * 0.05 / 10)
    assert times["plain"].sum() == pytest.approx(1 / trace.baseline.tokens_per_second)
    figure = run_charts.ledger_figure(data)
    assert "per emitted token (counted)" in figure.layout.xaxis.title.text
    assert "per emitted token (measured)" in figure.layout.xaxis2.title.text
    assert {bar.xaxis for bar in figure.data} == {"x", "x2"}


WIDTHS = [
    {
        "positions": n,
        "seconds": 0.1 * n,
        "spread": [0.09 * n, 0.12 * n],
        "roofs": 0.03,
        "dispatch": 0.02,
        "kernels": 0.1 * n - 0.06,
        "rest": 0.01,
        "error": 0.05 / (0.1 * n) - 1,
        "culprit": "slow products",
    }
    for n in (1, 2, 4)
]


def test_widths_are_charted_with_their_error_and_where_their_time_goes():
    data = pass_times.widths_table(WIDTHS)
    assert data.modelled_seconds.tolist() == [0.05] * 3
    assert "4 positions in one pass take 4 times as long as 1" in template.title_of(pass_times.times_figure(data))
    assert "0 of 3 widths; at worst -88 % at 4 positions" in template.title_of(pass_times.error_figure(data))
    parts = pass_times.parts_figure(data)
    assert "matrix products" in template.title_of(parts)
    assert sum(bar.y[0] for bar in parts.data) == pytest.approx(100), "the parts add up to the measured time"


def test_utilizations_by_round_and_where_there_are_none(trace):
    data = device_load.utilization_table(trace.rounds, CEILINGS)
    assert data["round"].tolist() == [1, 2, 3, 4]
    assert (data.model_flops <= data.hardware_flops).all(), "useful work is part of all work"
    assert len(device_load.utilization_table(list(trace.rounds) * 50, CEILINGS)) == 120, "bounded"
    for table, mode in ((data, "lines"), (data[:1], "markers"), (data[:0], "markers")):
        chart = device_load.utilization_figure(table)
        assert template.title_of(chart) and chart.data[0].mode == mode, "one round alone is seen, too"
        assert chart.layout.xaxis.dtick == 1, "no tick between two rounds"


def test_where_a_point_comes_from_shows_in_its_symbol():
    points = [point("plain", Cost(10**8, 4 * 10**8), 0.02, CEILINGS)] * 3
    data = roofline_chart.table(points, CEILINGS, names=["a", "b", "c"], sources=["measured", "modelled", "run"])
    drawn = [t for t in roofline_chart.figure(data, CEILINGS).data if t.mode == "markers+text"]
    assert [t.marker.symbol for t in drawn] == ["square", "square-open", "square-dot"]
    assert [t.customdata[0] for t in drawn] == ["a", "b", "c"]


@pytest.mark.slow
def test_every_roof_and_every_step_of_any_device_lies_within_the_axes():
    for device in catalogue.DEVICES:
        for precision in device.peaks:
            roofs = device.ceilings(precision)
            figure = roofline_chart.figure(roofline_chart.table([], roofs), roofs)
            low, high = (10.0**edge for edge in figure.layout.yaxis.range)
            assert low < roofline_chart.LOWEST_INTENSITY * roofs.bandwidth and roofs.flops < high
            assert figure.layout.xaxis.range == (-1, 4) and roofs.ridge < 10**4


def _all_figures(trace):
    points = [
        point("plain", Cost(10**8, 4 * 10**8), 0.02, CEILINGS),
        point("verify", Cost(5 * 10**8, 41 * 10**7), 0.022, CEILINGS),
    ]
    tables = {
        "tokens": run_charts.tokens_table(trace),
        "acceptance": run_charts.acceptance_table(trace),
        "seconds": run_charts.seconds_table(trace),
        "ledger": run_charts.ledger_table(trace),
        "roofline": roofline_chart.table(points, CEILINGS, ["", "K = 4"]),
        "busy": busy_idle.table(points),
    }
    figures = {
        "tokens": run_charts.tokens_figure(tables["tokens"]),
        "acceptance": run_charts.acceptance_figure(tables["acceptance"]),
        "seconds": run_charts.seconds_figure(tables["seconds"]),
        "ledger": run_charts.ledger_figure(tables["ledger"]),
        "roofline": roofline_chart.figure(tables["roofline"], CEILINGS, "a processor"),
        "busy": busy_idle.figure(tables["busy"]),
    }
    return {name: (figures[name], tables[name]) for name in figures}


def test_every_figure_has_title_alt_units_and_explicit_colours(trace):
    for name, (figure, _) in _all_figures(trace).items():
        assert template.title_of(figure) and len(template.alt_of(figure)) > 40, name
        assert figure.layout.xaxis.title.text, name
        for part in figure.data:
            colour = part.line.color if part.type == "scatter" and "lines" in part.mode else part.marker.color
            assert colour, f"{name}: {part.name} has no colour of its own"
        text = json.dumps(template.for_screen(figure, dark=True).to_plotly_json(), default=str)
        assert '"#0000' not in text, f"{name} carries a placeholder colour"


def test_a_run_without_rounds_or_drafts_still_draws():
    for trace in (make_trace(()),):
        for figure, data in (
            (run_charts.tokens_figure(run_charts.tokens_table(trace)), run_charts.tokens_table(trace)),
            (run_charts.acceptance_figure(run_charts.acceptance_table(trace)), run_charts.acceptance_table(trace)),
            (run_charts.seconds_figure(run_charts.seconds_table(trace)), run_charts.seconds_table(trace)),
            (run_charts.ledger_figure(run_charts.ledger_table(trace)), run_charts.ledger_table(trace)),
        ):
            assert isinstance(data, pd.DataFrame)
            assert template.title_of(figure)


def test_roofline_axes_do_not_depend_on_the_points(trace):
    one = roofline_chart.figure(
        roofline_chart.table([point("plain", Cost(10**6, 10**6), 1.0, CEILINGS)], CEILINGS), CEILINGS
    )
    two = roofline_chart.figure(
        roofline_chart.table([point("plain", Cost(10**9, 10**7), 1.0, CEILINGS)], CEILINGS), CEILINGS
    )
    assert one.layout.xaxis.range == two.layout.xaxis.range
    assert one.layout.yaxis.range == two.layout.yaxis.range


def test_export_is_on_white_and_screen_is_transparent(trace):
    figure = run_charts.tokens_figure(run_charts.tokens_table(trace))
    white = template.for_export(figure)["layout"]
    assert white["template"]["layout"]["paper_bgcolor"] == palette.PAPER_LIGHT and white["title"]["text"]
    assert figure.layout.width is None, "the figure itself stays as it is"
    assert template.for_screen(figure, dark=True).layout.template.layout.font.color == palette.INK_ON_DARK
    assert template.for_screen(figure, dark=False).layout.template.layout.paper_bgcolor == template.CLEAR


def test_figures_costs_roofline_and_export_need_neither_torch_nor_streamlit():
    code = (
        "import sys; import specviz.hardware.costs, specviz.hardware.roofline, specviz.views.export; "
        "from specviz.views.figures import busy_idle, device_load, pass_times, roofline_chart, run_charts; "
        "sys.exit(bool({'torch', 'streamlit', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "value,text",
    [
        (2.5e10, "25.0 GB/s"),
        (999.9e9, "1.00 TB/s"),
        (0.0, "0 B/s"),
        (1, "1.00 B/s"),
        (None, "n/a"),
        (float("nan"), "n/a"),
        (1.5e-3, "1.50 mB/s"),
        (-2e3, "-2.00 kB/s"),
    ],
)
def test_si(value, text):
    assert format.si(value, "B/s") == text


@pytest.mark.parametrize(
    "value,text",
    [
        (0.0, "0 %"),
        (0.0004, "<0.1 %"),
        (0.058, "5.8 %"),
        (0.12, "12 %"),
        (0.997, "99.7 %"),
        (0.9999, "100 %"),
        (1.0, "100 %"),
        (None, "n/a"),
    ],
)
def test_percent(value, text):
    assert format.percent(value) == text


@pytest.mark.parametrize(
    "value,text", [(0.0001, "<0.001"), (3, "3"), (2.3750, "2.38"), (1234.5, "1230"), (12.345, "12.3")]
)
def test_number(value, text):
    assert format.number(value) == text


@pytest.mark.parametrize("value,text", [(0.0123, "12.3 ms"), (4.56, "4.56 s"), (125, "2 min 05 s"), (None, "n/a")])
def test_seconds(value, text):
    assert format.seconds(value) == text
