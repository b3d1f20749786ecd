"""Measurements in the background: a button that starts one, its progress, Stop, and what came out of it.

A measurement that nobody watches any more (the tab was closed, another page was opened) stops itself, and only one
runs at a time in the whole server: two would spoil each other's times.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import streamlit as st

from specviz.errors import SpecVizError

POLL_SECONDS = 0.4
ABANDONED_SECONDS = 20.0
_ONE = threading.Lock()
_LOG = logging.getLogger(__name__)

Work = Callable[[Callable[[float, str], None], Callable[[], bool]], object]
"""work(progress, stop) -> result; raises SpecVizError with a sentence."""


class Task:
    """One measurement under way. `state`: working | done | failed | stopped."""

    def __init__(self, work: Work):
        self.state, self.fraction, self.words = "working", 0.0, "Waiting for another measurement to end"
        self.result: object = None
        self.error = ""
        self._work, self._halt, self._polled = work, threading.Event(), time.monotonic()
        threading.Thread(target=self._run, daemon=True, name="specviz measurement").start()

    def poll(self) -> None:
        """Somebody is still watching."""
        self._polled = time.monotonic()

    def stop(self) -> None:
        """End at the next opportunity."""
        self._halt.set()

    def stopping(self) -> bool:
        """True once it should end: Stop was pressed, or nobody watches."""
        if time.monotonic() - self._polled > ABANDONED_SECONDS:
            self._halt.set()
        return self._halt.is_set()

    def _tell(self, fraction: float, words: str) -> None:
        self.fraction, self.words = min(1.0, max(0.0, fraction)), words

    def _run(self) -> None:
        while not _ONE.acquire(timeout=0.2):
            if self.stopping():
                self.state = "stopped"
                return
        self.words = "Starting"
        try:
            self.result = self._work(self._tell, self.stopping)
            self.state = "done"
        except SpecVizError as error:
            self.state, self.error = ("stopped", "") if self._halt.is_set() else ("failed", str(error))
        except Exception as error:  # a defect: the person gets a sentence, the log gets the rest
            _LOG.exception("a measurement failed")
            short = isinstance(error, MemoryError) or "memory" in str(error)
            self.error = ("The memory did not suffice: lower the batch or the context, or choose a smaller model."
                          if short else f"The measurement failed unexpectedly ({type(error).__name__}).")
            self.state = "failed"
        finally:
            _ONE.release()


def button(key: str, label: str, work: Work, icon: str, help: str | None = None, primary: bool = False,
           disabled: bool = False, keep: Callable[[object], None] | None = None) -> None:
    """A button that starts `work`; while it goes, its progress and Stop in its place.

    The result goes to st.session_state[key], or to `keep(result)`.
    """
    task: Task | None = st.session_state.get(f"{key}-task")
    if task is not None and task.state == "working":
        st.fragment(_tick, run_every=POLL_SECONDS)(key, label)
        return
    if task is not None and task.state == "done":
        del st.session_state[f"{key}-task"]
        (keep or (lambda result: st.session_state.__setitem__(key, result)))(task.result)
        st.rerun()  # what stands further up shows the result too
    if st.button(label, key=f"{key}-button", icon=icon, help=help, type="primary" if primary else "secondary",
                 disabled=disabled):
        st.session_state[f"{key}-task"] = Task(work)
        st.rerun()
    if task is not None and task.state == "failed":
        st.error(task.error)
    elif task is not None and task.state == "stopped":
        st.info("Stopped: nothing was kept.")


def _tick(key: str, label: str) -> None:
    task: Task = st.session_state[f"{key}-task"]
    task.poll()
    if task.state != "working":
        st.rerun()
    bar, stop = st.columns([6, 1], vertical_alignment="center")
    bar.progress(task.fraction, f"{label}: {task.words}")
    if stop.button("Stop", key=f"{key}-stop", icon=":material/stop:"):
        task.stop()
