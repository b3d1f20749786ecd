"""Charts of pass times by width, measured and modelled, and of the predicted speed-up by K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.hardware.roofline import LARGE_ERROR, expected_tokens, predicted_speedup
from specviz.views.figures import palette, template

_PARTS = (
    ("roofs", "the slower roof", palette.TARGET, ""),
    ("dispatch", "Python and launches", palette.DRAFT, "/"),
    ("kernels", "matrix products short of the roofs", palette.REJECTED, "x"),
    ("rest", "attention, norms and the rest", palette.IDLE, "."),
)


def widths_table(rows: Iterable[Mapping]) -> pd.DataFrame:
    """Per number of positions in a pass: measured seconds with their spread, the parts they go to, the modelled seconds
    (roofs and dispatch) and the model's error. `rows`: mappings with positions, seconds, spread, roofs, dispatch,
    kernels, rest, error and culprit, one a width."""
    table = [
        (
            r["positions"],
            r["seconds"],
            *r["spread"],
            r["roofs"],
            r["dispatch"],
            r["kernels"],
            r["rest"],
            r["roofs"] + r["dispatch"],
            r["error"],
            r["culprit"] or "",
        )
        for r in rows
    ]
    return pd.DataFrame(
        sorted(table),
        columns=[
            "positions",
            "measured_seconds",
            "lowest_seconds",
            "highest_seconds",
            "roofs_seconds",
            "dispatch_seconds",
            "kernels_seconds",
            "rest_seconds",
            "modelled_seconds",
            "error",
            "explanation",
        ],
    )


def times_figure(data: pd.DataFrame) -> go.Figure:
    """Measured and modelled time by pass width, and the roofs alone."""
    chart = go.Figure()
    for column, name, colour, dash, symbol in (
        ("measured_seconds", "measured", palette.TARGET, "solid", "circle"),
        ("modelled_seconds", "modelled: roofs + dispatch", palette.PLAIN, "dash", "square"),
        ("roofs_seconds", "modelled: roofs alone", palette.LINE, "dot", "diamond"),
    ):
        low, high = data.measured_seconds - data.lowest_seconds, data.highest_seconds - data.measured_seconds
        spread = (
            {
                "array": template.numbers(1e3 * high),
                "arrayminus": template.numbers(1e3 * low),
                "width": 2,
                "color": palette.LINE,
                "thickness": 1,
            }
            if column == "measured_seconds"
            else None
        )
        chart.add_scatter(
            x=template.numbers(data.positions),
            y=template.numbers(1e3 * data[column]),
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            error_y=spread,
            marker={"size": 7, "symbol": symbol, "line": {"color": palette.LINE, "width": 1}},
            customdata=template.numbers(100 * data.error),
            hovertemplate="%{x} positions: " + name + " %{y:.3g} ms<br>the model is off by "
            "%{customdata:+.0f} %<extra></extra>",
        )
    chart.update_xaxes(fixedrange=True, tickformat="d", range=[0, max(33, data.positions.max() + 1)])
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    first, last = data.iloc[0], data.iloc[-1]
    ratio = last.measured_seconds / first.measured_seconds
    title = (
        f"{last.positions:.0f} positions in one pass take {format.number(ratio)} times as long as "
        f"{first.positions:.0f} (measured)"
    )
    said = "; ".join(
        f"{r.positions:.0f}: {format.seconds(r.measured_seconds)}, model {100 * r.error:+.0f} %"
        for r in data.itertuples()
    )
    return template.finish(
        chart,
        title,
        f"Time of a pass by its positions, measured and modelled. {said}.",
        "Positions in the pass (anchor + K)",
        "Time (ms)",
    )


def error_figure(data: pd.DataFrame) -> go.Figure:
    """The error of the model by width; bars beyond 25 % stand out."""
    chart = go.Figure()
    beyond = data.error.abs() > LARGE_ERROR
    for part, name, colour, pattern in (
        (data[~beyond], "within 25 %", palette.ACCEPTED, ""),
        (data[beyond], "beyond 25 %", palette.REJECTED, "x"),
    ):
        chart.add_bar(
            x=template.numbers(part.positions),
            y=template.numbers(100 * part.error),
            name=name,
            customdata=part.explanation.tolist(),
            marker={"color": colour, "line": {"color": palette.LINE, "width": 0.5}, "pattern": template.hatch(pattern)},
            hovertemplate="%{x} positions: %{y:+.0f} %<br>%{customdata}<extra></extra>",
        )
    for edge in (-100 * LARGE_ERROR, 100 * LARGE_ERROR):
        chart.add_hline(y=edge, line={"color": palette.LINE, "width": 1, "dash": "dot"})
    chart.update_xaxes(fixedrange=True, tickformat="d", range=[0, max(33, data.positions.max() + 1)])
    chart.update_yaxes(
        range=[-100, max(50, 105 * data.error.max())],
        fixedrange=True,
        zeroline=True,
        zerolinewidth=2,
        zerolinecolor=palette.LINE,
    )
    worst = data.loc[data.error.abs().idxmax()]
    title = (
        f"The model is within 25 % at {(~beyond).sum()} of {len(data)} widths; at worst "
        f"{100 * worst.error:+.0f} % at {worst.positions:.0f} positions"
    )
    said = "; ".join(f"{r.positions}: {100 * r.error:+.0f} %" for r in data.itertuples())
    return template.finish(
        chart,
        title,
        f"Error of the modelled time by positions. {said}.",
        "Positions in the pass (anchor + K)",
        "Error of the model (%)",
    )


def parts_figure(data: pd.DataFrame) -> go.Figure:
    """Where the measured time of a pass goes, by width."""
    chart = go.Figure()
    for column, name, colour, pattern in _PARTS:
        height = 1e3 * data[f"{column}_seconds"].clip(lower=0)
        chart.add_bar(
            x=template.numbers(data.positions),
            y=template.numbers(height),
            name=name,
            marker={"color": colour, "line": {"color": palette.LINE, "width": 0.5}, "pattern": template.hatch(pattern)},
            hovertemplate="%{x} positions: " + name + " %{y:.3g} ms<extra></extra>",
        )
    chart.update_layout(barmode="stack", bargap=0.2)
    chart.update_xaxes(fixedrange=True, tickformat="d", range=[0, max(33, data.positions.max() + 1)])
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    shares = {c: data[f"{c}_seconds"].clip(lower=0).sum() for c, *_ in _PARTS}
    whole = sum(shares.values()) or 1.0
    column, share = max(shares.items(), key=lambda item: item[1])
    name = next(n for c, n, *_ in _PARTS if c == column)
    said = ", ".join(f"{n} {format.percent(shares[c] / whole)}" for c, n, *_ in _PARTS)
    return template.finish(
        chart,
        f"Most of the time goes to {name}: {format.percent(share / whole)} over all widths",
        f"Stacked bars of where a pass's time goes, by positions. Over all widths: {said}.",
        "Positions in the pass (anchor + K)",
        "Time (ms)",
    )


def speedup_table(
    ks: Sequence[int], acceptance: float, draft_ratio: float, verify_ratios: Mapping[int, float], serial: bool = True
) -> pd.DataFrame:
    """Predicted speed-up by K.

    `acceptance`: the chance that a draft survives, taken as the same everywhere; `draft_ratio`: one draft pass in plain
    steps, spent K times if `serial`; `verify_ratios`: T(K+1)/T(1) by K, measured. Ideal: every pass costs one step.
    """
    rows = []
    for k in ks:
        tokens, draft = expected_tokens(acceptance, k), draft_ratio * (k if serial else min(k, 1))
        rows.append(
            (
                k,
                tokens,
                draft,
                verify_ratios[k],
                predicted_speedup(tokens, draft, verify_ratios[k]),
                predicted_speedup(tokens, draft, 1.0),
            )
        )
    return pd.DataFrame(rows, columns=["k", "tokens_per_round", "draft_steps", "verify_steps", "predicted", "ideal"])


def speedup_figure(data: pd.DataFrame, measured: tuple[int, float] | None = None) -> go.Figure:
    """The predicted and the ideal curve; `measured`: (K, speed-up) of a real run beside them."""
    chart = go.Figure()
    for column, name, colour, dash in (
        ("predicted", "predicted from the measured passes", palette.TARGET, "solid"),
        ("ideal", "ideal: a pass costs one step", palette.PLAIN, "dash"),
    ):
        chart.add_scatter(
            x=template.numbers(data.k),
            y=template.numbers(data[column]),
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"size": 8, "line": {"color": palette.LINE, "width": 1}},
            hovertemplate="K = %{x}: %{y:.3g} times<extra>" + name + "</extra>",
        )
    if measured is not None:
        chart.add_scatter(
            x=[measured[0]],
            y=[measured[1]],
            name="measured in the last run",
            mode="markers",
            marker={
                "size": 14,
                "symbol": "star",
                "color": palette.ACCEPTED,
                "line": {"color": palette.LINE, "width": 1},
            },
            hovertemplate="K = %{x}: %{y:.3g} times, measured<extra></extra>",
        )
    chart.add_hline(y=1, line={"color": palette.LINE, "width": 1, "dash": "dot"})
    chart.update_xaxes(fixedrange=True, tickformat="d")
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    best = data.loc[data.predicted.idxmax()]
    title = (
        f"Best predicted: {format.number(best.predicted)} times at K = {best.k:.0f}"
        if best.predicted > 1
        else "No K pays on this machine with this drafter"
    )
    said = "; ".join(
        f"K = {r.k}: {format.number(r.predicted)} predicted, {format.number(r.ideal)} ideal" for r in data.itertuples()
    )
    return template.finish(
        chart, title, f"Speed-up against plain decoding by K. {said}.", "K (drafts per round)", "Speed-up (times)"
    )
