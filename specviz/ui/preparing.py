"""Fetches and loads the embedded pair in the background, once per server, while a recorded run is on screen."""

from __future__ import annotations

import streamlit as st

from specviz.loader.local_copy import fetched
from specviz.loader.pairs import EMBEDDED, find_pair
from specviz.worker import Worker


class Preparation(Worker):
    """One attempt to fetch and load the embedded target. It continues when no page is open."""

    keeps = False

    def __init__(self) -> None:
        super().__init__()
        self.source = find_pair(EMBEDDED).target
        self.was_here = fetched(self.source) is not None
        self.start(watched=False)

    def work(self) -> None:
        """Raises SpecVizError with a sentence."""
        from specviz.engine.model_store import STORE

        STORE.open(self.source, "auto", "auto", self)
        self.report("Ready", 1.0)


@st.cache_resource
def _holder() -> dict[str, Preparation]:
    return {}


def show() -> None:
    """Start the preparation if there is none yet, and show its progress until it is complete."""
    holder = _holder()
    if "now" not in holder:
        holder["now"] = Preparation()
    preparation = holder["now"]
    if preparation.status != "complete" and not (preparation.alive and preparation.was_here):
        st.fragment(_status, run_every=0.5 if preparation.alive else None)(preparation, holder)


def _status(preparation: Preparation, holder: dict[str, Preparation]) -> None:
    left, right = st.columns([6, 1], vertical_alignment="center")
    if preparation.alive:
        progress = preparation.progress
        left.progress(progress.fraction, f"Fetching the embedded pair: {progress.text}")
        if right.button("Stop", key="stop-fetch"):
            preparation.stop()
    elif preparation.status == "complete":
        st.rerun()
    else:
        left.warning(preparation.error or "The fetch was stopped. Start it again when you like.")
        if right.button("Fetch again", key="fetch-again"):
            holder["now"] = Preparation()
            st.rerun()
