"""Proof on this run: the button that checks, on this machine, that drafts changed nothing in a run's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from specviz.trace.records import Trace
from specviz.ui import task
from specviz.worker import Task

if TYPE_CHECKING:  # imported on a click only: a page with this button does not wait for torch
    from specviz.checks.lossless import Finding
    from specviz.engine.run import Run

_LOOKS = {
    "lossless": (st.success, ":material/check:"),
    "differs": (st.error, ":material/error:"),
    "inconclusive": (st.warning, ":material/help:"),
}
_WORDS = {"lossless": "Nothing was lost.", "differs": "The two differ.", "inconclusive": "Inconclusive: no proof."}


def proof(run: Run | Trace, key: str = "proof") -> None:
    """The button, its progress and Stop, and the finding. run: a Trace or a Run; nothing is shown before its end.
    Decodes with the run's own pair, drafter, prompt and settings; missing weights are fetched."""
    trace = run if isinstance(run, Trace) else run.trace
    if trace is None or not trace.rounds:
        return
    st.subheader("Proof on this run")
    job: Task[Finding] | None = st.session_state.get(f"{key}-job")
    if st.session_state.get(f"{key}-of") != _id(trace):  # another run is on screen now
        if job is not None:
            job.stop()
        job = st.session_state[f"{key}-job"] = None
        st.session_state[f"{key}-of"] = _id(trace)
    samples = 0
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if trace.settings.temperature > 0:
            samples = st.select_slider(
                "Short runs each way", (100, 200, 400, 1000, 2000, 4000), 400, key=f"{key}-samples", width=320
            )
        alive = job is not None and job.alive
        if st.button("Prove it", icon=":material/verified:", key=f"{key}-go", disabled=alive, help=_help(trace)):
            from specviz.checks import lossless

            job = st.session_state[f"{key}-job"] = Task(lambda job: lossless.check_run(trace, samples, job=job))
            st.rerun()
        task.stop_button(job, f"{key}-stop")
    if job is None:
        st.caption(_help(trace))
        return
    task.follow(
        job,
        "Stopped before there was a result.",
        lambda: finding(job.result) if job.result is not None else None,
    )


def _id(trace: Trace) -> tuple:
    return trace.recorded_at, trace.pair, trace.drafter, trace.settings, trace.prompts[0].text


def _help(trace: Trace) -> str:
    if trace.settings.temperature > 0:
        return (
            "This run sampled its tokens, so counts are compared: many short runs from one prompt, half of them "
            "without drafts, and a chi-square test on their first tokens. All on this machine."
        )
    return "This run was greedy: on this machine its prompt is decoded without drafts and compared token by token."


def finding(found: Finding) -> None:
    """The verdict of a check and its figures. Green only if something was tested and passed."""
    look, icon = _LOOKS[found.verdict]
    sentences = " ".join(half.sentence for half in (found.greedy, found.sampling) if half is not None)
    look(f"**{_WORDS[found.verdict]}** {' '.join(filter(None, (sentences, found.fault)))}", icon=icon)
