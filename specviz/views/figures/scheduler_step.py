"""Chart of one step of the prefix scheduler: survival of the candidates, the threshold of each, and theta."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.serving.scheduling import Schedule
from specviz.views.figures import palette, template


def table(schedule: Schedule) -> pd.DataFrame:
    """A line per candidate, in the order of choosing."""
    kept = sum(schedule.lengths)
    rows = [
        (i + 1, s.request, s.slot + 1, s.survival, s.needed, s.tokens, s.theta, i < kept)
        for i, s in enumerate(schedule.steps)
    ]
    return pd.DataFrame(
        rows, columns=["order", "request", "draft", "survival", "needed", "tokens", "theta", "verified"]
    )


def figure(data: pd.DataFrame, schedule: Schedule) -> go.Figure:
    """Bars of survival, what each candidate had to exceed as steps, and theta as a line on its own axis."""
    chart = go.Figure()
    for verified, name, colour, pattern in (
        (True, "survival, verified", palette.ACCEPTED, ""),
        (False, "survival, left out", palette.DROPPED, "/"),
    ):
        part = data[data.verified == verified]
        chart.add_bar(
            x=template.numbers(part.order),
            y=template.numbers(part.survival),
            name=name,
            marker={"color": colour, "line": {"color": palette.LINE, "width": 1}, "pattern": template.hatch(pattern)},
            hovertext=[
                f"request {r.request}, draft {r.draft}: a {format.equals(r.survival)}, needed {format.number(r.needed)}"
                for r in part.itertuples()
            ],
            hoverinfo="text",
        )
    chart.add_scatter(
        x=template.numbers(data.order),
        y=template.numbers(data.needed),
        mode="lines+markers",
        name="needed: Θ·(T(B+1) − T(B))",
        line={"color": palette.REJECTED, "shape": "hvh", "width": 2.5},
        marker={"size": 6, "symbol": "line-ew-open"},
        hovertemplate="needed %{y:.3f}<extra></extra>",
    )
    chart.add_scatter(
        x=[0, *template.numbers(data.order)],
        y=[schedule.plain, *template.numbers(data.theta)],
        mode="lines+markers",
        name="Θ, tokens/s (right axis)",
        yaxis="y2",
        line={"color": palette.TARGET, "dash": "dash", "width": 2},
        hovertemplate="Θ = %{y:.4g} tokens/s<extra></extra>",
    )
    kept = sum(schedule.lengths)
    chart.add_vline(x=kept + 0.5, line={"color": palette.LINE, "width": 2, "dash": "dot"})
    chart.update_xaxes(fixedrange=True, tickformat="d")
    title = (
        f"{kept} of {len(data)} candidates are verified: Θ rises from {format.number(schedule.plain)} to "
        f"{format.number(schedule.theta)} tokens/s"
        if kept
        else "No candidate pays: nothing is verified"
    )
    chart = template.finish(
        chart,
        title,
        f"Candidates by survival; verified are the first {kept}. A candidate pays "
        "exactly if its survival is above the needed line.",
        "Candidates, likeliest first",
        "Survival probability a",
    )
    highest = max([*data.survival, *(n for n in data.needed if n < 1.5)], default=1.0)
    return chart.update_layout(
        bargap=0.25,
        height=420,
        yaxis={"range": [0, 1.05 * max(1.0, highest)], "fixedrange": True},
        yaxis2={
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "fixedrange": True,
            "rangemode": "tozero",
            "tickformat": "~s",
            "tickmode": "auto",
            "title": "Θ (tokens/s)",
        },
    )
