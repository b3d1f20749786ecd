"""Charts that compare drafters: speed, acceptance by position, cost by K, calibration, and rejections by group.

Each chart is a pair: `*_table(...)` is exactly what `*_figure(table)` draws. `lanes` is a mapping of (prompt, drafter)
to Trace, as in specviz/bench/lanes.py.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from specviz import format
from specviz.bench.draft_cost import DraftCost
from specviz.bench.lanes import PLAIN, drafters_of, of_drafter, same_text
from specviz.trace import calibration, metrics
from specviz.trace.records import Trace
from specviz.views.figures import palette, template
from specviz.views.figures import run_charts as one_run

Lanes = Mapping[tuple[str, str], Trace]
THIN = 20
"""A share of fewer trials than this is drawn hollow."""
_SYMBOLS = {
    "ngram": "diamond",
    "autoregressive": "square",
    "parallel": "triangle-up",
    "hybrid": "circle",
    "lookup+parallel": "star",
}
_DASHES = {
    "ngram": "dot",
    "autoregressive": "dash",
    "parallel": "longdashdot",
    "hybrid": "solid",
    "lookup+parallel": "longdash",
}


def colour(drafter: str) -> str:
    """A drafter's colour where several stand beside each other."""
    return palette.PLAIN if drafter == PLAIN else palette.DRAFTERS.get(drafter, palette.OTHER_DRAFTER)


def _line(drafter: str) -> dict:
    return {"color": colour(drafter), "width": 2.5, "dash": _DASHES.get(drafter, "dashdot")}


# --------------------------------------------------------------------------------------------------- speed


def speed_table(lanes: Lanes) -> pd.DataFrame:
    """Per drafter, all prompts pooled: prompts, tokens per target pass (counted) with its 95 % interval by bootstrap
    over prompts, tokens per second (measured), plain tokens per second of the same prompts' plain lanes and of the
    plain steps between the drafter's own rounds (both measured), seconds per round by part, and equal texts."""
    plain = {prompt: t for (prompt, d), t in lanes.items() if d == PLAIN}
    rows = []
    for d in drafters_of(lanes):
        mine = [(prompt, t) for (prompt, name), t in lanes.items() if name == d and t.rounds]
        rounds = [r for _, t in mine for r in t.rounds]
        if not rounds:
            continue
        low, high = _bootstrap([t for _, t in mine])
        beside = [r for prompt, _ in mine if prompt in plain for r in plain[prompt].rounds]
        steps = [s for _, t in mine for s in t.baseline.seconds]
        rate, plain_rate = metrics.tokens_per_second(rounds), metrics.tokens_per_second(beside)
        same, compared = same_text(lanes, d)
        each = [sum(getattr(r, f"{p}_seconds") for r in rounds) / len(rounds) for p in ("draft", "verify", "other")]
        rows.append(
            (
                d,
                len(mine),
                metrics.tokens_per_pass(rounds),
                low,
                high,
                rate,
                plain_rate,
                len(steps) / sum(steps) if steps else None,
                rate / plain_rate if rate and plain_rate else None,
                *each,
                same,
                compared,
            )
        )
    return pd.DataFrame(
        rows,
        columns=[
            "drafter",
            "prompts",
            "tokens_per_pass",
            "low",
            "high",
            "tokens_per_second",
            "plain_tokens_per_second",
            "interleaved_plain_tokens_per_second",
            "speedup",
            "draft_seconds",
            "verify_seconds",
            "other_seconds",
            "equal_texts",
            "compared_texts",
        ],
    )


