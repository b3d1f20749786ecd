"""The Load page: policies side by side on the same arrivals, one step of the scheduler, the counterexample."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from specviz import format
from specviz.drafters.names import drafter_names
from specviz.engine.prompts import preset, presets_for
from specviz.hardware import catalogue, shapes
from specviz.loader.pairs import find_pair, names
from specviz.serving import step_table
from specviz.serving.load_test import LoadOrder, LoadRun, Simulation
from specviz.serving.policies import NAMES
from specviz.serving.scheduling import best_schedule, prefix_schedule, survivals
from specviz.serving.server import Chances, Limits
from specviz.trace.records import MAX_K, Settings
from specviz.ui import task
from specviz.ui.chart import chart
from specviz.views.figures import scheduler_step as scheduler_chart
from specviz.views.figures import served_load as charts

BOUND = {"bind": "query-params"}
TITLES = {
    "none": "no speculation",
    "fixed": "fixed K",
    "uniform": "uniform goodput K (vLLM)",
    "prefix": "prefix scheduler (DSpark)",
}
TRIALS = 10_000
_WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def controls() -> LoadOrder:
    """What arrives and who serves it; every control is in the address. Raises SpecVizError."""
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
        help="On average; they come at random moments",
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
    burst = second.slider("Burst", 1, 16, 1, key="load-burst", **BOUND, help="So many requests come at once")
    k = third.slider("K of fixed K", 1, MAX_K, 4, key="load-k", **BOUND)
    chosen = st.pills(
        "Policies", NAMES, selection_mode="multi", default=NAMES, key="load-policies", format_func=TITLES.get
    )
    with st.expander("More: prompts, lengths, rows, temperature, seed"):
        known = presets_for(pair.name)
        first, second = st.columns(2)
        mix = first.pills(
            "Prompt mix",
            [p.name for p in known],
            selection_mode="multi",
            key="load-mix",
            format_func=lambda n: preset(n).title,
            help="None chosen: all of them",
        )
        lengths = second.slider("New tokens per request", 1, 256, (16, 48), key="load-lengths", **BOUND)
        first, second, third = st.columns(3)
        rows = first.slider(
            "Requests decoded at once, at most",
            1,
            64,
            16,
            key="load-rows",
            **BOUND,
            help="The cache has so many slots; others wait",
        )
        temperature = second.slider("Temperature", 0.0, 2.0, 0.0, 0.05, key="load-temperature", **BOUND)
        seed = third.number_input("Seed of the arrivals", 0, 10_000, 0, key="load-seed", **BOUND)
    mix = tuple(m for m in mix if m in {p.name for p in known})
    return LoadOrder(
        pair.name,
        drafter,
        tuple(n for n in NAMES if n in (chosen or NAMES)),
        rate,
        float(seconds),
        burst,
        k,
        lengths=tuple(lengths),
        mix=mix,
        seeds=(int(seed),),
        rows=rows,
        settings=Settings(temperature=temperature),
    )


# ------------------------------------------------------------------------------------ on this machine


def _runs() -> list[LoadRun]:
    return st.session_state.setdefault("loads", [])


def buttons(order: LoadOrder) -> None:
    """Serve, Stop, Forget. Outside every fragment, so that a click interrupts."""
    runs = _runs()
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
            runs.append(LoadRun(order))
            runs[-1].start()
            st.rerun()
        task.stop_button(runs[-1] if runs else None, "load-stop")
        if runs and not alive and st.button("Forget these loads", icon=":material/delete:", key="load-forget"):
            runs.clear()
            st.rerun()


def served(order: LoadOrder) -> None:
    """Status while it goes, and the charts of what was served with these settings at every rate."""
    runs = _runs()
    if not runs:
        st.info("Nothing served yet. Serve this load, then another rate: the curve of server against user grows.")
        return
    run = runs[-1]
    task.follow(run, "Stopped: policies that had served the whole load are kept.", lambda: _live(run))
    alike = [
        o
        for r in runs
        if replace(r.order, rate=1, seeds=(0,), policies=NAMES)
        == replace(run.order, rate=1, seeds=(0,), policies=NAMES)
        for o in r.outcomes
    ]
    if alike:
        show(alike, run.outcomes or alike, "this machine", "measured", "served")
        _texts(alike)


def _texts(outcomes) -> None:
    """Whether the texts are those that each request gets alone."""
    told, ties = {o.summary.identical for o in outcomes}, sum(o.summary.near_ties for o in outcomes)
    if any(o.summary.differing for o in outcomes):
        st.error("A text differs from its text alone.")
    elif ties:
        widest = max(o.summary.widest_gap for o in outcomes if o.summary.near_ties)
        count = sum(bool(r.tokens) for o in outcomes for r in o.records)
        st.info(
            f"{ties} of {count} texts part from their text alone at a near-tie: the two likeliest logits lay at "
            f"most {widest:.2g} apart there, and passes over more than 32 tokens round differently. All others are "
            "equal.",
            icon=":material/check:",
        )
    elif True in told:
        st.success("Every text, under every policy, equals its text alone.", icon=":material/check:")


def _live(run: LoadRun) -> None:
    server = run.live
    if not run.alive or server is None or not server.ticks:
        return
    last = server.ticks[-1]
    one, two, three, four = st.columns(4)
    one.metric("Running", round(last.running / last.rounds))
    two.metric("Waiting", round(last.waiting / last.rounds))
    three.metric("Drafts verified per request", format.number(last.verified / last.running if last.running else None))
    four.metric("Requests so far", len(server.records))


def show(outcomes, latest, where: str, source: str, key: str) -> None:
    """All charts of some outcomes; `latest` are those of one rate, for what goes over time."""
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


# ------------------------------------------------------------------------------------------- one step


def one_step() -> None:
    """The scheduler chooses once, for requests and costs set by hand."""
    st.subheader("One step of the scheduler")
    runs = [r for r in _runs() if r.table is not None]
    sources = (["this machine's step table (measured)"] if runs else []) + [
        "a flat cost up to 16 tokens (made up)",
        "an H100 with Llama-3.1-8B (modelled)",
    ]
    first, second, third = st.columns(3)
    source = first.selectbox("Cost of a round", sources, key="step-cost")
    requests = second.slider("Requests running", 1, 256, 4, key="step-requests", **BOUND)
    best = third.slider("Survival of the surest request's drafts", 0.0, 1.0, 0.9, 0.01, key="step-survival", **BOUND)
    rule = st.segmented_control(
        "Rule",
        ["stop at the first drop", "whole maximum"],
        default="stop at the first drop",
        key="step-rule",
        help="Stopping early is safe with drawn drafts; the whole maximum "
        "needs drafts without chance, or survival known from the past",
    )
    # from the surest to the least sure, evenly: requests differ, as they do in a server
    rates = [best * (1 - 0.6 * r / max(1, requests - 1)) for r in range(requests)]
    cost = _cost(source, runs).verifying(requests)
    choose = best_schedule if rule == "whole maximum" else prefix_schedule
    schedule = choose([survivals([c] * 7) for c in rates], cost)
    data = scheduler_chart.table(schedule)
    shown = data.iloc[: max(40, sum(schedule.lengths) + 10)]
    chart(scheduler_chart.figure(shown, schedule), shown, "scheduler-step", key="step")
    st.markdown(
        "A candidate pays exactly if **a > Θ · (T(B+1) − T(B))**: the tokens it is expected to add must exceed "
        "what the machine would have made in the extra time. "
        f"Lengths: {', '.join(map(str, schedule.lengths[:32]))}{' …' if requests > 32 else ''}."
    )


def _cost(source: str, runs):
    from specviz.serving.scheduling import RoundCosts, StepCosts

    if source.startswith("this machine"):
        return runs[-1].table.costs
    if source.startswith("an H100"):
        return step_table.modelled(
            shapes.shape("Llama-3.1-8B"), catalogue.device("H100 SXM").ceilings("bf16"), 1024, 0.05, False
        )
    return RoundCosts(StepCosts((1, 16, 64), (0.02, 0.02, 0.08)))


def counterexample() -> None:
    """Looking ahead breaks losslessness: run it, beside the early stop."""
    st.subheader("Why the scheduler must not look ahead")
    st.markdown(
        "One request, two tokens, p = (0.70, 0.30). The drafter draws from q = (0.5, 0.5); if its first draft "
        "is token A, the second looks safe. One draft costs more than it brings, two bring more. A scheduler "
        "that looks at the whole maximum verifies **because the draft was A**, and A comes out too often."
    )
    if st.button("Run the counterexample", icon=":material/play_arrow:", key="counter-run"):
        from specviz.serving import counterexample as example

        st.session_state["counter"] = {
            name: (example.law(rule)[0], example.trials(rule, TRIALS)[0] / TRIALS)
            for name, rule in (("looks ahead", best_schedule), ("stops early", prefix_schedule))
        }
    if found := st.session_state.get("counter"):
        for place, (name, (exact, run)), wrong in zip(st.columns(2), found.items(), (True, False)):
            place.metric(
                f"Share of token A, {name}",
                f"{run:.3f}",
                f"{run - 0.7:+.3f} from p" if wrong else "follows p",
                border=True,
                delta_color="inverse" if wrong else "off",
                delta_arrow="auto" if wrong else "off",
            )
            place.caption(
                f"Counted in {TRIALS:,} runs of the engine's own judge and scheduler; exactly {exact:.2f}, "
                "where p is 0.70."
            )


# ------------------------------------------------------------------------------------------ simulated


def simulated(order: LoadOrder) -> None:
    """The same server on any device, by its roofs: no model runs."""
    st.subheader("The same server on another device (simulated)")
    first, second, third = st.columns(3)
    device = first.selectbox("Device", [d.name for d in catalogue.DEVICES], key="sim-device", **BOUND)
    model = second.selectbox("Model", [s.name for s in shapes.SHAPES], 3, key="sim-model", **BOUND)
    top = third.select_slider(
        "Highest rate (requests/s)", [2, 5, 10, 20, 50, 100, 200, 400], 100, key="sim-rate", **BOUND
    )
    first, second, third = st.columns(3)
    survival = first.slider(
        "Survival of draft 1, falling to two thirds at draft 7", 0.1, 0.99, 0.85, 0.01, key="sim-survival", **BOUND
    )
    share = second.slider("One draft pass, in target passes", 0.0, 0.3, 0.05, 0.01, key="sim-share", **BOUND)
    knows = third.toggle(
        "The drafter knows which drafts are safe",
        True,
        key="sim-confident",
        help="As a calibrated confidence head; otherwise survival is learnt from verdicts",
    )
    entry = catalogue.device(device)
    precision = "bf16" if "bf16" in entry.peaks else next(iter(entry.peaks))
    width = _WIDTH[precision]
    shape = replace(
        shapes.shape(model), weight_bytes=width, cache_bytes=max(2.0, width), activation_bytes=max(2.0, width)
    )
    tokens = 1024
    rows = min(4096, step_table.rows_that_fit(shape, entry.memory, tokens))
    run: Simulation | None = st.session_state.get("simulation")
    if rows < 1:
        st.warning(f"{model} does not fit one {device} in {precision}: choose a smaller model or a larger device.")
        return
    with st.container(horizontal=True):
        if st.button("Simulate", icon=":material/model_training:", key="sim-run", disabled=bool(run and run.alive)):
            costs = step_table.modelled(shape, entry.ceilings(precision), 512, share, False)
            chances = Chances(tuple(survival * (1 - i / 18) for i in range(7)), 0.25, knows)
            load = replace(order, rate=1.0, seconds=6.0, lengths=(64, 192), max_k=7, policies=NAMES, seeds=(0,))
            rates = sorted({max(0.5, top / 20), top / 4, float(top)})
            run = Simulation(load, rates, costs, chances, Limits(rows, tokens, chunk=2048), 200)
            st.session_state["simulation"], st.session_state["simulated"] = run, device
            run.start()
            st.rerun()
        task.stop_button(run, "sim-stop")
    if run is None:
        st.caption(f"{rows:,} requests of {tokens:,} tokens fit the memory of one {device} beside the weights.")
        return
    task.follow(run)
    if not run.alive and run.outcomes:
        busiest = [o for o in run.outcomes if o.summary.rate == max(run.rates)]
        show(run.outcomes, busiest, st.session_state["simulated"], "simulated", "sim")
        st.caption(
            "Simulated: times from the device's roofs at a context of 512 tokens, luck from the chances above, "
            "requests of 200 tokens of prompt and 64 to 192 new ones. The server and the policies are those "
            "that run here."
        )
