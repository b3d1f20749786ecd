"""Charts of one run from its Trace: tokens per round, acceptance by position, seconds, and FLOPs per token.

Each chart is a pair: `*_table(trace, row)` is exactly what `*_figure(table)` draws.
"""

from __future__ import annotations

import statistics

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specviz import format
from specviz.trace.records import Trace
from specviz.views.figures import palette, template


def tokens_table(trace: Trace, row: int = 0) -> pd.DataFrame:
    """Per round of a row: drafts accepted, bonus tokens, drafts rejected and drafts dropped unjudged."""
    rows = []
    for round_, v in trace.row_rounds(row):
        verdicts = [p.verdict for p in v.positions]
        bonus = int(v.bonus_token is not None)
        rejected = verdicts.count("rejected")
        rows.append((round_.index + 1, v.accepted, bonus, rejected, v.proposed - v.accepted - rejected))
    return pd.DataFrame(rows, columns=["round", "accepted", "bonus", "rejected", "dropped"])


def tokens_figure(data: pd.DataFrame) -> go.Figure:
    """Tokens emitted per target pass (up), and drafts spent in vain (down)."""
    chart = go.Figure()
    for name, colour, sign in (
        ("accepted", palette.ACCEPTED, 1),
        ("bonus", palette.BONUS, 1),
        ("rejected", palette.REJECTED, -1),
        ("dropped", palette.DROPPED, -1),
    ):
        counts = data[name]
        chart.add_bar(
            x=template.numbers(data["round"]),
            y=template.numbers(sign * counts),
            name=name,
            customdata=template.numbers(counts),
            marker={
                "color": colour,
                "line": {"color": palette.LINE, "width": 0.5},
                "pattern": template.hatch({"rejected": "x", "dropped": "/"}.get(name, "")),
            },
            hovertemplate="round %{x}: %{customdata} " + name + "<extra></extra>",
        )
    emitted = data.accepted + data.bonus
    mean = emitted.sum() / len(data) if len(data) else float("nan")
    chart.update_layout(barmode="relative", bargap=0.2)
    template.whole_numbers(chart, data["round"])
    chart.update_yaxes(fixedrange=True, tickformat="d", zeroline=True, zerolinewidth=2, zerolinecolor=palette.LINE)
    title = f"{format.number(mean)} tokens per target pass, where plain decoding emits 1"
    return template.finish(
        chart,
        title,
        f"Stacked bars per round. {len(data)} rounds emitted {emitted.sum()} tokens: "
        f"{data.accepted.sum()} accepted drafts and {data.bonus.sum()} bonus tokens. "
        f"{data.rejected.sum()} drafts were rejected and {data.dropped.sum()} dropped unjudged.",
        "Round",
        "Tokens (drafts in vain below 0)",
    )


def acceptance_table(trace: Trace, row: int | None = None) -> pd.DataFrame:
    """Per draft position: how many drafts were proposed, judged (all before accepted) and accepted; two rates.

    `of_proposed` counts a dropped draft as lost; `of_judged` asks only of drafts that the chain reached. Row None:
    all rows together.
    """
    counts: dict[int, list[int]] = {}
    for round_ in trace.rounds:
        for v in round_.rows:
            if row is not None and v.row != row:
                continue
            for i in range(v.proposed):
                counts.setdefault(i + 1, [0, 0, 0])[0] += 1
            for i, position in enumerate(v.positions, start=1):
                if position.verdict in ("accepted", "rejected"):
                    counts[i][1] += 1
                    counts[i][2] += position.verdict == "accepted"
    rows = [
        (i, n, judged, ok, ok / n, ok / judged if judged else None) for i, (n, judged, ok) in sorted(counts.items())
    ]
    names = ["position", "proposed", "judged", "accepted", "of_proposed", "of_judged"]
    return pd.DataFrame(rows, columns=names)