def _bootstrap(traces: list[Trace], draws: int = 1000) -> tuple[float | None, float | None]:
    """95 % interval of pooled tokens per pass over prompts; None with fewer than three."""
    if len(traces) < 3:
        return None, None
    sums = [(c.emitted, c.passes) for c in (metrics.counts(t.rounds) for t in traces)]
    chance = random.Random(0)
    means = sorted(
        sum(a for a, _ in s) / sum(b for _, b in s) for s in (chance.choices(sums, k=len(sums)) for _ in range(draws))
    )
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def speed_figure(data: pd.DataFrame) -> go.Figure:
    """Tokens per target pass, and below it tokens per second, drafter by drafter; plain decoding as a line in both."""
    chart = make_subplots(rows=2, cols=1, vertical_spacing=0.3)
    names = data.drafter.tolist()
    spread = {
        "type": "data",
        "symmetric": False,
        "color": palette.LINE,
        "array": template.numbers((data.high - data.tokens_per_pass).fillna(0)),
        "arrayminus": template.numbers((data.tokens_per_pass - data.low).fillna(0)),
    }
    looks = {"color": [colour(d) for d in names], "line": {"color": palette.LINE, "width": 1}}
    chart.add_bar(
        y=names,
        x=template.numbers(data.tokens_per_pass),
        orientation="h",
        error_x=spread,
        marker=looks,
        row=1,
        col=1,
        showlegend=False,
        hovertemplate="%{y}: %{x:.3g} tokens per pass<extra></extra>",
    )
    chart.add_bar(
        y=names,
        x=template.numbers(data.tokens_per_second),
        orientation="h",
        marker=looks,
        row=2,
        col=1,
        showlegend=False,
        hovertemplate="%{y}: %{x:.3g} tokens per second<extra></extra>",
    )
    rate = data.plain_tokens_per_second.dropna()
    lines = [(1, 1.0, "1 token")] + (
        [(2, float(rate.iloc[0]), f"{format.number(float(rate.iloc[0]))} tokens/s")] if len(rate) else []
    )
    for row, value, words in lines:
        chart.add_scatter(
            x=[value] * len(names),
            y=names,
            mode="lines",
            name="plain decoding",
            legendgroup="plain",
            showlegend=row == 1,
            row=row,
            col=1,
            line={"color": palette.PLAIN, "width": 3, "dash": "dash"},
            hovertemplate=f"plain decoding: {words}<extra></extra>",
        )
    title, alt = "No lane has been run yet", ""
    if len(data):
        best = data.sort_values("tokens_per_pass").iloc[-1]
        fast = data.sort_values("tokens_per_second").iloc[-1]
        title = f"{best.drafter} gives most tokens per target pass, {format.number(best.tokens_per_pass)}; " + (
            "it is also the fastest" if fast.drafter == best.drafter else f"{fast.drafter} is the fastest"
        )
        if pd.notna(fast.speedup):
            title += f", {format.number(fast.speedup)} times plain decoding"
        alt = "; ".join(
            f"{r.drafter}: {format.number(r.tokens_per_pass)} tokens per pass"
            + (f" ({format.number(r.low)} to {format.number(r.high)})" if pd.notna(r.low) else "")
            + f", {format.number(r.tokens_per_second)} tokens per second"
            for r in data.itertuples()
        )
    template.finish(chart, title, f"Bars per drafter. {alt}.", "", "")
    chart.update_layout(bargap=0.35)
    chart.update_xaxes(rangemode="tozero", fixedrange=True)
    chart.update_xaxes(title_text="Tokens per target pass (counted)", row=1, col=1)
    chart.update_xaxes(title_text="Tokens per second of decoding (measured)", row=2, col=1)
    chart.update_yaxes(categoryorder="array", categoryarray=names[::-1], fixedrange=True, showgrid=False)
    return chart


# --------------------------------------------------------------------------------------------------- acceptance


def acceptance_table(lanes: Lanes) -> pd.DataFrame:
    """Per drafter and position: proposed, judged, accepted, both rates, and Wilson's interval of each."""
    parts = []
    for d in drafters_of(lanes):
        summed: dict[int, list[int]] = {}
        for trace in of_drafter(lanes, d):
            for r in one_run.acceptance_table(trace).itertuples():
                seen = summed.setdefault(int(r.position), [0, 0, 0])
                for i, n in enumerate((r.proposed, r.judged, r.accepted)):
                    seen[i] += int(n)
        for position, (proposed, judged, accepted) in sorted(summed.items()):
            parts.append(
                (
                    d,
                    position,
                    proposed,
                    judged,
                    accepted,
                    accepted / judged if judged else None,
                    *(calibration.wilson(accepted, judged) if judged else (None, None)),
                    accepted / proposed,
                    *calibration.wilson(accepted, proposed),
                )
            )
    return pd.DataFrame(
        parts,
        columns=[
            "drafter",
            "position",
            "proposed",
            "judged",
            "accepted",
            "of_judged",
            "of_judged_low",
            "of_judged_high",
            "of_proposed",
            "of_proposed_low",
            "of_proposed_high",
        ],
    )


