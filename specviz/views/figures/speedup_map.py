"""Map of speed-up by K and batch, with the break-even line, and the FLOPs of one cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.bench.sweep import Cell, best_k
from specviz.views.figures import palette, template

_LIMIT = 1.6
"""Colours end at 2 to the power of this, three times as fast or as slow."""
_SCALE = [[0, palette.REJECTED], [0.5, "#F4F1EC"], [1, palette.ACCEPTED]]


def table(cells: Sequence[Cell]) -> pd.DataFrame:
    """A line per cell, by batch and K."""
    rows = [
        (
            c.k,
            c.batch,
            c.context,
            c.speedup,
            c.tokens_per_second,
            c.plain_tokens_per_second,
            c.acceptance_rate,
            c.mean_acceptance_length,
            c.flops_per_token,
            c.plain_flops_per_token,
            c.note,
        )
        for c in sorted(cells, key=lambda c: (c.batch, c.k))
    ]
    return pd.DataFrame(
        rows,
        columns=[
            "k",
            "batch",
            "context",
            "speedup",
            "tokens_per_second",
            "plain_tokens_per_second",
            "acceptance_rate",
            "mean_acceptance_length",
            "flops_per_token",
            "plain_flops_per_token",
            "note",
        ],
    )


def figure(
    data: pd.DataFrame,
    ks: Sequence[int],
    batches: Sequence[int],
    where: str,
    source: str,
    chosen: tuple[int, int] | None = None,
    total: int | None = None,
) -> go.Figure:
    """The map of a `table`. Axes hold all of `ks` and `batches`, measured or not, so that they stand still.

    where: the device, in running text. source: measured or modelled. chosen: (K, batch) to outline. total: how many
    cells there will be, while they fill in.
    """
    ks, batches = sorted(set(ks)), sorted(set(batches))
    found = {(r.k, r.batch): r.speedup for r in data.itertuples() if r.speedup is not None and math.isfinite(r.speedup)}
    chart = go.Figure()
    x, y = [str(k) for k in ks], [str(b) for b in batches]
    colours = [[_colour(found.get((k, b)) and (found[k, b] if k else 1.0)) for k in ks] for b in batches]
    chart.add_heatmap(
        x=x,
        y=y,
        z=colours,
        zmin=-_LIMIT,
        zmax=_LIMIT,
        colorscale=_SCALE,
        xgap=2,
        ygap=2,
        hoverinfo="skip",
        showscale=False,
    )
    winners = {b: _best(found, ks, b) for b in batches}
    picks = [(k, b) for b in batches for k in ks]
    # text and clicks sit on points: a heat map itself cannot be clicked
    chart.add_scatter(
        x=[str(k) for k, _ in picks],
        y=[str(b) for _, b in picks],
        mode="markers+text",
        showlegend=False,
        text=[_label(k, found.get((k, b)), winners[b] == k) for k, b in picks],
        textposition="middle center",
        textfont={"color": palette.INK_ON_LIGHT, "size": 12},
        selected={"textfont": {"color": palette.INK_ON_LIGHT}, "marker": {"opacity": 1}},
        unselected={"textfont": {"color": palette.INK_ON_LIGHT}, "marker": {"opacity": 1}},
        customdata=[f"{k}|{b}" for k, b in picks],
        marker={"size": 30, "symbol": "square", "color": "rgba(0,0,0,0.004)"},
        hovertext=[_hover(k, b, found.get((k, b)), source) for k, b in picks],
        hoverinfo="text",
    )
    edges = _edges(found, ks, batches)
    chart.add_scatter(
        x=[p[0] for p in edges],
        y=[p[1] for p in edges],
        mode="lines",
        name="break-even: 1.0 times",
        line={"color": palette.TARGET, "width": 4},
        hoverinfo="skip",
        xaxis="x2",
        yaxis="y2",
    )
    if chosen and chosen[0] in ks and chosen[1] in batches:
        i, j = ks.index(chosen[0]), batches.index(chosen[1])
        chart.add_scatter(
            x=[i - 0.5, i + 0.5, i + 0.5, i - 0.5, i - 0.5],
            y=[j - 0.5, j - 0.5, j + 0.5, j + 0.5, j - 0.5],
            mode="lines",
            name="chosen cell",
            line={"color": palette.LINE, "width": 3, "dash": "dot"},
            hoverinfo="skip",
            xaxis="x2",
            yaxis="y2",
        )
    chart.update_xaxes(type="category", categoryorder="array", categoryarray=x, fixedrange=True, showgrid=False)
    chart.update_yaxes(type="category", categoryorder="array", categoryarray=y, fixedrange=True, showgrid=False)
    # lines run between cells, so they live on axes of numbers over the same place
    hidden = {"visible": False, "fixedrange": True}
    chart.update_layout(
        height=150 + 46 * len(batches),
        xaxis={"range": [-0.5, len(ks) - 0.5]},
        yaxis={"range": [-0.5, len(batches) - 0.5]},
        xaxis2={"overlaying": "x", "range": [-0.5, len(ks) - 0.5], **hidden},
        yaxis2={"overlaying": "y", "range": [-0.5, len(batches) - 0.5], **hidden},
    )
    title, alt = _words(data, found, winners, where, source, total)
    chart = template.finish(chart, title, alt, "K (drafts per round)", "Batch (rows)")
    return chart.update_layout(xaxis2_title=None, yaxis2_title=None)


def _colour(speedup: float | None) -> float | None:
    return None if speedup is None else max(-_LIMIT, min(_LIMIT, math.log2(max(speedup, 1e-6))))


def _best(found: dict, ks: Sequence[int], batch: int) -> int | None:
    """The K to mark in a batch's line: the fastest above 1, or 0 where none is and all are known."""
    mine = {k: found[k, batch] for k in ks if k and (k, batch) in found}
    if not mine:
        return None
    best = max(mine, key=lambda k: (mine[k], -k))
    return best if mine[best] > 1 else 0 if 0 in ks else None