def acceptance_figure(data: pd.DataFrame) -> go.Figure:
    """Both acceptance rates by position in the draft."""
    chart = go.Figure()
    for column, name, colour, dash in (
        ("of_judged", "of the drafts judged there", palette.ACCEPTED, "solid"),
        ("of_proposed", "of all drafts proposed there", palette.DRAFT, "dash"),
    ):
        part = data[data[column].notna()]
        chart.add_scatter(
            x=template.numbers(part.position),
            y=template.numbers(100 * part[column].astype(float)),
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"size": 9, "line": {"color": palette.LINE, "width": 1}},
            customdata=part[["accepted", "judged", "proposed"]].to_numpy().tolist(),
            hovertemplate="position %{x}: %{y:.3g} %<br>%{customdata[0]} accepted, %{customdata[1]} "
            "judged, %{customdata[2]} proposed<extra></extra>",
        )
    chart.update_yaxes(range=[0, 105], fixedrange=True)
    template.whole_numbers(chart, data.position)
    if data.empty:
        title = alt = "Nothing was drafted, so there is no acceptance rate"
    else:
        first, last = data.iloc[0], data.iloc[-1]
        rate = data.accepted.sum() / data.proposed.sum()
        title = (
            f"{format.percent(rate)} of all drafts were accepted: {format.percent(first.of_proposed)} at position "
            f"1, {format.percent(last.of_proposed)} at position {last.position:.0f}"
        )
        alt = "Acceptance rate by draft position. " + "; ".join(
            f"position {r.position}: {r.accepted} accepted of {r.judged} judged and {r.proposed} proposed"
            for r in data.itertuples()
        )
    return template.finish(chart, title, alt, "Position in the draft", "Accepted (%)")


def seconds_table(trace: Trace) -> pd.DataFrame:
    """Per round: seconds of draft, verify and the rest, tokens emitted, and the median plain step of the same run."""
    plain = trace.baseline.median
    rows = [
        (r.index + 1, r.draft_seconds, r.verify_seconds, r.other_seconds, sum(len(v.emitted) for v in r.rows), plain)
        for r in trace.rounds
    ]
    names = ["round", "draft_seconds", "verify_seconds", "other_seconds", "emitted", "plain_step_seconds"]
    return pd.DataFrame(rows, columns=names)


def seconds_figure(data: pd.DataFrame) -> go.Figure:
    """Where each round's time goes, with the median plain step as a line."""
    chart = go.Figure()
    for name, colour in (("draft", palette.DRAFT), ("verify", palette.TARGET), ("other", palette.DROPPED)):
        chart.add_bar(
            x=template.numbers(data["round"]),
            y=template.numbers(1e3 * data[f"{name}_seconds"]),
            name=name,
            marker={"color": colour, "line": {"color": palette.LINE, "width": 0.5}},
            hovertemplate="round %{x}: " + name + " %{y:.3g} ms<extra></extra>",
        )
    totals = data.draft_seconds + data.verify_seconds + data.other_seconds
    median = totals.median() if len(data) else float("nan")
    plain = data.plain_step_seconds.dropna()
    title = f"A round takes {format.seconds(median)}"
    if len(plain):
        step = float(plain.iloc[0])
        chart.add_scatter(
            x=[0.5, len(data) + 0.5],
            y=[1e3 * step, 1e3 * step],
            mode="lines",
            name="plain step, median",
            line={"color": palette.PLAIN, "width": 3, "dash": "dash"},
            hovertemplate="plain step %{y:.3g} ms<extra></extra>",
        )
        title += f", a plain step {format.seconds(step)}; a round emits {format.number(data.emitted.mean())} tokens"
    chart.update_layout(barmode="stack", bargap=0.2)
    template.whole_numbers(chart, data["round"])
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    shares = {n: data[f"{n}_seconds"].sum() / totals.sum() if len(data) else None for n in ("draft", "verify", "other")}
    said = ", ".join(f"{n} {format.percent(s)}" for n, s in shares.items())
    return template.finish(
        chart, title, f"Stacked bars per round, medians in the title. Of all time: {said}.", "Round", "Time (ms)"
    )


_WORK = (
    ("useful target work", palette.TARGET, ""),
    ("wasted verification", palette.REJECTED, "x"),
    ("draft", palette.DRAFT, "/"),
)
_WAIT = (("target passes", palette.TARGET, ""), ("draft", palette.DRAFT, "/"), ("other", palette.DROPPED, "."))