def acceptance_figure(data: pd.DataFrame, rate: str) -> go.Figure:
    """One rate by position, a line a drafter. rate: `of_judged` (given all before it) or `of_proposed` (of all)."""
    chart, counted = go.Figure(), "judged" if rate == "of_judged" else "proposed"
    for i, (d, part) in enumerate(data[data[rate].notna()].groupby("drafter", sort=False)):
        thin = part[counted] < THIN
        share = 100 * part[rate].astype(float)
        chart.add_scatter(
            x=template.numbers(part.position + 0.06 * (i - 1.5)),
            y=template.numbers(share),
            name=d,
            mode="lines+markers",
            line=_line(d),
            error_y={
                "type": "data",
                "symmetric": False,
                "color": colour(d),
                "thickness": 1,
                "array": template.numbers(100 * part[f"{rate}_high"].astype(float) - share),
                "width": 2,
                "arrayminus": template.numbers(share - 100 * part[f"{rate}_low"].astype(float)),
            },
            marker={
                "size": 10,
                "symbol": [_SYMBOLS.get(d, "star") + ("-open" if t else "") for t in thin],
                "line": {"width": 1.5, "color": colour(d)},
            },
            customdata=part[["position", "accepted", counted]].to_numpy().tolist(),
            hovertemplate=f"{d}, position %{{customdata[0]}}: %{{y:.3g}} %<br>%{{customdata[1]}} accepted of "
            f"%{{customdata[2]}} {counted}<extra></extra>",
        )
    chart.update_yaxes(range=[0, 105], fixedrange=True)
    chart.update_xaxes(fixedrange=True, tickformat="d", dtick=1)
    title = "Nothing was drafted, so there is no acceptance rate"
    known = data[data[rate].notna()]
    if len(known):
        first = known[known.position == 1]
        told = ", ".join(f"{r.drafter} {format.percent(getattr(r, rate))}" for r in first.itertuples())
        title = (
            f"Once all before it survived: position 1 keeps {told}"
            if rate == "of_judged"
            else f"Of all rounds that drafted: position 1 survives in {told}, and later ones can only fall"
        )
    alt = "; ".join(
        f"{r.drafter} position {r.position}: {r.accepted} of {getattr(r, counted)}" for r in known.itertuples()
    )
    y = "Accepted of judged (%)" if rate == "of_judged" else "Accepted of all rounds (%)"
    return template.finish(
        chart,
        title,
        f"Acceptance by position with 95 % intervals; hollow marks have fewer than {THIN} trials. {alt}.",
        "Position in the draft",
        y,
    )


# --------------------------------------------------------------------------------------------------- cost by K


def cost_table(cost: DraftCost) -> pd.DataFrame:
    """Per drafter and K: seconds of one proposal (median, measured), and the same in plain steps."""
    rows = [(d, k, s, s / cost.plain_seconds) for d, by_k in cost.seconds.items() for k, s in sorted(by_k.items())]
    return pd.DataFrame(rows, columns=["drafter", "k", "seconds", "plain_steps"])


def cost_figure(data: pd.DataFrame, plain_seconds: float) -> go.Figure:
    """What a draft of K tokens takes, in milliseconds (left) and in plain steps of the target (right)."""
    chart = make_subplots(specs=[[{"secondary_y": True}]])
    for d, part in data.groupby("drafter", sort=False):
        chart.add_scatter(
            x=template.numbers(part.k),
            y=template.numbers(1e3 * part.seconds),
            name=d,
            mode="lines+markers",
            line=_line(d),
            marker={"size": 7, "symbol": _SYMBOLS.get(d, "star")},
            customdata=part[["plain_steps"]].to_numpy().tolist(),
            hovertemplate=f"{d}, K = %{{x}}: %{{y:.3g}} ms, %{{customdata[0]:.3g}} plain steps<extra></extra>",
        )
    top = 1.08 * 1e3 * max([plain_seconds, *data.seconds])
    ends = [data.k.min(), data.k.max()] if len(data) else [1, 16]
    chart.add_scatter(
        x=[int(e) for e in ends],
        y=[1e3 * plain_seconds] * 2,
        mode="lines",
        name="one plain step",
        line={"color": palette.PLAIN, "width": 3, "dash": "dash"},
        hovertemplate="one plain step of the target: %{y:.3g} ms<extra></extra>",
    )
    # the right axis is the left one in other units; it needs something to hang on
    chart.add_scatter(
        x=[int(ends[0])],
        y=[1],
        mode="markers",
        marker={"opacity": 0},
        showlegend=False,
        hoverinfo="skip",
        secondary_y=True,
    )
    told = [f"{d} {format.number(r)} times" for d, r in _growth(data)]
    title = (
        f"From K = {ends[0]} to {ends[1]} a draft's time grows: {', '.join(told)}"
        if told
        else "What a draft costs has not been measured yet"
    )
    said = "; ".join(f"{r.drafter} K {r.k}: {format.seconds(r.seconds)}" for r in data.itertuples())
    template.finish(
        chart,
        title,
        f"Seconds of a proposal by K. A plain step takes {format.seconds(plain_seconds)}. {said}.",
        "K, tokens drafted",
        "",
    )
    chart.update_xaxes(fixedrange=True, tickformat="d", dtick=1)
    chart.update_yaxes(title_text="Milliseconds (measured)", range=[0, top], fixedrange=True, secondary_y=False)
    chart.update_yaxes(
        title_text="Plain steps",
        range=[0, top / (1e3 * plain_seconds)],
        fixedrange=True,
        showgrid=False,
        tickmode="auto",
        nticks=6,
        secondary_y=True,
    )
    return chart