def _label(k: int, speedup: float | None, best: bool) -> str:
    if speedup is None:
        return ""
    text = f"{speedup:.2f}" if k else "plain"
    return f"<b>★<br>{text}</b>" if best else text


def _hover(k: int, batch: int, speedup: float | None, source: str) -> str:
    told = "not measured yet" if speedup is None else f"{format.number(speedup)} times plain decoding ({source})"
    if not k and speedup is not None:
        told = f"plain decoding; the loop against bare plain steps: {format.number(speedup)} ({source})"
    return f"K = {k}, batch {batch}: {told}"


def _edges(found: dict, ks: Sequence[int], batches: Sequence[int]) -> list[tuple[float | None, float | None]]:
    """Sides between neighbours of which one is above 1 and the other not, as one broken line."""

    def pays(i: int, j: int) -> bool | None:
        if not (0 <= i < len(ks) and 0 <= j < len(batches)) or not ks[i]:
            return None
        value = found.get((ks[i], batches[j]))
        return None if value is None else value > 1

    line: list[tuple[float | None, float | None]] = []
    for i in range(len(ks)):
        for j in range(len(batches)):
            here = pays(i, j)
            if here is None:
                continue
            for other, ends in (
                (pays(i + 1, j), ((i + 0.5, j - 0.5), (i + 0.5, j + 0.5))),
                (pays(i, j + 1), ((i - 0.5, j + 0.5), (i + 0.5, j + 0.5))),
            ):
                if other is not None and other != here:
                    line += [*ends, (None, None)]
    return line


