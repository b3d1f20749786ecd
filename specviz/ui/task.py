"""Background work on a page: a button that starts a measurement, its progress, Stop, and its result.

Work that is no longer watched (the tab was closed, another page was opened) stops by itself. Only one measurement runs
at a time in the whole server, since two would disturb each other's times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import streamlit as st

from specviz.errors import SpecVizError
from specviz.worker import Job, Task, Watched, Worker

POLL_SECONDS = 0.5
_ONE = threading.Lock()

Work = Callable[[Job], object]
"""A measurement: reports to a job and returns its result. Raises SpecVizError with a sentence."""


# ------------------------------------------------------------------------------------------ any work


def follow(job: Worker, stopped: str = "", more: Callable[[], None] | None = None, every: float = POLL_SECONDS) -> None:
    """Show a worker's progress while this page polls it, then its error, or `stopped` if it was stopped. `more` draws
    what is below. The page is drawn again when the work ends."""
    alive = job.alive
    st.fragment(_follow, run_every=every if alive else None)(job, alive, stopped, more)


def _follow(job: Worker, was_alive: bool, stopped: str, more: Callable[[], None] | None) -> None:
    job.poll()
    if was_alive and not job.alive:
        st.rerun()
    with st.container():  # one container, so that what is below never moves
        if job.alive:
            st.progress(job.progress.fraction, job.progress.text or "Starting")
        elif job.status == "failed":
            st.error(job.error)
        elif job.status == "stopped" and stopped:
            st.info(stopped)
    if more is not None:
        more()


def stop_button(job: Watched | None, key: str) -> None:
    """The Stop button of a job. Outside every fragment, so that a click interrupts the script."""
    clicked = st.button("Stop", icon=":material/stop:", disabled=job is None or not job.alive, key=key)
    if clicked and job is not None:
        job.stop()
        job.join(2.0)
        st.rerun()


# ------------------------------------------------------------------------------------------ measurements


class Measurement(Task[object]):
    """One measurement, in progress or waiting for another to end."""

    patience = 15.0

    def work(self) -> None:
        self.report("Waiting for another measurement to end")
        while not _ONE.acquire(timeout=0.2):
            self.check()
        try:
            self.report("Starting")
            super().work()
        except Exception as error:
            if isinstance(error, MemoryError) or ("memory" in str(error) and not isinstance(error, SpecVizError)):
                raise SpecVizError(
                    "Out of memory: lower the batch or the context, or choose a smaller model."
                ) from error
            raise
        finally:
            _ONE.release()


def button(
    key: str,
    label: str,
    work: Work,
    icon: str,
    help: str | None = None,
    primary: bool = False,
    disabled: bool = False,
    keep: Callable[[object], None] | None = None,
) -> None:
    """A button that starts `work`; while it runs, its progress and Stop are shown instead.

    The result goes to st.session_state[key], or to `keep(result)`.
    """
    task: Measurement | None = st.session_state.get(f"{key}-task")
    if task is not None and task.alive:
        st.fragment(_tick, run_every=POLL_SECONDS)(key, label)
        return
    if task is not None and task.status == "complete":
        del st.session_state[f"{key}-task"]
        (keep or (lambda result: st.session_state.__setitem__(key, result)))(task.result)
        st.rerun()  # sections above show the result too
    if st.button(
        label, key=f"{key}-button", icon=icon, help=help, type="primary" if primary else "secondary", disabled=disabled
    ):
        st.session_state[f"{key}-task"] = Measurement(work)
        st.rerun()
    if task is not None and task.status == "failed":
        st.error(task.error)
    elif task is not None and task.status == "stopped":
        st.info("Stopped: nothing was kept.")


def _tick(key: str, label: str) -> None:
    task: Measurement = st.session_state[f"{key}-task"]
    task.poll()
    if not task.alive:
        st.rerun()
    bar, stop = st.columns([6, 1], vertical_alignment="center")
    bar.progress(task.progress.fraction, f"{label}: {task.progress.text}")
    if stop.button("Stop", key=f"{key}-stop", icon=":material/stop:"):
        task.stop()
