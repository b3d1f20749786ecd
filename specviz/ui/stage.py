"""The session's run on screen: progress, player, and its error if it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from specviz.engine.request import RunRequest
from specviz.errors import SpecVizError
from specviz.trace.records import Trace
from specviz.ui import recorded, task
from specviz.ui.chart import plain
from specviz.ui.player_component import player

if TYPE_CHECKING:
    from specviz.engine.run import Run

POLL_SECONDS = 0.35


def current() -> Run | None:
    """The session's latest run."""
    return st.session_state.get("run")


def start(order: RunRequest) -> None:
    """Stop the session's run and start another."""
    from specviz.engine.run import Run  # imports torch: only once something is to be run

    if (before := current()) is not None:
        before.stop()
    try:
        st.session_state["run"] = Run(order).start()
    except SpecVizError as error:  # the order cannot be run
        st.session_state["refused"] = str(error)
        return
    st.session_state.pop("refused", None)
    st.session_state.pop("opened", None)


def buttons(order: RunRequest | None) -> None:
    """The Run and Stop buttons. Outside every fragment, so that a click interrupts the script."""
    run = current()
    with st.container(horizontal=True, vertical_alignment="center"):
        clicked = st.button(
            "Run again" if run else "Run",
            type="primary",
            icon=":material/play_arrow:",
            key="run-button",
            disabled=order is None,
            help="Decode this prompt on this machine",
        )
        if clicked and order is not None:
            start(order)
            st.rerun()
        task.stop_button(run, "stop-button")


def shown_trace() -> Trace | None:
    """The finished run on screen: an opened file, the session's own, or a recorded one."""
    if (opened := st.session_state.get("opened")) is not None:
        return opened
    run = current()
    if run is not None:
        if run.trace is not None:
            return run.trace
        if run.rounds or run.status == "running":
            return None
    paths = recorded.shipped()
    return recorded.load(paths[0]) if paths else None


def show() -> None:
    """The stage: polls the run about three times a second while it is alive."""
    run = current()
    alive = run is not None and run.alive
    st.fragment(_tick, run_every=POLL_SECONDS if alive else None)(alive)


def _tick(was_alive: bool) -> None:
    run = current()
    # The status has its own container, so that the player below never moves and is never mounted again.
    with st.container():
        if refused := st.session_state.get("refused"):
            st.error(refused)
        if run is not None:
            run.poll()
            if was_alive and not run.alive:
                st.rerun()
            _status(run)
    opened = st.session_state.get("opened")
    if run is not None and run.status == "running" and opened is None:
        player(run, key="player", run_id=run.id, streaming=True, meta=recorded.facts(run))
        note = run.note
    elif (trace := shown_trace()) is not None:
        own = run is not None and trace is run.trace
        player(
            trace,
            key="player",
            run_id=run.id if run is not None and own else f"{trace.recorded_at} {trace.drafter}",
            recorded=None if own else recorded.label(trace),
            meta=recorded.facts(trace),
            autoplay=not own,
        )
        note = trace.note
    else:
        st.info("Nothing to show yet: press Run.")
        return
    if note:
        st.caption(plain(note))


def _status(run: Run) -> None:
    if run.status == "loading":
        st.progress(run.progress.fraction, run.progress.text)
    elif run.status == "failed":
        st.error(run.error)
    elif run.status == "stopped" and not run.rounds:
        st.info("Stopped before the first round. Run starts it again.")
