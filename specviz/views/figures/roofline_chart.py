"""Roofline chart: throughput by arithmetic intensity, both roofs, and each step as a point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.hardware.roofline import Point
from specviz.trace.records import Ceilings
from specviz.views.figures import palette, template

_SYMBOLS = {"plain": "square", "verify": "circle", "draft": "diamond", "prefill": "triangle-up"}
LOWEST_INTENSITY = 0.1
HIGHEST = 4
"""Right end of the intensity axis, as a power of ten, whatever the device: past any ridge and any prefill."""


_SHAPES = {"measured": "", "modelled": "-open", "run": "-dot"}
"""Where a point comes from shows in its symbol: filled, open, or filled with a dot."""
_SOURCES = {"measured": "", "modelled": ", modelled", "run": ", last run"}


def table(
    points: Iterable[Point],
    ceilings: Ceilings,
    labels: Iterable[str] | None = None,
    names: Iterable[str] | None = None,
    sources: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Everything that the chart draws: first the two roofs by their end points, then a line per point.

    `labels`: a short text drawn beside each point, e.g. 'K = 4'; none by default. `names`: what each is called in full,
    `sources`: 'measured' (the default), 'modelled', or 'run' (measured in the run of the session).
    """
    points = list(points)
    texts = list(labels) if labels is not None else [""] * len(points)
    names = list(names) if names is not None else [f"{p.kind} {t}".strip() for p, t in zip(points, texts)]
    sources = list(sources) if sources is not None else ["measured"] * len(points)
    right = 10.0**HIGHEST
    roofs = [
        ("memory roof", LOWEST_INTENSITY, LOWEST_INTENSITY * ceilings.bandwidth),
        ("memory roof", ceilings.ridge, ceilings.flops),
        ("compute roof", ceilings.ridge, ceilings.flops),
        ("compute roof", right, ceilings.flops),
    ]
    rows = [{"kind": k, "intensity": x, "throughput": y} for k, x, y in roofs]
    rows += [
        {
            "kind": p.kind,
            "name": n,
            "source": s,
            "intensity": p.intensity,
            "throughput": p.throughput,
            "label": t,
            "flops": p.flops,
            "bytes": p.bytes,
            "seconds": p.seconds,
            "bound": p.bound,
            "roof": p.roof,
            "busy_fraction": p.busy_fraction,
            "stream_fraction": p.stream_fraction,
            "overhead_fraction": p.overhead_fraction,
            "flagged": p.flagged,
        }
        for p, t, n, s in zip(points, texts, names, sources)
    ]
    columns = [
        "kind",
        "name",
        "source",
        "label",
        "intensity",
        "throughput",
        "flops",
        "bytes",
        "seconds",
        "bound",
        "roof",
        "busy_fraction",
        "stream_fraction",
        "overhead_fraction",
        "flagged",
    ]
    return pd.DataFrame(rows, columns=columns)


def figure(
    data: pd.DataFrame, ceilings: Ceilings, device: str = "", ghosts: pd.DataFrame | None = None, headline: str = ""
) -> go.Figure:
    """The chart of a `table`. Axes depend on the ceilings alone, so they stand still while points move.

    `ghosts`: the table of an earlier setting, drawn faintly behind. `headline`: the name of the verify point that the
    title speaks of; the last one by default.
    """
    chart = go.Figure()
    for kind, name in (
        ("memory roof", format.si(ceilings.bandwidth, "B/s")),
        ("compute roof", format.si(ceilings.flops, "FLOP/s")),
    ):
        part = data[data.kind == kind]
        chart.add_scatter(
            x=template.numbers(part.intensity),
            y=template.numbers(part.throughput),
            mode="lines",
            name=kind,
            line={"color": palette.LINE, "width": 2.5, "dash": "solid" if kind == "memory roof" else "dash"},
            hovertemplate=f"{kind}: {name}<extra></extra>",
        )
    if ghosts is not None:
        _add_points(chart, ghosts, ghost=True)
    _add_points(chart, data, ghost=False)
    bottom = math.floor(math.log10(LOWEST_INTENSITY * ceilings.bandwidth)) - 1
    top = math.ceil(math.log10(ceilings.flops) + 0.2)
    chart.update_layout(dragmode=False)
    chart.update_xaxes(
        type="log", range=[round(math.log10(LOWEST_INTENSITY)), HIGHEST], dtick=1, tickformat="~g", fixedrange=True
    )
    chart.update_yaxes(type="log", range=[bottom, top], dtick=1, tickformat="~s", fixedrange=True)
    title, alt = _words(data, ceilings, device, headline)
    return template.finish(chart, title, alt, "Intensity: FLOPs per byte moved", "Throughput (FLOP/s)")


def _add_points(chart: go.Figure, data: pd.DataFrame, ghost: bool) -> None:
    for (kind, symbol), source in itertools.product(_SYMBOLS.items(), _SHAPES):
        part = data[(data.kind == kind) & (data.source == source)]
        if part.empty:
            continue
        hover = [
            f"<b>{r.name}</b>, {r.source}<br>{format.si(r.flops, 'FLOP')} and {format.si(r.bytes, 'B')} in "
            f"{format.seconds(r.seconds)}<br>{format.number(r.intensity)} FLOP/byte, "
            f"{format.si(r.throughput, 'FLOP/s')}<br>compute busy {format.percent(r.busy_fraction)}, memory "
            f"streaming {format.percent(r.stream_fraction)}"
            for r in part.itertuples()
        ]
        rim = (palette.ROLES[kind], 2.5) if source == "modelled" else (palette.LINE, 1.5)
        chart.add_scatter(
            x=template.numbers(part.intensity),
            y=template.numbers(part.throughput),
            mode="markers+text",
            name=f"{kind}, before" if ghost else kind + _SOURCES[source],
            showlegend=not ghost,
            text=None if ghost else part.label.tolist(),
            textposition="bottom center",
            opacity=0.3 if ghost else 1.0,
            hovertext=hover,
            hoverinfo="text",
            customdata=part.name.tolist(),
            marker={
                "color": palette.ROLES[kind],
                "size": 13,
                "symbol": symbol + _SHAPES[source],
                "line": {"color": rim[0], "width": rim[1]},
            },
        )


def _words(data: pd.DataFrame, ceilings: Ceilings, device: str, headline: str) -> tuple[str, str]:
    where = f" on {device}" if device else ""
    steps = {k: data[data.kind == k].iloc[0 if k == "plain" else -1] for k in _SYMBOLS if (data.kind == k).any()}
    if (chosen := data[data.name == headline]).size:
        steps["verify"] = chosen.iloc[0]
    title = f"Under the ridge of {format.number(ceilings.ridge)} FLOP/byte, memory sets the time{where}"
    if "plain" in steps and "verify" in steps:
        plain, verify = steps["plain"], steps["verify"]
        work, time = verify.flops / plain.flops, verify.seconds / plain.seconds
        title = (
            f"A verify pass does {format.number(work)} times the arithmetic of a plain step in "
            f"{format.number(time)} times its time{where}" + (f" ({verify.label})" if verify.label else "")
        )
    parts = [
        f"{k}: {format.number(s.intensity)} FLOP/byte at {format.si(s.throughput, 'FLOP/s')}, compute busy "
        f"{format.percent(s.busy_fraction)} of the time"
        for k, s in steps.items()
    ]
    return title, (
        f"Roofline, both axes logarithmic. Memory roof {format.si(ceilings.bandwidth, 'B/s')}, compute roof "
        f"{format.si(ceilings.flops, 'FLOP/s')}. " + "; ".join(parts) + "."
    )
