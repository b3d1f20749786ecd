"""Long work in a thread that somebody watches: progress, stop, an error as a sentence, and an end when nobody looks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from specviz.errors import SpecVizError

_LOG = logging.getLogger(__name__)
ABANDONED_SECONDS = 5.0
"""Watched work that nobody has polled for this long stops itself."""


class Watched:
    """What runs in a thread for as long as somebody polls it. Subclasses do it all in `execute`, which never raises."""

    patience = 0.0
    """Seconds that it goes on unwatched beyond ABANDONED_SECONDS, where the page around it takes long to draw"""

    def __init__(self):
        self._halt = threading.Event()
        self._polled: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, watched: bool = True) -> Self:
        """Work in a thread. Whoever watches must `poll` at least every few seconds; watched False: nobody has to, since
        whoever waits ends together with this process, as the command line does."""
        self._polled = time.monotonic() if watched else None
        self._halt.clear()
        self._thread = threading.Thread(target=self.execute, daemon=True, name=f"specviz {type(self).__name__}")
        self._thread.start()
        return self

    def execute(self) -> Self:
        raise NotImplementedError

    def poll(self) -> None:
        """Somebody is still watching."""
        self._polled = time.monotonic()

    def stop(self) -> None:
        """End after the step that is under way; what was done is kept."""
        self._halt.set()

    def join(self, seconds: float | None = None) -> None:
        """Wait until the work has ended."""
        if self._thread:
            self._thread.join(seconds)

    def stopping(self) -> bool:
        """Whether to end now."""
        if self._polled is not None and time.monotonic() - self._polled > ABANDONED_SECONDS + self.patience:
            self._halt.set()
        return self._halt.is_set()


class Worker(Watched):
    """Subclasses do their work in `work`, ask `stopping` between steps and tell `stage` and `fraction`.

    status: new | running | complete | stopped | failed; `error` is one sentence, set when it failed.
    """

    keeps = True
    """Whether what was done before a failure is kept"""

    def __init__(self):
        super().__init__()
        self.status = "new"
        self.error: str | None = None
        self.stage = ""
        self.fraction = 0.0

    @property
    def alive(self) -> bool:
        return self.status == "running"

    def start(self, watched: bool = True) -> Self:
        self.status, self.error = "running", None
        return super().start(watched)

    def tell(self, stage: str, fraction: float | None = None) -> None:
        """What is being done, and how much of it all is done, 0..1."""
        self.stage = stage
        if fraction is not None:
            self.fraction = min(1.0, max(0.0, fraction))

    def execute(self) -> Self:
        """Do all of it, here and now. Never raises: what goes wrong is in `status` and `error`."""
        self.status = "running"
        try:
            self.work()
            self.status = "stopped" if self._halt.is_set() and self.fraction < 1 else "complete"
        except SpecVizError as error:
            self.status = "stopped" if self._halt.is_set() else "failed"
            self.error = None if self._halt.is_set() else str(error)
        except Exception as error:  # a defect: the person gets a sentence, the log gets the rest
            _LOG.exception("%s failed", type(self).__name__)
            kept = ": what was done so far is kept" if self.keeps else ""
            self.error = f"Something unexpected went wrong ({type(error).__name__}){kept}. The log says more."
            self.status = "failed"
        return self

    def work(self) -> None:
        raise NotImplementedError


class Task(Worker):
    """A function as a Worker, begun at once: work(tell, stop) -> `result`. tell(stage, fraction) says how far it is,
    stop() whether to end; it raises SpecVizError with a sentence."""

    keeps = False

    def __init__(self, work: Callable[[Callable[[str, float], None], Callable[[], bool]], object]):
        super().__init__()
        self.stage = "Starting"
        self.result: object = None
        self._work = work
        self.start()

    def work(self) -> None:
        self.result = self._work(self.tell, self.stopping)
        self.fraction = 1.0
