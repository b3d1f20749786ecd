"""The Batch page: the measured map of speedups, a modelled one beside it, and the details of a chosen cell."""

from __future__ import annotations

import streamlit as st

from specviz import format
from specviz.bench.sweep import Cell, Sweep, SweepRequest, best_k, modelled, serving_settings
from specviz.drafters.names import drafter_names
from specviz.engine.prompts import preset, presets_for
from specviz.hardware import catalogue, shapes
from specviz.loader.pairs import EMBEDDED, find_pair, names
from specviz.trace.records import MAX_K, Settings
from specviz.ui import modelled_device, stage, task
from specviz.ui.address import BOUND
from specviz.ui.chart import chart
from specviz.views.figures import roofline_chart, speedup_map

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (0, 128, 512, 1024, 2048, 4096)
POLL_SECONDS = 0.7


def controls() -> SweepRequest:
    """What to measure; every control but the batches is in the address. Raises SpecVizError."""
    first, second, third = st.columns(3)
    pair = find_pair(
        first.selectbox(
            "Pair", names(), key="map-pair", **BOUND, help=f"{EMBEDDED} comes with the app, toy needs nothing"
        )
    )
    drafter = second.selectbox("Drafter", drafter_names(pair), key="map-drafter", **BOUND)
    presets = presets_for(pair.name)
    name = third.selectbox(
        "Prompt",
        [p.name for p in presets],
        key="map-prompt",
        **BOUND,
        format_func=lambda n: preset(n).title,
        help="All rows decode it, each with its own seed",
    )
    first, second, third = st.columns(3)
    low, high = first.slider("K to measure", 0, MAX_K, (0, 8), key="map-ks", **BOUND)
    batches = second.pills("Batches", BATCHES, selection_mode="multi", default=BATCHES[:6], key="map-batches")
    context = third.select_slider(
        "Context (tokens)",
        CONTEXTS,
        0,
        key="map-context",
        **BOUND,
        format_func=lambda n: f"{n:,}" if n else "the prompt",
        help="Text before the prompt brings it to this length: long caches move the break-even batch",
    )
    with st.expander("More: temperature, rounds per cell"):
        temperature, rounds = _more()
    return SweepRequest(
        pair=pair.name,
        drafter=drafter,
        text=preset(name).text,
        ks=tuple(range(low, high + 1)),
        batches=tuple(batches or (1,)),
        contexts=(context,),
        settings=Settings(temperature=temperature),
        rounds=rounds,
    )


def _more() -> tuple[float, int]:
    """Temperature, and rounds per cell."""
    first, second = st.columns(2)
    temperature = first.slider(
        "Temperature",
        0.0,
        2.0,
        0.0,
        0.05,
        key="map-temperature",
        **BOUND,
        help="At 0 all rows have the same text, as they share the prompt",
    )
    rounds = second.slider(
        "Rounds per cell",
        4,
        40,
        10,
        key="map-rounds",
        **BOUND,
        help="More rounds give steadier figures; the first of each cell is not counted",
    )
    return temperature, rounds


# ---------------------------------------------------------------------------------------- measuring


def _sweeps() -> dict[tuple, Sweep]:
    """The session's sweeps by pair, drafter, prompt and sampling; cells are kept when K, batches or context change."""
    return st.session_state.setdefault("sweeps", {})


def current(order: SweepRequest) -> Sweep:
    """The sweep of the same pair, drafter, prompt and sampling, with its order updated."""
    key = (order.pair, order.drafter, order.text, order.settings, order.rounds)
    sweep = _sweeps().get(key)
    if sweep is None:
        sweep = _sweeps()[key] = Sweep(order)
    if not sweep.alive:
        sweep.order = order
    return sweep


def buttons(sweep: Sweep) -> None:
    """The Measure, Stop and Resume buttons. Outside every fragment, so that a click interrupts the script."""
    others = [s for s in _sweeps().values() if s is not sweep and s.alive]
    with st.container(horizontal=True, vertical_alignment="center"):
        missing, total = len(sweep.missing), len(sweep.order.keys)
        label = "Measure the map" if missing == total else f"Resume: {missing} cells to go"
        if missing and st.button(
            label,
            type="primary",
            icon=":material/grid_on:",
            key="map-run",
            disabled=sweep.alive,
            help="Real runs on this machine, cell by cell",
        ):
            for other in others:
                other.stop()
            sweep.start()
            st.rerun()
        task.stop_button(sweep, "map-stop")
        if sweep.cells and not sweep.alive and st.button("Measure again", icon=":material/refresh:", key="map-again"):
            sweep.cells.clear()
            sweep.start()
            st.rerun()