def _words(
    data: pd.DataFrame, found: dict, winners: dict, where: str, source: str, total: int | None
) -> tuple[str, str]:
    known = {b: k for b, k in winners.items() if k is not None}
    if not known:
        title = f"{source.capitalize()} on {where}: no cell yet"
    else:
        paying = [b for b, k in known.items() if k]
        losing = [b for b, k in known.items() if not k]
        first = min(losing, default=None)
        if not paying:
            title = f"No K pays at any batch on {where}"
        elif first is None:
            title = f"Speculation pays at every batch on {where}"
        elif first > max(paying):
            title = f"From batch {first} on, no K pays on {where}"
        else:
            title = f"Speculation pays on {where} at batch {', '.join(map(str, paying))}"
        title += f" ({source})"
    if total is not None and len(data) < total:
        title += f", {len(data)} of {total} cells"
    said = "; ".join(
        f"batch {b}: " + (f"best K = {k}, {format.number(found[k, b])} times" if k else "do not speculate")
        for b, k in known.items()
    )
    return title, f"Heat map of speed-up over plain decoding by K and batch, {source} on {where}. {said or 'Empty'}."


# -------------------------------------------------------------------------------------------- verdicts


def verdicts(cells: Sequence[Cell]) -> pd.DataFrame:
    """Per batch: the best K, and what it gives; 'do not speculate here' where none is above 1."""
    rows = []
    for batch in sorted({c.batch for c in cells}):
        best = best_k(cells, batch)
        drafted = [c for c in cells if c.batch == batch and c.k and c.speedup is not None]
        if not drafted:
            continue
        top = max(drafted, key=lambda c: c.speedup or 0.0)
        rows.append(
            (
                batch,
                f"K = {best.k}" if best else "do not speculate here",
                top.k,
                top.speedup,
                top.tokens_per_second,
                top.acceptance_rate,
            )
        )
    return pd.DataFrame(
        rows, columns=["batch", "verdict", "fastest_k", "speedup", "tokens_per_second", "acceptance_rate"]
    )


# -------------------------------------------------------------------------------------- one cell's ledger


def ledger_table(cell: Cell) -> pd.DataFrame:
    """FLOPs per emitted token of a cell, by what they were spent on, beside plain decoding."""
    rows = []
    if cell.flops_per_token is not None:
        wasted, draft = cell.wasted_flops_per_token or 0.0, cell.draft_flops_per_token or 0.0
        rows += [
            ("speculative", "useful target work", cell.flops_per_token - wasted - draft),
            ("speculative", "wasted verification", wasted),
            ("speculative", "draft", draft),
        ]
    if cell.plain_flops_per_token is not None:
        rows.append(("plain", "useful target work", cell.plain_flops_per_token))
    return pd.DataFrame(rows, columns=["decoding", "part", "flops_per_token"])


def ledger_figure(data: pd.DataFrame, cell: Cell) -> go.Figure:
    """Both bars, and in the title what the work bought."""
    chart = go.Figure()
    for part, colour, pattern in (
        ("useful target work", palette.TARGET, ""),
        ("wasted verification", palette.REJECTED, "x"),
        ("draft", palette.DRAFT, "/"),
    ):
        rows = data[data.part == part]
        chart.add_bar(
            y=rows.decoding.tolist(),
            x=template.numbers(rows.flops_per_token),
            name=part,
            orientation="h",
            marker={"color": colour, "line": {"color": palette.LINE, "width": 1}, "pattern": template.hatch(pattern)},
            hovertemplate="%{y}: " + part + " %{x:.3s}FLOP per token<extra></extra>",
        )
    chart.update_layout(barmode="stack", bargap=0.5, height=240)
    chart.update_xaxes(rangemode="tozero", tickformat="~s", fixedrange=True)
    chart.update_yaxes(categoryorder="array", categoryarray=["plain", "speculative"], fixedrange=True, showgrid=False)
    title = "FLOPs per emitted token"
    if cell.flops_per_token and cell.plain_flops_per_token and cell.speedup:
        title = (
            f"{format.number(cell.flops_per_token / cell.plain_flops_per_token)} times the FLOPs per token, "
            f"{format.number(cell.speedup)} times the speed"
        )
    said = "; ".join(f"{r.decoding}, {r.part}: {format.si(r.flops_per_token, 'FLOP')}" for r in data.itertuples())
    return template.finish(
        chart, title, f"Stacked bars of FLOPs per emitted token. {said}.", "FLOPs per emitted token (counted)", ""
    )
