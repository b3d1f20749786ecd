"""Charts of timed steps: measured against modelled time by pass width, and the speed-up that it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.figures import palette, template
from specviz.roofline import expected_tokens, predicted_speedup


def times_table(measured: Mapping[int, float], modelled: Mapping[int, float]) -> pd.DataFrame:
    """Per number of positions in a pass: measured and modelled seconds, and the error of the model."""
    rows = [(n, measured[n], modelled[n], modelled[n] / measured[n] - 1) for n in sorted(measured)]
    return pd.DataFrame(rows, columns=["positions", "measured_seconds", "modelled_seconds", "error"])


def times_figure(data: pd.DataFrame) -> go.Figure:
    """Both times by pass width; the gap between them is what the roofs do not explain."""
    chart = go.Figure()
    for column, name, colour, dash, symbol in (
            ("measured_seconds", "measured", palette.TARGET, "solid", "circle"),
            ("modelled_seconds", "modelled on the roofs", palette.PLAIN, "dash", "square")):
        chart.add_scatter(x=template.numbers(data.positions), y=template.numbers(1e3 * data[column]), name=name,
                          mode="lines+markers", line={"color": colour, "dash": dash, "width": 2.5},
                          marker={"size": 9, "symbol": symbol, "line": {"color": palette.LINE, "width": 1}},
                          customdata=template.numbers(100 * data.error),
                          hovertemplate="%{x} positions: " + name + " %{y:.3g} ms<br>the model is off by "
                                        "%{customdata:+.0f} %<extra></extra>")
    chart.update_xaxes(fixedrange=True, tickformat="d")
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    first, last = data.iloc[0], data.iloc[-1]
    ratio = last.measured_seconds / first.measured_seconds
    title = f"{last.positions:.0f} positions in one pass take {format.number(ratio)} times as long as 1"
    said = "; ".join(f"{r.positions:.0f}: {format.seconds(r.measured_seconds)}, model {100 * r.error:+.0f} %"
                     for r in data.itertuples())
    return template.finish(chart, title, f"Time of a pass by its positions, measured and modelled. {said}.",
                           "Positions in the pass (anchor + K)", "Time (ms)")


def speedup_table(ks: Sequence[int], acceptance: float, draft_ratio: float, verify_ratios: Mapping[int, float],
                  serial: bool = True) -> pd.DataFrame:
    """Predicted speed-up by K.

    `acceptance`: the chance that a draft survives, taken as the same everywhere; `draft_ratio`: one draft pass in plain
    steps, spent K times if `serial`; `verify_ratios`: T(K+1)/T(1) by K, measured. Ideal: every pass costs one step.
    """
    rows = []
    for k in ks:
        tokens, draft = expected_tokens(acceptance, k), draft_ratio * (k if serial else min(k, 1))
        rows.append((k, tokens, draft, verify_ratios[k], predicted_speedup(tokens, draft, verify_ratios[k]),
                     predicted_speedup(tokens, draft, 1.0)))
    return pd.DataFrame(rows, columns=["k", "tokens_per_round", "draft_steps", "verify_steps", "predicted", "ideal"])


def speedup_figure(data: pd.DataFrame, measured: tuple[int, float] | None = None) -> go.Figure:
    """The predicted and the ideal curve; `measured`: (K, speed-up) of a real run beside them."""
    chart = go.Figure()
    for column, name, colour, dash in (("predicted", "predicted from the measured passes", palette.TARGET, "solid"),
                                       ("ideal", "ideal: a pass costs one step", palette.PLAIN, "dash")):
        chart.add_scatter(x=template.numbers(data.k), y=template.numbers(data[column]), name=name, mode="lines+markers",
                          line={"color": colour, "dash": dash, "width": 2.5},
                          marker={"size": 8, "line": {"color": palette.LINE, "width": 1}},
                          hovertemplate="K = %{x}: %{y:.3g} times<extra>" + name + "</extra>")
    if measured is not None:
        chart.add_scatter(x=[measured[0]], y=[measured[1]], name="measured in the last run", mode="markers",
                          marker={"size": 14, "symbol": "star", "color": palette.ACCEPTED,
                                  "line": {"color": palette.LINE, "width": 1}},
                          hovertemplate="K = %{x}: %{y:.3g} times, measured<extra></extra>")
    chart.add_hline(y=1, line={"color": palette.LINE, "width": 1, "dash": "dot"})
    chart.update_xaxes(fixedrange=True, tickformat="d")
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    best = data.loc[data.predicted.idxmax()]
    title = (f"Best predicted: {format.number(best.predicted)} times at K = {best.k:.0f}" if best.predicted > 1 else
             "No K pays on this machine with this drafter")
    said = "; ".join(f"K = {r.k}: {format.number(r.predicted)} predicted, {format.number(r.ideal)} ideal"
                     for r in data.itertuples())
    return template.finish(chart, title, f"Speed-up against plain decoding by K. {said}.", "K (drafts per round)",
                           "Speed-up (times)")
