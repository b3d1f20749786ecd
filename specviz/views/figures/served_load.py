"""Charts of load tests: throughput against speed per user, verify length over time, TPOT, wasted verification."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from specviz import format
from specviz.serving.load_test import LoadResult
from specviz.views.figures import palette, template

STYLES = {
    "none": (palette.PLAIN, "square", "dash"),
    "fixed": (palette.DRAFT, "diamond", "dot"),
    "uniform": (palette.BONUS, "triangle-up", "dashdot"),
    "prefix": (palette.TARGET, "circle", "solid"),
    "early": (palette.REJECTED, "cross", "longdash"),
}
"""Colour, symbol and dash of each kind of policy, everywhere."""


def named(outcome: LoadResult) -> str:
    """What a policy is called on screen."""
    return "no speculation" if outcome.policy == "none" else outcome.summary.policy


def style(policy: str) -> tuple[str, str, str]:
    """The style of a policy by its name, such as fixed:3."""
    return STYLES[policy.partition(":")[0]]


# ------------------------------------------------------------------------------------------- the frontier


def frontier_table(outcomes: Sequence[LoadResult]) -> pd.DataFrame:
    """A line per policy and rate: medians over seeds."""
    groups: dict[tuple[str, float], list[LoadResult]] = {}
    for o in outcomes:
        groups.setdefault((o.policy, o.summary.rate), []).append(o)
    rows = []
    for (policy, rate), group in sorted(groups.items(), key=lambda g: (g[0][0], g[0][1])):

        def middle(name: str, group=group) -> float | None:
            values = [v for o in group if (v := getattr(o.summary, name)) is not None]
            return statistics.median(values) if values else None

        rows.append(
            (
                policy,
                named(group[0]),
                rate,
                len(group),
                middle("tokens_per_second"),
                middle("tokens_per_second_per_user"),
                middle("mean_running"),
                middle("mean_verify_length"),
                middle("wasted_verify_fraction"),
                middle("seconds_per_token"),
                middle("waited"),
            )
        )
    return pd.DataFrame(
        rows,
        columns=[
            "policy",
            "name",
            "rate",
            "loads",
            "tokens_per_second",
            "tokens_per_second_per_user",
            "mean_running",
            "mean_verify_length",
            "wasted_verify_fraction",
            "seconds_per_token",
            "waited",
        ],
    )


def frontier_figure(data: pd.DataFrame, where: str, source: str) -> go.Figure:
    """Tokens/s of the whole server against tokens/s of one user, a line per policy through its rates."""
    chart = go.Figure()
    for policy in dict.fromkeys(data.policy):
        part = data[data.policy == policy]
        colour, symbol, dash = style(policy)
        chart.add_scatter(
            x=template.numbers(part.tokens_per_second_per_user),
            y=template.numbers(part.tokens_per_second),
            name=part.name.iloc[0],
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            marker={"size": 11, "symbol": symbol, "line": {"color": palette.LINE, "width": 1}},
            hovertext=[
                f"{r.name}, {format.number(r.rate)} requests/s: server {format.number(r.tokens_per_second)}, "
                f"user {format.number(r.tokens_per_second_per_user)} tokens/s, "
                f"{format.number(r.mean_running)} running"
                for r in part.itertuples(index=False)
            ],
            hoverinfo="text",
        )
    chart.update_xaxes(rangemode="tozero", fixedrange=True)
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    title = f"Server against user on {where} ({source}): up and to the right is better"
    full = data[data.rate == data.rate.max()].dropna(subset=["tokens_per_second_per_user"])
    if len(full) > 1:
        best = full.loc[full.tokens_per_second_per_user.idxmax()]
        title = (
            f"At {format.number(best.rate)} requests/s on {where}, {best['name']} gives each user the most: "
            f"{format.number(best.tokens_per_second_per_user)} tokens/s ({source})"
        )
    said = "; ".join(
        f"{r.name} at {format.number(r.rate)}/s: {format.number(r.tokens_per_second)} and "
        f"{format.number(r.tokens_per_second_per_user)}"
        for r in data.itertuples(index=False)
    )
    return template.finish(
        chart,
        title,
        f"Tokens per second of the server and of a user, by policy and rate. {said}.",
        "Tokens/s per user",
        "Tokens/s of the server",
    )


# ------------------------------------------------------------------------------------- lengths over time


def lengths_table(outcomes: Sequence[LoadResult], buckets: int = 60) -> pd.DataFrame:
    """Mean drafts verified per running request, and requests running, over time; of each policy's first load."""
    rows, seen = [], set()
    for o in outcomes:
        if o.policy in seen or not o.round_stats:
            continue
        seen.add(o.policy)
        width = max(1e-9, o.round_stats[-1].at / buckets)
        groups: dict[int, list] = {}
        for tick in o.round_stats:
            groups.setdefault(int(tick.at / width), []).append(tick)
        for group in groups.values():
            running, rounds = sum(t.running for t in group), sum(t.rounds for t in group)
            rows.append(
                (
                    o.policy,
                    named(o),
                    group[-1].at,
                    sum(t.verified for t in group) / running if running else None,
                    running / rounds,
                    sum(t.waiting for t in group) / rounds,
                )
            )
    return pd.DataFrame(rows, columns=["policy", "name", "seconds", "verify_length", "running", "waiting"])