def _shown(sweep: Sweep) -> list[Cell]:
    return [cell for (_, _, context), cell in list(sweep.cells.items()) if context == sweep.order.contexts[0]]


def measured_map(sweep: Sweep) -> None:
    """The map, polled while it fills."""
    task.follow(
        sweep,
        "Stopped: the finished cells are kept. Resume measures the rest.",
        lambda: _map(sweep),
        POLL_SECONDS,
    )


def _map(sweep: Sweep) -> None:
    # a click reruns this fragment alone, and the sliders are outside it
    if "map-picked" in st.session_state:
        st.rerun()
    cells = _shown(sweep)
    data = speedup_map.table(cells)
    chart(
        speedup_map.figure(
            data, sweep.order.ks, sweep.order.batches, "this machine", "measured", chosen(), len(sweep.order.keys)
        ),
        data,
        "speed-up-map",
        key="map-measured",
        picks="map-picked",
    )
    if notes := sorted({c.note for c in cells if c.note}):
        st.warning(" ".join(notes))


# ------------------------------------------------------------------------------------------- choosing


def take_click() -> None:
    """Choose the cell that was clicked on the measured map. Called before the sliders are drawn."""
    if picked := st.session_state.pop("map-picked", None):
        k, _, batch = str(picked).partition("|")
        st.session_state["map-k"], st.session_state["map-batch"] = int(k), int(batch)


def chosen() -> tuple[int, int]:
    """K and batch of the chosen cell."""
    return st.session_state.get("map-k", 4), st.session_state.get("map-batch", 1)


def choose() -> tuple[int, int]:
    """The sliders of the chosen cell, which choose it by keyboard as a click does."""
    first, second = st.columns(2)
    k = first.slider("K", 0, MAX_K, 4, key="map-k", help="Or click a cell")
    batch = second.select_slider("Batch", BATCHES, 1, key="map-batch")
    return k, batch


def cell(sweep: Sweep, k: int, batch: int) -> None:
    """One cell: speed, acceptance, its run in the player, roofline and ledger."""
    st.subheader(f"K = {k}, batch {batch}")
    found = sweep.cells.get((k, batch, sweep.order.contexts[0]))
    if found is None:
        st.info("This cell is not measured yet.")
        if st.button("Measure this cell", key="map-one", icon=":material/add:", disabled=sweep.alive):
            sweep.only = (k, batch, sweep.order.contexts[0])
            sweep.start()
            st.rerun()
        return
    if found.note:
        st.warning(found.note)
        return
    _verdict(sweep, batch)
    _figures(found)
    _play(sweep, found)
    left, right = st.columns(2, gap="large")
    with left:
        if sweep.ceilings is not None and (points := found.points(sweep.ceilings)):
            data = roofline_chart.table(
                points, sweep.ceilings, [f"K = {k}" if p.kind == "verify" and k else "" for p in points]
            )
            chart(roofline_chart.figure(data, sweep.ceilings, "this machine"), data, "cell-roofline", key="map-roof")
    with right:
        data = speedup_map.ledger_table(found)
        chart(speedup_map.ledger_figure(data, found), data, "cell-ledger", key="map-ledger")


def _verdict(sweep: Sweep, batch: int) -> None:
    """The best K of this batch, or the advice not to speculate."""
    best = best_k(_shown(sweep), batch)
    if best is not None:
        st.success(
            f"**Best K for batch {batch}: {best.k}**, {format.number(best.speedup)} times plain decoding.",
            icon=":material/star:",
        )
    elif any(c.k and c.batch == batch and c.speedup is not None for c in _shown(sweep)):
        st.warning(
            f"**Do not speculate here:** at batch {batch} no measured K is faster than plain decoding.",
            icon=":material/block:",
        )