def _growth(data: pd.DataFrame) -> list[tuple[str, float]]:
    """How many times longer each drafter's largest K takes than its smallest; lookups, which take next to no time, are
    left out."""
    out = []
    for d, part in data.groupby("drafter", sort=False):
        part = part.sort_values("k")
        if len(part) > 1 and part.plain_steps.iloc[0] > 0.01:
            out.append((d, part.seconds.iloc[-1] / part.seconds.iloc[0]))
    return out


# --------------------------------------------------------------------------------------------------- calibration


def reliability_figure(data: pd.DataFrame, error: float | None, auc: float | None, what: str) -> go.Figure:
    """Confidence against what happened, from `calibration.reliability`: points with intervals on the diagonal of a
    perfect one, and below it how many fell in each bin. what: what the confidence says, for the title."""
    chart = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.75, 0.25], vertical_spacing=0.08)
    chart.add_scatter(
        x=[0, 100],
        y=[0, 100],
        mode="lines",
        name="perfect",
        row=1,
        col=1,
        hoverinfo="skip",
        line={"color": palette.LINE, "width": 2, "dash": "dash"},
    )
    thin = data["count"] < THIN
    share = 100 * data.share
    chart.add_scatter(
        x=template.numbers(100 * data.mean_confidence),
        y=template.numbers(share),
        mode="lines+markers",
        name="what happened",
        row=1,
        col=1,
        line={"color": palette.ACCEPTED, "width": 2},
        error_y={
            "type": "data",
            "symmetric": False,
            "color": palette.ACCEPTED,
            "thickness": 1,
            "array": template.numbers(100 * data.share_high - share),
            "arrayminus": template.numbers(share - 100 * data.share_low),
        },
        marker={"size": 10, "symbol": ["circle-open" if t else "circle" for t in thin], "line": {"width": 1.5}},
        customdata=data[["happened", "count"]].to_numpy().tolist(),
        hovertemplate="confidence %{x:.3g} %: happened %{y:.3g} %<br>%{customdata[0]} of %{customdata[1]}"
        "<extra></extra>",
    )
    middle = 50 * (data.low + data.high)
    chart.add_bar(
        x=template.numbers(middle),
        y=template.numbers(data["count"]),
        name="how many",
        row=2,
        col=1,
        width=[100 / calibration.BINS * 0.9] * len(data),
        marker={"color": palette.DROPPED, "line": {"color": palette.LINE, "width": 0.5}},
        hovertemplate="%{y} drafts<extra></extra>",
    )
    total = int(data["count"].sum())
    title = (
        f"{what}: off by {format.percent(error)} on average (ECE), AUC {format.number(auc)}, {total} drafts"
        if error is not None
        else f"{what}: no drafter with a confidence has run"
    )
    said = "; ".join(
        f"{format.percent(c)} said, {format.percent(s)} happened ({n})"
        for c, s, n in zip(data.mean_confidence, data.share, data["count"])
    )
    template.finish(chart, title, f"Reliability diagram; hollow marks have fewer than {THIN} drafts. {said}.", "", "")
    chart.update_xaxes(range=[0, 100], fixedrange=True)
    chart.update_xaxes(title_text="Confidence (%)", row=2, col=1)
    chart.update_yaxes(title_text="Happened (%)", range=[0, 105], fixedrange=True, row=1, col=1)
    chart.update_yaxes(title_text="Drafts", fixedrange=True, rangemode="tozero", row=2, col=1)
    return chart


