"""The Load page's simulation: the same server on another device, with round times from its roofline."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from specviz.hardware import catalogue, shapes
from specviz.serving import step_table
from specviz.serving.engines import SurvivalModel
from specviz.serving.load_test import LoadTestRequest, Simulation
from specviz.serving.policies import NAMES
from specviz.serving.requests import ServerLimits
from specviz.ui import task
from specviz.ui.address import BOUND
from specviz.ui.load_page import show
from specviz.ui.modelled_device import modelled

TOKENS = 1024
"""Tokens of a slot: prompt and answer."""


def simulated(order: LoadTestRequest) -> None:
    """The same server on any device of the catalogue; no model runs."""
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
    share = second.slider("Time of a draft pass, in target passes", 0.0, 0.3, 0.05, 0.01, key="sim-share", **BOUND)
    knows = third.toggle(
        "The drafter gives a confidence",
        True,
        key="sim-confident",
        help="As a calibrated confidence head does; otherwise survival is estimated from verdicts",
    )
    entry, precision, shape = modelled(device, model)
    rows = min(4096, step_table.rows_that_fit(shape, entry.memory, TOKENS))
    if rows < 1:
        st.warning(f"{model} does not fit one {device} in {precision}: choose a smaller model or a larger device.")
        return
    costs = step_table.modelled(shape, entry.ceilings(precision), 512, share, False)
    chances = SurvivalModel(tuple(survival * (1 - i / 18) for i in range(7)), 0.25, knows)
    load = replace(order, rate=1.0, seconds=6.0, lengths=(64, 192), max_k=7, policies=NAMES, seeds=(0,))
    rates = sorted({max(0.5, top / 20), top / 4, float(top)})
    _buttons(Simulation(load, rates, costs, chances, ServerLimits(rows, TOKENS, chunk=2048), 200), device)
    if (run := _current()) is None:
        st.caption(f"{rows:,} requests of {TOKENS:,} tokens fit the memory of one {device} beside the weights.")
    else:
        _results(run)


def _current() -> Simulation | None:
    return st.session_state.get("simulation")


def _buttons(offered: Simulation, device: str) -> None:
    """Simulate and Stop. `offered` is started on a click."""
    run = _current()
    with st.container(horizontal=True):
        alive = run is not None and run.alive
        if st.button("Simulate", icon=":material/model_training:", key="sim-run", disabled=alive):
            st.session_state["simulation"], st.session_state["simulated"] = offered, device
            offered.start()
            st.rerun()
        task.stop_button(run, "sim-stop")


def _results(run: Simulation) -> None:
    task.follow(run)
    if run.alive or not run.results:
        return
    busiest = [o for o in run.results if o.summary.rate == max(run.rates)]
    show(run.results, busiest, st.session_state["simulated"], "simulated", "sim")
    st.caption(
        "Simulated: times from the device's roofs at a context of 512 tokens, random acceptance as set above, "
        "requests of 200 tokens of prompt and 64 to 192 new ones. The server and the policies are the real ones."
    )
