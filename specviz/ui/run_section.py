"""Charts and files of one finished run."""

from __future__ import annotations

import json

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from specviz.errors import SpecVizError
from specviz.trace import files as trace_files
from specviz.trace.records import Trace
from specviz.ui.chart import chart
from specviz.ui.controls import share_link
from specviz.views import export
from specviz.views.figures import run_charts as figures

Charts = dict[str, tuple[go.Figure, pd.DataFrame]]
"""Figure and table by name"""
CHARTS = (
    ("tokens-per-round", figures.tokens_table, figures.tokens_figure),
    ("acceptance-by-position", figures.acceptance_table, figures.acceptance_figure),
    ("seconds-per-round", figures.seconds_table, figures.seconds_figure),
    ("flops-per-token", figures.ledger_table, figures.ledger_figure),
)


def show(trace: Trace) -> None:
    """Four charts of the run in two columns (one on a phone)."""
    drawn = _drawn(trace)
    columns = st.columns(2, gap="large")
    for place, (name, (figure, data)) in enumerate(drawn.items()):
        with columns[place % 2]:
            chart(figure, data, name, key=f"run-{name}")
    _files(trace, drawn)


def _drawn(trace: Trace) -> Charts:
    """Figure and table by name. Kept while the same trace is on screen: building them takes most of the page's time."""
    kept = st.session_state.get("run-charts")
    if kept is None or kept[0] is not trace:
        tables = {name: (figure, table(trace)) for name, table, figure in CHARTS}
        kept = trace, {name: (figure(data), data) for name, (figure, data) in tables.items()}
        st.session_state["run-charts"] = kept
    return kept[1]


def _files(trace: Trace, drawn: Charts) -> None:
    name = f"specviz-{trace.pair.replace('/', '-')}-{trace.drafter}-k{trace.settings.k}"
    st.subheader("Download and share")
    with st.container(horizontal=True):
        st.download_button(
            "Trace (JSON)",
            lambda: trace_files.dumps(trace),
            f"{export.safe_name(name)}.json",
            "application/json",
            on_click="ignore",
            icon=":material/download:",
            key="save-trace",
            help="The whole run: replays here with neither model nor network",
        )
        st.download_button(
            "All charts (zip)",
            lambda: _pack(trace, drawn),
            f"{export.safe_name(name)}.zip",
            "application/zip",
            on_click="ignore",
            icon=":material/folder_zip:",
            key="save-pack",
            help="Charts as HTML and CSV, the trace and the settings",
        )
        with st.popover("Share", icon=":material/link:"):
            st.caption("This address reopens the run wherever SpecViz runs: same pair, prompt, settings and seed.")
            st.code(share_link(), language=None, wrap_lines=True)


def _pack(trace: Trace, drawn: Charts) -> bytes:
    settings = {
        "pair": trace.pair,
        "drafter": trace.drafter,
        "prompt": trace.prompts[0].text,
        **{n: getattr(trace.settings, n) for n in trace.settings.__dataclass_fields__},
        "link": share_link(),
    }
    files = {"trace.json": trace_files.dumps(trace), "settings.json": json.dumps(settings, indent=2).encode()}
    return export.pack(drawn, files)


def opener() -> None:
    """Open a trace file; the error of an unreadable one is shown."""
    file = st.file_uploader(
        "Open a trace", type=["json", "gz"], key="trace-file", help="A run that SpecViz exported, here or elsewhere"
    )
    if file is None:
        if st.session_state.pop("opened_name", None) is not None:
            st.session_state.pop("opened", None)
            st.rerun()
        return
    if st.session_state.get("opened_name") == file.file_id:
        return
    st.session_state["opened_name"] = file.file_id
    try:
        st.session_state["opened"] = trace_files.loads(file.getvalue(), file.name)
    except SpecVizError as error:
        st.session_state.pop("opened", None)
        st.error(str(error))
        return
    st.rerun()
