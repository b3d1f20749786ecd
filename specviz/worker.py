"""Long work: the `Job` that carries progress and stop, and the threads in which pages and the command line run it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

from specviz.errors import SpecVizError
from specviz.format import binary_bytes, si

_LOG = logging.getLogger(__name__)
ABANDONED_SECONDS = 5.0
"""Watched work that has not been polled for this long stops."""
_REPORT_SECONDS = 0.1
"""The least time between two calls of a job's `on_progress` within one stage."""

T = TypeVar("T")


class Stopped(SpecVizError):
    """The work was stopped on request; nothing half-written is left behind."""

    def __init__(self, sentence: str = "Stopped."):
        super().__init__(sentence)


@dataclass(frozen=True)
class Progress:
    """The state of a job at one moment."""

    stage: str = "Starting"
    """What is being done, in words for the screen."""
    fraction: float = 0.0
    """Share of the work that is done, 0..1."""
    done_bytes: int = 0
    total_bytes: int | None = None
    """Size of what is being downloaded or read; None where bytes are not counted."""
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    """Estimated from the speed so far; None where it is not known."""

    @property
    def text(self) -> str:
        """In words, e.g. `Downloading x: 40.1 MiB of 88.6 MiB, 12.0 MB/s, 4 s left`."""
        return self.stage + self.details

    @property
    def details(self) -> str:
        """What `text` says after the stage: bytes, speed and time left, as far as they are known."""
        text = ""
        if self.total_bytes:
            text += f": {binary_bytes(self.done_bytes)} of {binary_bytes(self.total_bytes)}"
            if self.bytes_per_second:
                text += f", {si(self.bytes_per_second, 'B/s')}"
        if self.seconds_left is not None and self.fraction < 1:
            left = self.seconds_left
            text += f", {left:.0f} s left" if left < 90 else f", {left / 60:.0f} min left"
        return text


class _Speed:
    """Growth per second of an amount over the last `window` seconds; None before `least` seconds were seen."""

    def __init__(self, window: float, least: float = 0.0):
        self._window, self._least = window, least
        self._seen: deque[tuple[float, float]] = deque()

    def restart(self) -> None:
        self._seen.clear()

    def add(self, now: float, amount: float) -> float | None:
        """The speed, this amount included. An amount that fell starts a new measurement."""
        if self._seen and amount < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, amount))
        while len(self._seen) > 2 and now - self._seen[0][0] > self._window:
            self._seen.popleft()
        start, before = self._seen[0]
        if amount <= before or now <= start or now - start < self._least:
            return None
        return (amount - before) / (now - start)


class Job:
    """Progress and stop of one piece of long work: functions that take long take one, report to it and `check` it.

    on_progress: called with each new Progress, at most ten times a second within a stage, and at its end.
    stop: returns True once the work should end.
    """

    def __init__(self, on_progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None):
        self._on_progress = on_progress
        self._stop = stop
        self._progress = Progress()
        self._reported = 0.0
        self._called = 0.0
        self._bytes = _Speed(3.0)
        self._fractions = _Speed(120.0, least=3.0)

    @property
    def progress(self) -> Progress:
        """The latest report; its seconds left run down between two reports."""
        at, reported = self._progress, self._reported
        if at.seconds_left is None:
            return at
        return replace(at, seconds_left=max(0.0, at.seconds_left - (time.monotonic() - reported)))

    def report(
        self, stage: str, fraction: float | None = None, done_bytes: int = 0, total_bytes: int | None = None
    ) -> None:
        """Set the stage and the share that is done, 0..1 (None: unchanged), or the bytes that are done of a total."""
        now, before = time.monotonic(), self._progress
        if stage != before.stage:
            self._bytes.restart()
        if fraction is None:
            fraction = done_bytes / total_bytes if total_bytes else before.fraction
        fraction = min(1.0, max(0.0, fraction))
        left = rate = None
        if total_bytes is not None:
            rate = self._bytes.add(now, done_bytes)
            left = max(0, total_bytes - done_bytes) / rate if rate else None
        elif speed := self._fractions.add(now, fraction):
            left = (1 - fraction) / speed
        self._progress, self._reported = Progress(stage, fraction, done_bytes, total_bytes, rate, left), now
        ended = fraction == 1.0 and before.fraction < 1.0
        if self._on_progress and (stage != before.stage or ended or now - self._called >= _REPORT_SECONDS):
            self._called = now
            self._on_progress(self._progress)

    def stopping(self) -> bool:
        """Whether the work should end now."""
        return self._stop is not None and self._stop()

    def check(self) -> None:
        """Raises Stopped if the work should end now."""
        if self.stopping():
            raise Stopped

    def part(self, start: float, end: float, stage: str = "") -> Job:
        """A job for one part of this one, from `start` to `end` of its fraction; `stage` replaces the part's own."""

        def report(p: Progress) -> None:
            self.report(stage or p.stage, start + (end - start) * p.fraction, p.done_bytes, p.total_bytes)

        return Job(report, self.stopping)


