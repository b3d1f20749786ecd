"""Progress on stderr for commands that take long, and Ctrl-C, which stops the work after its current step."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator

from specviz.errors import SpecVizError
from specviz.worker import Job, Progress, Watched, Worker

INTERRUPTED = 130
"""Exit code: stopped by Ctrl-C."""
_REPEAT_SECONDS = 10.0
"""Where stderr is not a terminal, one stage is printed again after this long."""


class Line:
    """One line that is rewritten on a terminal; elsewhere a line per stage."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = self._kind = ""
        self._at = 0.0

    def show(self, progress: Progress) -> None:
        """Print the stage, how much is done, and the time left. Stages that differ only after the first colon or in
        their numbers count as one."""
        text, now = _text(progress), time.monotonic()
        kind = re.sub(r"\d+", "#", progress.stage.partition(":")[0])
        if self._terminal:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)
            self._shown = text
        elif text != self._shown and (kind != self._kind or now - self._at > _REPEAT_SECONDS):
            print(text, file=sys.stderr, flush=True)
            self._shown, self._kind, self._at = text, kind, now

    def end(self) -> None:
        """Clear the line."""
        if self._terminal and self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _text(progress: Progress) -> str:
    """The progress in words, with the share that is done, since a terminal has no bar."""
    share = "" if progress.total_bytes or not progress.fraction else f" ({progress.fraction:.0%})"
    return progress.stage + share + progress.details


@contextlib.contextmanager
def reporting() -> Iterator[Job]:
    """A job for work in this thread; its progress is shown on stderr."""
    line = Line()
    try:
        yield Job(line.show)
    finally:
        line.end()


def watch(job: Watched) -> int:
    """Start a job and show its progress until it ends. Returns 0, or INTERRUPTED after Ctrl-C."""
    line, code = Line(), 0
    job.start(watched=False)
    while job.alive:
        try:
            line.show(job.progress)
            job.join(0.2)
        except KeyboardInterrupt:
            if code:  # pressed again: do not wait for the current step
                raise
            job.stop()
            code = INTERRUPTED
    job.join()
    line.end()
    return code


def finish(worker: Worker) -> int:
    """`watch` for a Worker. Raises SpecVizError with its sentence if it failed."""
    code = watch(worker)
    if worker.status == "failed":
        raise SpecVizError(worker.error or "It failed.")
    return code
