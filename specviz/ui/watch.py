"""Live load of the device: one monitor per server, started while somebody looks."""

from __future__ import annotations

import streamlit as st

from specviz import format
from specviz.figures import load as load_chart
from specviz.hardware.machine import available_devices
from specviz.hardware.monitor import Monitor
from specviz.roofline import utilization
from specviz.ui import stage
from specviz.ui.chart import chart

EVERY_SECONDS = 1.0


@st.cache_resource(on_release=lambda monitor: monitor.stop())
def monitor() -> Monitor:
    """The server's monitor, of its fastest device."""
    return Monitor(available_devices()[0]).start()


def show() -> None:
    """The last minute of load, and the last round's utilizations beside it."""
    st.subheader("Live")
    watching = st.toggle("Watch the load", key="watch", help="Samples twice a second; costs well under 1 %")
    if watching:
        st.fragment(_tick, run_every=EVERY_SECONDS)()


def _tick() -> None:
    source = monitor()
    samples = source.samples()
    if source.note:
        st.caption(source.note)
    if not samples:
        st.caption("Waiting for the first sample.")
        return
    data = load_chart.table(samples)
    device = available_devices()[0]
    last = samples[-1]
    columns = st.columns(4)
    columns[0].metric("Compute", format.percent(last.compute))
    columns[1].metric("Memory in use", format.binary_bytes(last.memory_used))
    if last.watts is not None:
        columns[2].metric("Power", format.si(last.watts, "W"))
    run = stage.current()
    if run is not None and run.rounds and run.machine is not None and run.machine.ceilings is not None:
        used = utilization(run.rounds[-1], run.machine.ceilings)
        st.caption(f"Last round: MFU {format.percent(used.model_flops)} (useful tokens only), HFU "
                   f"{format.percent(used.hardware_flops)} (all that was executed), MBU "
                   f"{format.percent(used.model_bandwidth)} (by time per target pass).")
    chart(load_chart.figure(data, device), data, "load", key="load")