def _figures(found: Cell) -> None:
    one, two, three, four = st.columns(4)
    one.metric(
        "Speed-up (measured)",
        f"{format.number(found.speedup)} times",
        help="Tokens per second of all rows, against plain steps of the same rows in the same run",
    )
    two.metric(
        "Tokens per second",
        format.number(found.tokens_per_second),
        f"{format.number(found.plain_tokens_per_second)} plain",
        delta_color="off",
        delta_arrow="off",
    )
    three.metric("Drafts accepted", format.percent(found.acceptance_rate), help="Accepted of proposed, no bonus token")
    four.metric("Tokens per pass and row", format.number(found.mean_acceptance_length), help="Bonus token included")


def _play(sweep: Sweep, found: Cell) -> None:
    """Decode the cell's rows again, in the player."""
    if st.button(
        "Play this run",
        icon=":material/play_arrow:",
        key="map-play",
        disabled=sweep.alive,
        help="Decodes the same rows again and shows every step",
    ):
        stage.start(sweep.run_order(found))
        if (started := stage.current()) is not None:
            st.session_state["map-played"] = started.id
        st.rerun()
    run = stage.current()
    if run is not None and run.id == st.session_state.get("map-played"):
        if st.button("Close the player", icon=":material/close:", key="map-close"):
            run.stop()
            del st.session_state["map-played"]
            st.rerun()
        stage.show()


def settings(sweep: Sweep) -> None:
    """The best K of each batch, and the settings for vLLM and SGLang."""
    cells = _shown(sweep)
    data = speedup_map.verdicts(cells)
    if data.empty:
        return
    st.subheader("What to do")
    st.dataframe(
        data,
        hide_index=True,
        key="map-verdicts",
        column_config={
            "acceptance_rate": st.column_config.NumberColumn("accepted", format="percent"),
            "speedup": st.column_config.NumberColumn("times plain", format="%.2f"),
            "tokens_per_second": st.column_config.NumberColumn("tokens/s", format="%.1f"),
            "fastest_k": st.column_config.NumberColumn("fastest K"),
        },
    )
    with st.expander("Settings to copy for vLLM and SGLang"):
        for program, text in serving_settings(cells, sweep.order.drafter).items():
            st.markdown(f"**{program}**")
            st.code(text, language="bash", wrap_lines=True)
        st.caption("K as measured here. Another device needs another K: measure there, or use the modelled map.")


# ------------------------------------------------------------------------------------------- modelled


def modelled_map(order: SweepRequest, sweep: Sweep) -> None:
    """The same map for any device of the catalogue, with times from its roofline."""
    first, second = st.columns(2)
    device = first.selectbox("Device (modelled)", [d.name for d in catalogue.DEVICES], key="map-device", **BOUND)
    model = second.selectbox("Model", [s.name for s in shapes.SHAPES], 3, key="map-model", **BOUND)
    entry, precision, shape = modelled_device.modelled(device, model)
    with st.popover("Drafter and survival", icon=":material/tune:"):
        survival = st.slider(
            "Probability that a draft is accepted", 0.0, 1.0, _survival(sweep), 0.05, key="map-survival"
        )
        share = st.slider("Time of a draft pass, in target passes", 0.0, 0.5, 0.05, 0.01, key="map-share")
        serial = st.toggle("Drafts one token at a time", key="map-serial", help="Otherwise all K in one pass")
    context = order.contexts[0] or 128
    batches = sorted({*order.batches, 64, 128, 256})
    cells = modelled(shape, entry.ceilings(precision), order.ks, batches, context, survival, share, serial)
    data = speedup_map.table(cells)
    chart(
        speedup_map.figure(data, order.ks, batches, device, "modelled"),
        data,
        "speed-up-map-modelled",
        key="map-modelled",
    )
    needed = shape.stored_bytes + max(batches) * context * shape.cache_bytes_per_token
    fits = (
        ""
        if needed <= entry.memory
        else (
            f" {model} with batch {max(batches)} needs {format.si(needed, 'B')} and "
            f"does not fit the {format.si(entry.memory, 'B')} of one {device}."
        )
    )
    st.caption(
        f"Modelled in {precision}, context {context}: a pass takes the time of the slower roof, every draft is "
        f"accepted with probability {survival:.2f}, roofs by {entry.source} ({entry.published}).{fits}"
    )


def _survival(sweep: Sweep) -> float:
    """The acceptance rate of the measured cells with K = 1, rounded to the slider's step; 0.7 if there are none."""
    rates = [c.acceptance_rate for c in sweep.cells.values() if c.k == 1 and c.acceptance_rate is not None]
    return round(20 * sum(rates) / len(rates)) / 20 if rates else 0.7
