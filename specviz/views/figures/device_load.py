"""Charts of device load over time from the monitor's samples, and of utilization by round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.hardware.roofline import utilization
from specviz.trace.records import Ceilings, Round
from specviz.views.figures import palette, template


def table(samples: Sequence) -> pd.DataFrame:
    """A line per sample; shares in 0..1, cores as core_0, core_1, ..."""
    rows = []
    for sample in samples:
        row = dataclasses.asdict(sample)
        row |= {f"core_{i}": load for i, load in enumerate(row.pop("cores"))}
        rows.append(row)
    return pd.DataFrame(rows)


def figure(data: pd.DataFrame, name: str, window_seconds: float = 60.0) -> go.Figure:
    """Compute and, where told, memory traffic of the last minute, in per cent."""
    chart = go.Figure()
    end = float(data.seconds.max()) if len(data) else 0.0
    for column, label, colour, dash in (
        ("compute", "compute", palette.TARGET, "solid"),
        ("memory_traffic", "memory traffic", palette.PLAIN, "dash"),
    ):
        if len(data) and data[column].notna().any():
            chart.add_scatter(
                x=template.numbers(data.seconds),
                y=template.numbers(100 * data[column].astype(float)),
                name=label,
                mode="lines",
                line={"color": colour, "dash": dash, "width": 2},
                hovertemplate="%{x:.1f} s: " + label + " %{y:.0f} %<extra></extra>",
            )
    for column in [c for c in data.columns if c.startswith("core_")][:16]:
        chart.add_scatter(
            x=template.numbers(data.seconds),
            y=template.numbers(100 * data[column]),
            name=column,
            mode="lines",
            line={"color": palette.LINE, "width": 1},
            opacity=0.5,
            showlegend=False,
            hovertemplate="%{x:.1f} s: " + column.replace("_", " ") + " %{y:.0f} %<extra></extra>",
        )
    chart.update_xaxes(range=[max(0.0, end - window_seconds), max(end, window_seconds)], fixedrange=True)
    chart.update_yaxes(range=[0, 105], fixedrange=True)
    now = data.compute.iloc[-1] if len(data) else None
    title = f"{name}: {format.percent(now)} busy now" if now is not None and pd.notna(now) else f"{name}: not told"
    return template.finish(
        chart,
        title,
        f"Load of {name} over the last {window_seconds:.0f} seconds.",
        "Time since the start (s)",
        "Load (%)",
    )


def utilization_table(rounds: Iterable[Round], ceilings: Ceilings, last: int = 120) -> pd.DataFrame:
    """Per round of a run, the latest `last` of them: the three utilizations, shares in 0..1."""
    rows = []
    for round_ in list(rounds)[-last:]:
        if round_.verify_seconds > 0 and round_.target_tokens > 0:
            used = utilization(round_, ceilings)
            rows.append((round_.index + 1, used.model_flops, used.hardware_flops, used.model_bandwidth))
    return pd.DataFrame(rows, columns=["round", "model_flops", "hardware_flops", "model_bandwidth"])


def utilization_figure(data: pd.DataFrame) -> go.Figure:
    """MFU, HFU and MBU by round, in per cent."""
    chart = go.Figure()
    for column, name, colour, dash in (
        ("model_bandwidth", "MBU: bytes of a target pass over its time", palette.PLAIN, "solid"),
        ("hardware_flops", "HFU: all arithmetic executed", palette.REJECTED, "dash"),
        ("model_flops", "MFU: useful tokens only", palette.ACCEPTED, "solid"),
    ):
        chart.add_scatter(
            x=template.numbers(data["round"]),
            y=template.numbers(100 * data[column]),
            name=name,
            mode="lines" if len(data) > 1 else "markers",  # one round makes no line
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"color": colour},
            hovertemplate="round %{x}: " + name + " %{y:.3g} %<extra></extra>",
        )
    template.whole_numbers(chart, data["round"])
    chart.update_yaxes(range=[0, 105], fixedrange=True)
    if data.empty:
        title = alt = "No round has been timed yet"
    else:
        middle = data[["model_flops", "hardware_flops", "model_bandwidth"]].median()
        title = (
            f"Memory is used to {format.percent(middle.model_bandwidth)}, arithmetic to "
            f"{format.percent(middle.hardware_flops)}, of which useful {format.percent(middle.model_flops)}"
        )
        alt = f"Utilization by round, medians over {len(data)} rounds: {title}."
    return template.finish(chart, title, alt, "Round", "Of the measured roof (%)")
