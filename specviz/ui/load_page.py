"""The Load page: a server under arriving requests, policies for the verify length side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from specviz import format
from specviz.drafters.names import drafter_names
from specviz.engine.prompts import preset, presets_for
from specviz.loader.pairs import find_pair, names
from specviz.serving.load_test import LoadResult, LoadTest, LoadTestRequest
from specviz.serving.policies import NAMES
from specviz.trace.records import MAX_K, Settings
from specviz.ui import task
from specviz.ui.address import BOUND
from specviz.ui.chart import chart
from specviz.views.figures import served_load as charts

TITLES = {
    "none": "no speculation",
    "fixed": "fixed K",
    "uniform": "uniform goodput K (vLLM)",
    "prefix": "prefix scheduler (DSpark)",
}


def controls() -> LoadTestRequest:
    """The load and the policies; every control but the pills is in the address. Raises SpecVizError."""
    first, second, third = st.columns(3)
    pair = find_pair(first.selectbox("Pair", names(), key="load-pair", **BOUND))
    drafter = second.selectbox("Drafter", drafter_names(pair), key="load-drafter", **BOUND)
    rate = third.slider(
        "Requests per second",
        0.1,
        20.0,
        0.5,
        0.1,
        key="load-rate",
        **BOUND,
        help="On average; they arrive at random moments",
    )
    first, second, third = st.columns(3)
    seconds = first.slider(
        "Seconds of arrivals",
        2,
        120,
        15,
        key="load-seconds",
        **BOUND,
        help="Each policy then serves what is left to its end",
    )
    burst = second.slider("Burst", 1, 16, 1, key="load-burst", **BOUND, help="Requests that arrive at once")
    k = third.slider("K of fixed K", 1, MAX_K, 4, key="load-k", **BOUND)
    chosen = st.pills(
        "Policies",
        NAMES,
        selection_mode="multi",
        default=NAMES,
        key="load-policies",
        format_func=lambda name: TITLES[name],
    )
    order = LoadTestRequest(
        pair=pair.name,
        drafter=drafter,
        policies=tuple(n for n in NAMES if n in (chosen or NAMES)),
        rate=rate,
        seconds=float(seconds),
        burst=burst,
        k=k,
    )
    with st.expander("More: prompts, lengths, rows, temperature, seed"):
        return _more(order)


def _more(order: LoadTestRequest) -> LoadTestRequest:
    """The order with the settings of the expander."""
    known = presets_for(order.pair)
    first, second = st.columns(2)
    mix = first.pills(
        "Prompt mix",
        [p.name for p in known],
        selection_mode="multi",
        key="load-mix",
        format_func=lambda n: preset(n).title,
        help="None chosen: all of them",
    )
    shortest, longest = second.slider("New tokens per request", 1, 256, (16, 48), key="load-lengths", **BOUND)
    first, second, third = st.columns(3)
    rows = first.slider(
        "Requests decoded at once, at most",
        1,
        64,
        16,
        key="load-rows",
        **BOUND,
        help="Slots of the cache; other requests wait",
    )
    temperature = second.slider("Temperature", 0.0, 2.0, 0.0, 0.05, key="load-temperature", **BOUND)
    seed = third.number_input("Seed of the arrivals", 0, 10_000, 0, key="load-seed", **BOUND)
    return replace(
        order,
        lengths=(shortest, longest),
        mix=tuple(m for m in mix if m in {p.name for p in known}),
        seeds=(int(seed),),
        rows=rows,
        settings=Settings(temperature=temperature),
    )


# ------------------------------------------------------------------------------------ on this machine


def runs_of_session() -> list[LoadTest]:
    """The loads that were served in this session, the latest last."""
    return st.session_state.setdefault("loads", [])


def buttons(order: LoadTestRequest) -> None:
    """The Serve, Stop and Forget buttons. Outside every fragment, so that a click interrupts the script."""
    runs = runs_of_session()
    alive = bool(runs) and runs[-1].alive
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Serve again" if runs and not alive else "Serve on this machine",
            type="primary",
            disabled=alive,
            icon=":material/dns:",
            key="load-run",
            help="Real runs, policy after policy, same arrivals",
        ):
            runs.append(LoadTest(order))
            runs[-1].start()
            st.rerun()
        task.stop_button(runs[-1] if runs else None, "load-stop")
        if runs and not alive and st.button("Forget these loads", icon=":material/delete:", key="load-forget"):
            runs.clear()
            st.rerun()


def served(order: LoadTestRequest) -> None:
    """Progress, and the charts of the loads that were served with these settings, at every rate."""
    runs = runs_of_session()
    if not runs:
        st.info("Nothing served yet. Serve this load, then another rate: each rate adds points to the charts.")
        return
    run = runs[-1]
    task.follow(run, "Stopped: policies that had served the whole load are kept.", lambda: _live(run))
    alike = [
        o
        for r in runs
        if replace(r.order, rate=1, seeds=(0,), policies=NAMES)
        == replace(run.order, rate=1, seeds=(0,), policies=NAMES)
        for o in r.results
    ]
    if alike:
        show(alike, run.results or alike, "this machine", "measured", "served")
        _texts(alike)


def _texts(outcomes: Sequence[LoadResult]) -> None:
    """Whether each text equals the text of its request decoded alone."""
    identical, ties = {o.summary.identical for o in outcomes}, sum(o.summary.near_ties for o in outcomes)
    if any(o.summary.differing for o in outcomes):
        st.error("A text differs from its text alone.")
    elif ties:
        widest = max(o.summary.widest_gap or 0.0 for o in outcomes if o.summary.near_ties)
        count = sum(bool(r.tokens) for o in outcomes for r in o.records)
        st.info(
            f"{ties} of {count} texts differ from their text alone after a near-tie: the two largest logits are at "
            f"most {widest:.2g} apart there, and passes over more than 32 tokens round differently. All others are "
            "equal.",
            icon=":material/check:",
        )
    elif True in identical:
        st.success("Every text, under every policy, equals its text alone.", icon=":material/check:")


def _live(run: LoadTest) -> None:
    server = run.live
    if not run.alive or server is None or not server.round_stats:
        return
    last = server.round_stats[-1]
    one, two, three, four = st.columns(4)
    one.metric("Running", round(last.running / last.rounds))
    two.metric("Waiting", round(last.waiting / last.rounds))
    three.metric("Drafts verified per request", format.number(last.verified / last.running if last.running else None))
    four.metric("Requests so far", len(server.records))


def show(outcomes: Sequence[LoadResult], latest: Sequence[LoadResult], where: str, source: str, key: str) -> None:
    """The charts of some outcomes. latest: those of one rate, for the charts over time."""
    data = charts.frontier_table(outcomes)
    st.dataframe(
        data.drop(columns=["policy"]),
        hide_index=True,
        key=f"{key}-summary",
        column_config={
            "tokens_per_second": st.column_config.NumberColumn("server tokens/s", format="%.1f"),
            "tokens_per_second_per_user": st.column_config.NumberColumn("user tokens/s", format="%.1f"),
            "mean_running": st.column_config.NumberColumn("running", format="%.1f"),
            "mean_verify_length": st.column_config.NumberColumn("verify length", format="%.2f"),
            "wasted_verify_fraction": st.column_config.NumberColumn("wasted", format="percent"),
            "seconds_per_token": st.column_config.NumberColumn("s per token", format="%.4f"),
            "waited": st.column_config.NumberColumn("waited (s)", format="%.2f"),
        },
    )
    left, right = st.columns(2, gap="large")
    with left:
        chart(charts.frontier_figure(data, where, source), data, "server-against-user", key=f"{key}-frontier")
        times = charts.times_table(latest)
        chart(charts.times_figure(times, where, source), times, "time-per-token", key=f"{key}-times")
    with right:
        lengths = charts.lengths_table(latest)
        chart(charts.lengths_figure(lengths, where, source), lengths, "verify-length", key=f"{key}-lengths")
        chart(charts.waste_figure(data, where, source), data, "wasted-verification", key=f"{key}-waste")
