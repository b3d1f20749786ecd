"""Live load of the device, and the utilization in each round of the session's run.

There is one monitor per server. It samples only while a page shows it: it stops when the last session leaves, and when
no samples were read for some seconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from specviz import format
from specviz.engine.prompts import preset
from specviz.engine.request import RunRequest
from specviz.hardware.machine import available_devices, device_name
from specviz.hardware.monitor import Monitor, Sample
from specviz.loader.pairs import EMBEDDED
from specviz.trace.records import Settings
from specviz.ui import stage, task
from specviz.ui.chart import chart
from specviz.views.figures import device_load as load_chart

if TYPE_CHECKING:
    from specviz.engine.run import Run

EVERY_SECONDS = 2.0
"""Between two drawings: a chart that is redrawn more often flickers. Samples are taken twice a second."""
PATIENCE_SECONDS = 10.0
"""A monitor whose samples are not read for this long stops: the tab was closed."""


class Watch:
    """The server's monitor of its fastest device, and the sessions that show it."""

    def __init__(self) -> None:
        self.device = available_devices()[0]
        self.monitor = Monitor(self.device, patience=PATIENCE_SECONDS)
        self._seen: dict[str, float] = {}

    def samples(self, session: str) -> list[Sample]:
        """The samples so far; starts the monitor if it is not running."""
        self._seen[session] = time.monotonic()
        return self.monitor.start().samples()

    def leave(self, session: str) -> None:
        """This session no longer shows the monitor. The last one to leave stops it."""
        self._seen.pop(session, None)
        if self.monitor.running and not any(time.monotonic() - at < PATIENCE_SECONDS for at in self._seen.values()):
            self.monitor.stop()


@st.cache_resource(on_release=lambda watch: watch.monitor.stop())
def server_watch() -> Watch:
    """The one Watch of this server."""
    return Watch()


def show() -> None:
    """Decode a text and watch the load, the utilization by round, and the energy per token where it is measured."""
    st.subheader("Live")
    run = stage.current()
    alive = run is not None and run.alive
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Decode something",
            key="live-run",
            icon=":material/play_arrow:",
            disabled=alive,
            help="The embedded model writes a story; its first layers draft",
        ):
            stage.start(RunRequest(EMBEDDED, "first-layers", preset("story").text, Settings(k=4, max_new_tokens=256)))
            st.rerun()
        task.stop_button(run, "live-stop")
        idle = st.toggle(
            "Watch also while nothing decodes",
            key="watch",
            help="Samples twice a second, for well under 1 % of the CPU's time; stops when you leave",
        )
    if alive or idle:
        st.fragment(_tick, run_every=EVERY_SECONDS)(alive, idle)
    else:
        server_watch().leave(_session())
        if run is not None and run.rounds:
            _run(run)
        else:
            st.caption("While a run decodes, here or on the Decode page, load and utilization are shown here.")


def _session() -> str:
    context = get_script_run_ctx()
    return context.session_id if context else ""


def _tick(was_alive: bool, idle: bool) -> None:
    run = stage.current()
    if run is not None and was_alive:
        run.poll()
        if not run.alive and not idle:
            st.rerun()
        if run.status == "loading":
            st.caption(f"{run.progress.stage} …")
        if run.error:
            st.error(run.error)
    watch = server_watch()
    samples = watch.samples(_session())
    if watch.monitor.note:
        st.caption(watch.monitor.note)
    if samples:
        _load(samples, watch.device, _tokens(run))
    else:
        st.caption("Waiting for the first sample.")
    if run is not None and run.rounds:
        _run(run, live=run.alive)


def _load(samples: list[Sample], device: str, tokens: tuple[str, int] | None) -> None:
    last = samples[-1]
    figures: list[tuple[str, str | None]] = [
        ("Compute", format.percent(last.compute)),
        ("Memory in use", format.binary_bytes(last.memory_used)),
        ("Memory traffic", None if last.memory_traffic is None else format.percent(last.memory_traffic)),
        ("Power", None if last.watts is None else format.si(last.watts, "W")),
        ("Clock", None if last.clock_hertz is None else format.si(last.clock_hertz, "Hz")),
        ("Energy per emitted token", joules_per_token(samples, tokens)),
    ]
    known = [(name, value) for name, value in figures if value is not None]
    for place, (name, value) in zip(st.columns(len(known)), known):
        place.metric(f"{name} (measured)", value)
    data = load_chart.table(samples)
    chart(load_chart.figure(data, device_name(device)), data, "load", key="load", live=True)


def _tokens(run: Run | None) -> tuple[str, int] | None:
    """The id of a run and its number of emitted tokens."""
    return None if run is None else (run.id, sum(len(v.emitted) for r in run.rounds for v in r.rows))


def joules_per_token(samples: list[Sample], tokens: tuple[str, int] | None) -> str | None:
    """Energy of the whole device over the tokens emitted while it was sampled; None where it is not measured."""
    if tokens is None or samples[-1].joules is None:
        return None
    start = st.session_state.get("joules-start")
    if start is None or start[0] != tokens[0] or samples[-1].joules < start[1]:
        st.session_state["joules-start"] = (tokens[0], samples[-1].joules, tokens[1])
        return None
    if tokens[1] > start[2]:
        st.session_state["joules-token"] = (tokens[0], (samples[-1].joules - start[1]) / (tokens[1] - start[2]))
    kept = st.session_state.get("joules-token")
    return format.si(kept[1], "J") if kept is not None and kept[0] == tokens[0] else None


def _run(run: Run, live: bool = False) -> None:
    """Utilization by round, from counted work, measured times and measured roofs."""
    roofs = run.machine.ceilings if run.machine is not None else None
    if roofs is None:
        return
    data = load_chart.utilization_table(run.rounds, roofs)
    chart(load_chart.utilization_figure(data), data, "utilization", key="utilization", live=live)
    st.caption(
        "Counted work over measured time and measured roofs, by round. MFU counts emitted tokens only. HFU "
        "counts everything executed, drafts and rejected positions too. MBU uses the time of each target pass, "
        "not the time per token."
    )
