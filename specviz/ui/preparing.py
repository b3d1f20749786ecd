"""Fetches and loads the embedded pair in the background, once per server, while a recorded run is on screen."""

from __future__ import annotations

import threading

import streamlit as st

from specviz.errors import SpecVizError
from specviz.format import gigabytes
from specviz.loader.fetch import Progress
from specviz.loader.local_copy import fetched
from specviz.loader.pairs import EMBEDDED, find_pair


class Preparation:
    """One attempt to have the embedded target ready. `state`: working | ready | failed | stopped."""

    def __init__(self):
        self.source = find_pair(EMBEDDED).target
        self.was_here = fetched(self.source) is not None
        self.state, self.error, self.progress = "working", "", Progress("Starting")
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="specviz preparation")
        self._thread.start()

    def stop(self) -> None:
        """End within a second."""
        self._halt.set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _tell(self, progress: Progress) -> None:
        self.progress = progress

    def _work(self) -> None:
        try:
            from specviz.engine.run import STORE  # imports torch: seconds, so not while a page is drawn

            STORE.open(self.source, "auto", "auto", self._tell, self._halt.is_set)
            self.state = "ready"
        except SpecVizError as error:
            self.state, self.error = ("stopped" if self._halt.is_set() else "failed"), str(error)
        except Exception as error:  # no sentence foreseen: the run itself will say more
            self.state, self.error = "failed", f"The embedded pair could not be prepared ({type(error).__name__})."


@st.cache_resource
def _holder() -> dict[str, Preparation]:
    return {}


def show() -> None:
    """Start the preparation if nobody has, and show how far it is until it is done."""
    holder = _holder()
    if "now" not in holder:
        holder["now"] = Preparation()
    preparation = holder["now"]
    if preparation.state != "ready" and not (preparation.state == "working" and preparation.was_here):
        st.fragment(_status, run_every=0.5 if preparation.state == "working" else None)(preparation, holder)


def _status(preparation: Preparation, holder: dict[str, Preparation]) -> None:
    if preparation.state == "working":
        bar, button = st.columns([6, 1], vertical_alignment="center")
        bar.progress(fraction(preparation.progress), f"Fetching the embedded pair: {words(preparation.progress)}")
        if button.button("Stop", key="stop-fetch"):
            preparation.stop()
    elif preparation.state == "ready":
        st.rerun()
    else:
        line, button = st.columns([6, 1], vertical_alignment="center")
        line.warning(preparation.error)
        if button.button("Fetch again", key="fetch-again"):
            holder["now"] = Preparation()
            st.rerun()


def fraction(progress: Progress) -> float:
    """How full the bar is, 0..1."""
    if progress.fraction is not None:
        return min(1.0, max(0.0, progress.fraction))
    if progress.total_bytes:
        return min(1.0, progress.done_bytes / progress.total_bytes)
    return 0.0


def words(progress: Progress) -> str:
    """Stage, size, speed and time left, as far as they are known."""
    parts = [progress.stage]
    if progress.total_bytes:
        parts.append(f"{gigabytes(progress.done_bytes)} of {gigabytes(progress.total_bytes)}")
    if progress.bytes_per_second:
        parts.append(f"{gigabytes(progress.bytes_per_second)}/s")
    if progress.seconds_left is not None:
        parts.append(f"{progress.seconds_left:.0f} s left")
    return ", ".join(parts)
