"""Recorded runs that ship with the app: shown before anything is fetched, and always labelled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from specviz.paths import ASSETS
from specviz.trace import files as trace_files
from specviz.trace.records import Trace

if TYPE_CHECKING:
    from specviz.engine.run import Run

FOLDER = ASSETS / "traces"


def shipped() -> list[Path]:
    """The recorded traces, the first to be shown first."""
    return sorted(FOLDER.glob("*.json*"))


@st.cache_resource(max_entries=8)
def load(path: Path) -> Trace:
    """A recorded trace by its path; read once per server."""
    return trace_files.load(path)


def label(trace: Trace) -> str:
    """Where and when a run was recorded, in words."""
    return f"on {trace.machine.name} ({trace.machine.device}), {trace.recorded_at[:10]}, {trace.target}"


def facts(run: Run | Trace) -> list[tuple[str, str]]:
    """Pair, drafter and settings of a run, for the line above the stage. run: a Trace, or a Run that is decoding."""
    order, settings = run if isinstance(run, Trace) else run.order, run.settings
    given = [
        ("pair", order.pair),
        ("drafter", order.drafter),
        ("precision", run.machine.precision if run.machine else ""),
        ("K", str(settings.k)),
        ("temperature", f"{settings.temperature:g}"),
        ("seed", str(settings.seed)),
    ]
    if settings.top_p < 1:
        given.append(("top-p", f"{settings.top_p:g}"))
    if settings.top_k:
        given.append(("top-k", str(settings.top_k)))
    return given
