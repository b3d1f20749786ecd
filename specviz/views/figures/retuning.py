"""Chart of retuning: overlap of p and q by slot before and after, on new and on older texts.

`retuned_table(...)` is exactly what `retuned_figure(table)` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.views.figures import palette, template

_SERIES = (
    ("your prompts", "before", palette.DRAFT, "", "solid"),
    ("your prompts", "after", palette.ACCEPTED, "", "solid"),
    ("older texts", "before", palette.DRAFT, "-open", "dot"),
    ("older texts", "after", palette.ACCEPTED, "-open", "dot"),
)


def retuned_table(
    before: Sequence[float], after: Sequence[float], old_before: Sequence[float], old_after: Sequence[float]
) -> pd.DataFrame:
    """One row per texts, drafter and slot (from 1)."""
    columns = (before, after, old_before, old_after)
    return pd.DataFrame(
        [
            {"texts": texts, "drafter": drafter, "slot": slot, "overlap": value}
            for (texts, drafter, *_), values in zip(_SERIES, columns, strict=True)
            for slot, value in enumerate(values, 1)
        ]
    )


def retuned_figure(data: pd.DataFrame) -> go.Figure:
    """Lines over the slots, in one range from 0 to 1."""
    chart, said = go.Figure(), []
    for texts, drafter, colour, shape, dash in _SERIES:
        part = data[(data.texts == texts) & (data.drafter == drafter)]
        chart.add_scatter(
            x=template.numbers(part.slot),
            y=template.numbers(part.overlap),
            name=f"{texts}, {drafter}",
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2},
            marker={"symbol": ("circle" if drafter == "before" else "diamond") + shape, "size": 9, "color": colour},
            hovertemplate=f"{texts}, {drafter}, slot %{{x}}: %{{y:.3f}}<extra></extra>",
        )
        said.append(f"{texts}, {drafter}: " + ", ".join(map(format.probability, part.overlap)))
    chart.update_xaxes(dtick=1, fixedrange=True)
    chart.update_yaxes(range=[0, 1], fixedrange=True)
    return template.finish(
        chart, _title(data), f"Lines by slot. {'; '.join(said)}.", "Slot", "Overlap of p and q (measured)"
    )


def _title(data: pd.DataFrame) -> str:
    first = data[(data.slot == 1) & (data.texts == "your prompts")].set_index("drafter").overlap
    before, after = format.percent(first["before"]), format.percent(first["after"])
    return f"On your prompts the drafter covered {before} of p in slot 1 before, {after} after"