def confidence_figure(data: pd.DataFrame) -> go.Figure:
    """Mean confidence and share accepted by position, of the judged drafts, from `calibration.by_position`."""
    chart = go.Figure()
    share = 100 * data.share
    chart.add_scatter(
        x=template.numbers(data.position),
        y=template.numbers(100 * data.mean_confidence),
        name="confidence",
        mode="lines+markers",
        line={"color": palette.DRAFT, "width": 2.5, "dash": "dash"},
        marker={"size": 9, "symbol": "square", "line": {"color": palette.LINE, "width": 1}},
        hovertemplate="position %{x}: confidence %{y:.3g} %<extra></extra>",
    )
    chart.add_scatter(
        x=template.numbers(data.position),
        y=template.numbers(share),
        name="accepted",
        mode="lines+markers",
        line={"color": palette.ACCEPTED, "width": 2.5},
        marker={
            "size": 9,
            "symbol": ["circle-open" if n < THIN else "circle" for n in data.judged],
            "line": {"color": palette.ACCEPTED, "width": 1.5},
        },
        error_y={
            "type": "data",
            "symmetric": False,
            "color": palette.ACCEPTED,
            "thickness": 1,
            "array": template.numbers(100 * data.share_high - share),
            "arrayminus": template.numbers(share - 100 * data.share_low),
        },
        customdata=data[["accepted", "judged"]].to_numpy().tolist(),
        hovertemplate="position %{x}: %{y:.3g} %, %{customdata[0]} of %{customdata[1]}<extra></extra>",
    )
    title = "No drafter with a confidence has run"
    if len(data):
        first = data.iloc[0]
        title = (
            f"At position 1 the hybrid is {format.percent(first.mean_confidence)} sure, and "
            f"{format.percent(first.share)} are accepted"
        )
    said = "; ".join(
        f"position {r.position}: {format.percent(r.mean_confidence)} sure, {r.accepted} of {r.judged} accepted"
        for r in data.itertuples()
    )
    chart.update_yaxes(range=[0, 105], fixedrange=True)
    chart.update_xaxes(fixedrange=True, tickformat="d", dtick=1)
    return template.finish(
        chart,
        title,
        f"Mean confidence and acceptance of judged drafts by position. {said}.",
        "Position in the draft",
        "Per cent",
    )


# --------------------------------------------------------------------------------------------------- failures

BY = {"position": "position", "token_class": "the token kind", "entropy": "an entropy of", "prompt": "the prompt"}


def failures_figure(data: pd.DataFrame, by: str, drafter: str) -> go.Figure:
    """Share of judged drafts that were rejected, group by group, from `failures.rates`."""
    names = [str(n) for n in data[by]]
    share = 100 * data.share
    labels = [
        f"{n if len(n) <= 24 else n[:23] + '…'}<br>{r} of {j}" for n, r, j in zip(names, data.rejected, data.judged)
    ]
    chart = go.Figure()
    chart.add_bar(
        y=labels,
        x=template.numbers(share),
        orientation="h",
        marker={
            "color": palette.REJECTED,
            "line": {"color": palette.LINE, "width": 1},
            "opacity": [0.45 if n < THIN else 1.0 for n in data.judged],
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "color": palette.LINE,
            "thickness": 2,
            "array": template.numbers(100 * data.share_high - share),
            "arrayminus": template.numbers(share - 100 * data.share_low),
        },
        customdata=[[n, r, j] for n, r, j in zip(names, data.rejected.tolist(), data.judged.tolist())],
        hovertemplate="%{customdata[0]}: %{customdata[1]} of %{customdata[2]} rejected<extra></extra>",
    )
    title = "Nothing was judged, so nothing was rejected"
    if len(data):
        solid = data[data.judged >= THIN]
        worst = (solid if len(solid) else data).sort_values("share").index[-1]
        title = (
            f"{drafter} fails most at {BY[by]} {data.at[worst, by]}: {format.percent(data.at[worst, 'share'])} of "
            "drafts rejected"
        )
    said = "; ".join(f"{n}: {r} of {j}" for n, r, j in zip(names, data.rejected, data.judged))
    chart.update_xaxes(range=[0, 105], fixedrange=True)
    chart.update_yaxes(fixedrange=True, showgrid=False, type="category", autorange="reversed")
    chart.update_layout(height=max(200, 110 + 44 * len(data)), bargap=0.3)
    return template.finish(
        chart,
        title,
        f"Rejected of judged drafts with 95 % intervals; pale bars have fewer than {THIN}. {said}.",
        "Rejected of judged (%)",
        "",
    )