def lengths_figure(data: pd.DataFrame, where: str, source: str) -> go.Figure:
    """Verify length over time, a line per policy, and below it how many requests run."""
    chart = go.Figure()
    for policy in dict.fromkeys(data.policy):
        part = data[data.policy == policy]
        colour, _, dash = style(policy)
        chart.add_scatter(
            x=template.numbers(part.seconds),
            y=template.numbers(part.verify_length),
            mode="lines",
            name=part.name.iloc[0],
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertemplate="%{x:.1f} s: %{y:.2f} drafts<extra>" + part.name.iloc[0] + "</extra>",
        )
        chart.add_scatter(
            x=template.numbers(part.seconds),
            y=template.numbers(part.running),
            mode="lines",
            name=f"running, {part.name.iloc[0]}",
            showlegend=False,
            yaxis="y2",
            line={"color": colour, "dash": dash, "width": 1.5},
            hovertemplate="%{x:.1f} s: %{y:.1f} running<extra>" + part.name.iloc[0] + "</extra>",
        )
    chart.update_xaxes(rangemode="tozero", fixedrange=True)
    words = f"Verify length per request over time, and requests running below, on {where} ({source})"
    chart = template.finish(chart, words, words + ".", "Time (s)", "Drafts verified per request")
    return chart.update_layout(
        height=460,
        yaxis={"domain": [0.45, 1], "rangemode": "tozero", "fixedrange": True},
        yaxis2={"domain": [0, 0.32], "anchor": "x", "rangemode": "tozero", "fixedrange": True, "title": "Running"},
    )


# --------------------------------------------------------------------------------------- time per token


def times_table(outcomes: Sequence[LoadResult]) -> pd.DataFrame:
    """A line per finished request: decoding time per output token."""
    rows = [
        (o.policy, named(o), o.summary.rate, o.seed, r.request.id, len(r.tokens), r.seconds_per_token)
        for o in outcomes
        for r in o.records
        if r.state == "finished"
    ]
    return pd.DataFrame(rows, columns=["policy", "name", "rate", "seed", "request", "tokens", "seconds_per_token"])


def times_figure(data: pd.DataFrame, where: str, source: str) -> go.Figure:
    """Boxes of the time per output token by policy."""
    chart = go.Figure()
    medians: dict[str, float] = {}
    for policy in dict.fromkeys(data.policy):
        part = data[data.policy == policy]
        name = part.name.iloc[0]
        medians[name] = part.seconds_per_token.median()
        colour, symbol, _ = style(policy)
        chart.add_box(
            y=template.numbers(1e3 * part.seconds_per_token),
            name=name,
            boxpoints="outliers",
            marker={"color": colour, "symbol": symbol},
            line={"color": colour},
            hovertemplate=name + ": %{y:.3g} ms<extra></extra>",
            showlegend=False,
        )
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    chart.update_xaxes(fixedrange=True)
    title = f"Time per output token on {where} ({source})"
    if len(medians) > 1:
        best = min(medians, key=lambda name: medians[name])
        title = (
            f"{best[0].upper()}{best[1:]} waits least: {format.seconds(medians[best])} per output token at the "
            f"median ({source})"
        )
    said = "; ".join(f"{n}: median {format.seconds(v)}" for n, v in medians.items())
    return template.finish(
        chart, title, f"Boxes of time per output token by policy. {said}.", "", "Time per token (ms)"
    )


# ------------------------------------------------------------------------------------ wasted verification


def waste_figure(data: pd.DataFrame, where: str, source: str) -> go.Figure:
    """The share of verified positions that gave no token, by policy and rate; of a `frontier_table`."""
    chart = go.Figure()
    for policy in dict.fromkeys(data.policy):
        part = data[data.policy == policy]
        chart.add_bar(
            x=[f"{format.number(r)}/s" for r in part.rate],
            name=part.name.iloc[0],
            y=template.numbers(100 * part.wasted_verify_fraction.astype(float)),
            marker={"color": style(policy)[0], "line": {"color": palette.LINE, "width": 1}},
            hovertemplate=part.name.iloc[0] + ": %{y:.1f} %<extra></extra>",
        )
    chart.update_layout(barmode="group")
    chart.update_xaxes(type="category", fixedrange=True)
    chart.update_yaxes(rangemode="tozero", fixedrange=True)
    said = "; ".join(
        f"{r.name} at {format.number(r.rate)}/s: {format.percent(r.wasted_verify_fraction)}"
        for r in data.itertuples(index=False)
    )
    return template.finish(
        chart,
        f"Verified positions that gave no token, on {where} ({source})",
        f"Bars by policy. {said}.",
        "Requests per second",
        "Wasted verification (%)",
    )