class Watched(Job):
    """A job that runs in a thread while something polls it. Subclasses do the work in `execute`, which never raises."""

    patience = 0.0
    """Seconds without a poll beyond ABANDONED_SECONDS, for pages that take long to draw"""

    def __init__(self) -> None:
        super().__init__()
        self._halt = threading.Event()
        self._polled: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """Whether it is still at work."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, watched: bool = True) -> Self:
        """Begin the thread. watched: it must be polled every few seconds or it stops; False where the process itself
        waits for it, as the command line does."""
        self._polled = time.monotonic() if watched else None
        self._halt.clear()
        self._thread = threading.Thread(target=self.execute, daemon=True, name=f"specviz {type(self).__name__}")
        self._thread.start()
        return self

    def execute(self) -> Self:
        """Do all of the work in this thread."""
        raise NotImplementedError

    def poll(self) -> None:
        """Keep the work going: it is still being watched."""
        self._polled = time.monotonic()

    def stop(self) -> None:
        """End after the current step; finished steps are kept."""
        self._halt.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the work has ended."""
        if self._thread:
            self._thread.join(seconds)

    def stopping(self) -> bool:
        """Whether `stop` was called, or nothing has polled for too long."""
        if self._polled is not None and time.monotonic() - self._polled > ABANDONED_SECONDS + self.patience:
            self._halt.set()
        return self._halt.is_set()


class Worker(Watched):
    """A watched job with a status. Subclasses do the work in `work`: they `report`, and `check` between steps.

    status: new | running | complete | stopped | failed; `error` is one sentence, set when it failed.
    """

    keeps = True
    """Whether results from before a failure are kept"""

    def __init__(self) -> None:
        super().__init__()
        self.status = "new"
        self.error: str | None = None

    @property
    def alive(self) -> bool:
        return self.status == "running"

    def start(self, watched: bool = True) -> Self:
        self.status, self.error = "running", None
        return super().start(watched)

    def execute(self) -> Self:
        """Do all of the work in this thread. Never raises: `status` and `error` say how it ended."""
        self.status = "running"
        try:
            self.work()
            self.status = "stopped" if self._halt.is_set() and self.progress.fraction < 1 else "complete"
        except SpecVizError as error:
            self.status = "stopped" if self._halt.is_set() else "failed"
            self.error = None if self._halt.is_set() else str(error)
        except Exception as error:  # a defect: one sentence on screen, the traceback in the log
            _LOG.exception("%s failed", type(self).__name__)
            kept = ": what was done so far is kept" if self.keeps else ""
            self.error = f"Something unexpected went wrong ({type(error).__name__}){kept}. The log says more."
            self.status = "failed"
        return self

    def work(self) -> None:
        """The work itself. Raises SpecVizError with a sentence."""
        raise NotImplementedError


class Task(Worker, Generic[T]):
    """A function that takes a Job, started at once in a thread; its return value is `result`."""

    keeps = False

    def __init__(self, function: Callable[[Job], T]):
        super().__init__()
        self.result: T | None = None
        self._function = function
        self.start()

    def work(self) -> None:
        self.result = self._function(self)
        self.report(self.progress.stage, 1.0)