def ledger_table(trace: Trace) -> pd.DataFrame:
    """FLOPs and seconds per emitted token, speculative against plain, each by its parts.

    The target's FLOPs are split by positions: those whose token was emitted are useful, the others were wasted
    verification. A pass takes its time as a whole, so seconds are not split that way. `plain` is one plain step, per
    row. A row has either FLOPs (counted) or seconds (measured).
    """
    emitted = sum(len(v.emitted) for r in trace.rounds for v in r.rows)
    rows: list[tuple] = []
    if emitted:
        target = sum(r.target_cost.flops for r in trace.rounds)
        useful = sum(r.target_cost.flops * sum(len(v.emitted) for v in r.rows) / r.target_tokens for r in trace.rounds)
        draft = sum(r.draft_cost.flops for r in trace.rounds)
        rows += [
            ("speculative", name, flops / emitted, None)
            for name, flops in (
                ("useful target work", useful),
                ("wasted verification", target - useful),
                ("draft", draft),
            )
        ]
        rows += [
            ("speculative", name, None, sum(getattr(r, f"{part}_seconds") for r in trace.rounds) / emitted)
            for name, part in (("target passes", "verify"), ("draft", "draft"), ("other", "other"))
        ]
    if trace.baseline.rows and trace.baseline.cost.flops:
        rows.append(("plain", "useful target work", trace.baseline.cost.flops / trace.baseline.rows[-1], None))
        if rate := trace.baseline.tokens_per_second:
            forward = statistics.median(f / s for f, s in zip(trace.baseline.forward_seconds, trace.baseline.seconds))
            rows += [("plain", "target passes", None, forward / rate), ("plain", "other", None, (1 - forward) / rate)]
    data = pd.DataFrame(rows, columns=["decoding", "part", "flops_per_token", "seconds_per_token"])
    return data.astype({"flops_per_token": float, "seconds_per_token": float})


def ledger_figure(data: pd.DataFrame) -> go.Figure:
    """FLOPs per emitted token, stacked, and below them seconds per emitted token: two measures, two axes."""
    chart = make_subplots(rows=2, cols=1, vertical_spacing=0.28)
    order = [n for n in ("plain", "speculative") if (data.decoding == n).any()]
    for place, (column, scale, parts, unit) in enumerate(
        (("flops_per_token", 1.0, _WORK, "FLOP"), ("seconds_per_token", 1e3, _WAIT, "ms")), start=1
    ):
        for part, colour, pattern in parts:
            rows = data[(data.part == part) & data[column].notna()]
            known = part in {trace.name for trace in chart.data}
            value = "%{x:.3s}FLOP" if unit == "FLOP" else "%{x:.3g} ms"
            chart.add_bar(
                y=rows.decoding.tolist(),
                x=template.numbers(scale * rows[column]),
                name=part,
                orientation="h",
                legendgroup=part,
                showlegend=not known,
                row=place,
                col=1,
                marker={
                    "color": colour,
                    "line": {"color": palette.LINE, "width": 1},
                    "pattern": template.hatch(pattern),
                },
                hovertemplate="%{y}: " + part + " " + value + " per token<extra></extra>",
            )
    totals = data.groupby("decoding")[["flops_per_token", "seconds_per_token"]].sum()
    title = "FLOPs and seconds per emitted token"
    if len(order) == 2 and (totals > 0).all(axis=None):
        work, wait = (totals.loc["speculative"] / totals.loc["plain"]).tolist()
        title = (
            f"Per token, {format.number(work)} times the FLOPs of plain decoding and {format.number(wait)} times "
            "its wait"
        )
    said = [
        f"{r.decoding}, {r.part}: "
        + (format.seconds(r.seconds_per_token) if pd.isna(r.flops_per_token) else format.si(r.flops_per_token, "FLOP"))
        for r in data.itertuples()
    ]
    template.finish(
        chart, title, "Stacked bars of FLOPs and of seconds per emitted token. " + "; ".join(said) + ".", "", ""
    )
    chart.update_layout(barmode="stack", bargap=0.35)
    chart.update_xaxes(rangemode="tozero", fixedrange=True)
    chart.update_xaxes(title_text="FLOPs per emitted token (counted)", tickformat="~s", row=1, col=1)
    chart.update_xaxes(title_text="Milliseconds per emitted token (measured)", row=2, col=1)
    chart.update_yaxes(categoryorder="array", categoryarray=order[::-1], fixedrange=True, showgrid=False)
    return chart
