"""Chart of busy and idle time in a step: memory streaming and arithmetic, drawn to scale."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.hardware.roofline import Point
from specviz.views.figures import palette, template

_COLOURS = {"memory streaming": palette.PLAIN, "compute busy": palette.TARGET, "idle": palette.IDLE}


def table(points: Iterable[Point], labels: Iterable[str] | None = None) -> pd.DataFrame:
    """Two lanes per step, each split into work and idle: step, lane, part, start and seconds, share of the step."""
    points = list(points)
    names = list(labels) if labels is not None else [p.kind for p in points]
    rows = []
    for point, name in zip(points, names):
        for lane, share in (("memory streaming", point.stream_fraction), ("compute busy", point.busy_fraction)):
            work = share * point.seconds
            rows.append((name, lane, lane, 0.0, work, share))
            rows.append((name, lane, "idle", work, point.seconds - work, 1 - share))
    return pd.DataFrame(rows, columns=["step", "lane", "part", "start_seconds", "seconds", "share"])


def figure(data: pd.DataFrame) -> go.Figure:
    """The chart of a `table`: one scale of time for all steps. Totals of a step, drawn from its start."""
    chart = go.Figure()
    lanes = [f"{s}: {'memory' if lane.startswith('memory') else 'compute'}" for s, lane in zip(data.step, data.lane)]
    for part, colour in _COLOURS.items():
        chosen = (data.part == part).tolist()
        rows = data[chosen]
        idle = part == "idle"
        # a text only where it fits: a tenth of the longest step
        fits = rows.seconds > 0.1 * data.groupby("step").seconds.sum().max() / 2
        texts = [f"{format.percent(s)} {'idle' if idle else ''}".strip() if f else "" for s, f in zip(rows.share, fits)]
        chart.add_bar(
            y=[lane for lane, c in zip(lanes, chosen) if c],
            x=template.numbers(rows.seconds * 1e3),
            base=template.numbers(rows.start_seconds * 1e3),
            orientation="h",
            name=part,
            text=texts,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": palette.PAPER_LIGHT if part == "compute busy" else palette.INK_ON_LIGHT},
            marker={
                "color": colour,
                "line": {"color": palette.LINE, "width": 1},
                "pattern": template.hatch("/" if idle else ""),
            },
            hovertemplate="%{y}: " + part + " %{x:.3g} ms<extra></extra>",
        )
    order = list(dict.fromkeys(lanes))
    chart.update_layout(barmode="overlay", bargap=0.25)
    chart.update_yaxes(categoryorder="array", categoryarray=order[::-1], fixedrange=True, showgrid=False)
    chart.update_xaxes(rangemode="tozero", fixedrange=True)
    busy = data[data.part == "compute busy"]
    said = [f"{format.percent(x)} of the {s}" for s, x in zip(busy.step, busy.share)]
    steps = data.groupby("step", sort=False).seconds.sum() / 2
    alt = "; ".join(f"{s}: {format.seconds(t)}" for s, t in steps.items())
    return template.finish(
        chart,
        "Compute is busy for " + " and ".join(said),
        f"Bars drawn to time, one lane for memory and one for compute. Length of a step: {alt}. "
        f"Compute busy: {', '.join(said)}.",
        "Time (ms)",
        "",
    )
