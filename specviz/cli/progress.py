"""Long work on the command line: its progress on stderr, and Ctrl-C, which ends it after the step under way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from specviz.errors import SpecVizError
from specviz.worker import Watched, Worker

INTERRUPTED = 130
"""Exit code: stopped by Ctrl-C."""
_QUIET_SECONDS = 10.0
"""How often one stage of progress is told again where stderr is no terminal."""


class Line:
    """Progress on stderr: one line that is rewritten on a terminal, a line per stage where it is kept in a file."""

    def __init__(self):
        self._terminal = sys.stderr.isatty()
        self._shown = ""
        self._at = 0.0

    def show(self, text: str) -> None:
        """What is being done now. Its stage is what stands before the first colon."""
        now = time.monotonic()
        if self._terminal:
            print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)
            self._shown = text
        elif text.partition(":")[0] != self._shown.partition(":")[0] or now - self._at > _QUIET_SECONDS:
            if text != self._shown:
                print(text, file=sys.stderr, flush=True)
            self._shown, self._at = text, now

    def end(self) -> None:
        """Clear the line."""
        if self._terminal and self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def watch(job: Watched, words: Callable[[], str]) -> int:
    """Start it and stay to its end; `words` says how far it is. Returns 0, or INTERRUPTED after Ctrl-C."""
    line, code = Line(), 0
    job.start(watched=False)
    while job.alive:
        try:
            line.show(words())
            job.join(0.2)
        except KeyboardInterrupt:
            if code:  # pressed again: do not wait for the step that is under way
                raise
            job.stop()
            code = INTERRUPTED
    job.join()
    line.end()
    return code


def finish(worker: Worker) -> int:
    """`watch` for a Worker, which tells its own stages. Raises SpecVizError with its sentence if it failed."""
    code = watch(worker, lambda: f"{worker.stage or 'Starting'} ({worker.fraction:.0%})")
    if worker.status == "failed":
        raise SpecVizError(worker.error or "It failed.")
    return code
