"""Chart of the tokens emitted in many trials of one position, against the target distribution p.

`emitted_table(...)` is exactly what `emitted_figure(table)` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.views.figures import palette, template


def emitted_table(
    labels: Sequence[str],
    accepted: Sequence[int],
    drawn: Sequence[int],
    asked: Sequence[float],
) -> pd.DataFrame:
    """Per token: how often a draft of it was kept, how often the target drew it, the share of both, and p."""
    n = max(1, sum(accepted) + sum(drawn))
    return pd.DataFrame(
        {
            "token": list(labels),
            "kept_drafts": list(accepted),
            "drawn_by_target": list(drawn),
            "share": [(a + d) / n for a, d in zip(accepted, drawn)],
            "p": list(asked),
        }
    )


def emitted_figure(data: pd.DataFrame, what: str, distance: float) -> go.Figure:
    """Stacked shares with a mark at p. `what`: the rule's name; `distance`: the total variation from p."""
    n = max(1, int(data.kept_drafts.sum() + data.drawn_by_target.sum()))
    chart = go.Figure()
    rows = list(range(len(data)))
    for name, column, colour, pattern in (
        ("kept drafts", data.kept_drafts, palette.ACCEPTED, ""),
        ("drawn by the target", data.drawn_by_target, palette.BONUS, "/"),
    ):
        chart.add_bar(
            y=rows,
            x=template.numbers(column / n),
            name=name,
            orientation="h",
            customdata=template.numbers(column),
            marker={"color": colour, "line": {"color": palette.LINE, "width": 0.5}, "pattern": template.hatch(pattern)},
            hovertemplate="%{customdata} " + name + ", %{x:.3f}<extra></extra>",
        )
    # the mark on a pale edge, so that it shows on every bar
    for width, colour, named in ((7, palette.PAPER_LIGHT, False), (3, palette.TARGET, True)):
        chart.add_scatter(
            y=rows,
            x=template.numbers(data.p),
            name="p, asked for",
            mode="markers",
            showlegend=named,
            hovertemplate="p %{x:.3f}<extra></extra>",
            marker={"symbol": "line-ns", "size": 22, "line": {"width": width, "color": colour}, "color": colour},
        )
    chart.update_layout(barmode="stack", bargap=0.35)
    chart.update_xaxes(range=[0, max(0.05, float(data[["share", "p"]].max().max())) * 1.08], fixedrange=True)
    chart.update_yaxes(tickvals=rows, ticktext=list(data.token), autorange="reversed", fixedrange=True, showgrid=False)
    title = f"{what}: after {n:,} trials {format.number(distance)} of the mass is where p does not want it"
    said = "; ".join(
        f"{r.token}: {format.probability(r.share)}, p {format.probability(r.p)}" for r in data.itertuples()
    )
    return template.finish(chart, title, f"Stacked bars of shares with marks at p. {said}.", "Share of trials", "")
