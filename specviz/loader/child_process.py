"""How long work tells its progress and is stopped, and how it runs in a child process that can be killed.

Knows nothing of models: a child prints lines, some of which are messages in JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specviz.errors import FetchError

_MARK = "specviz-message "
_RATE_SECONDS = 3.0
_SENDING = threading.Lock()


@dataclass(frozen=True)
class Progress:
    """How far a fetch has come. Bytes are counted, speed and time left are measured over the last seconds."""

    stage: str
    """What is being done, in words fit for the screen."""
    done_bytes: int = 0
    total_bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    fraction: float | None = None
    """0..1 of this stage; None where it is not known."""


class Stopped(FetchError):
    """The person stopped the work; nothing half-written is left behind."""


class Job:
    """One piece of work: tells how far it is, and raises Stopped when it should end."""

    def __init__(self, progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None):
        self._progress = progress
        self._stop = stop
        self._stage = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._told = 0.0

    def check(self) -> None:
        """Raises Stopped if the person wants the work to end."""
        if self._stop is not None and self._stop():
            raise Stopped("The fetch was stopped. Start it again when you like.")

    def tell(self, stage: str, done: int = 0, total: int | None = None, fraction: float | None = None) -> None:
        """Report a stage and its bytes; at most ten reports a second go out, and the first and last always do."""
        self.check()
        now = time.monotonic()
        if stage != self._stage:
            self._stage = stage
            self._seen.clear()
        elif now - self._told < 0.1 and done != total:
            return
        self._told = now
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_SECONDS:
            self._seen.popleft()
        (start, before), rate = self._seen[0], None
        if now > start and done > before:
            rate = (done - before) / (now - start)
        left = max(0, total - done) / rate if rate and total is not None else None
        if fraction is None and total:
            fraction = min(1.0, done / total)
        if self._progress is not None:
            self._progress(Progress(stage, done, total, rate, left, fraction))


@contextlib.contextmanager
def lines_of(command: list[str], environment: dict[str, str], job: Job) -> Iterator[Iterator[str | int]]:
    """A running command: the lines that it prints, as they come, then its exit code.

    Asks ten times a second whether the job is stopped; the command is killed when the context is left early.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise FetchError(f"Python cannot start another Python ({error.strerror or error}).") from None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read(output: IO[str]) -> None:
        with output:
            for line in output:
                lines.put(line.rstrip())
        lines.put(None)

    reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()

    def come() -> Iterator[str | int]:
        while True:
            job.check()
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                break
            yield line
        yield process.wait()

    try:
        yield come()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(timeout=1.0)


def run_child(module: str, arguments: list[str], job: Job, on_message: Callable[[dict], None]) -> dict:
    """Run `python -m module arguments` and pass its messages on; returns the last, which carries `result`.

    A message with `error` becomes a FetchError with that sentence; so does a child that dies.
    """
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    environment = os.environ | {"PYTHONPATH": search, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    other: deque[str] = deque(maxlen=20)
    result, code = None, None
    with lines_of([sys.executable, "-m", module, *arguments], environment, job) as lines:
        for line in lines:
            if isinstance(line, int):
                code = line
            elif line.startswith(_MARK):
                message = json.loads(line[len(_MARK) :])
                if "error" in message:
                    raise FetchError(message["error"])
                if "result" in message:
                    result = message
                on_message(message)
            elif line.strip():
                other.append(line.strip())
    if code in (-9, 137):
        raise FetchError("The system ended the work, most likely for lack of memory: close other programs, try again.")
    if code != 0 or result is None:
        raise FetchError(f"The work ended early (exit code {code}): {other[-1][:200] if other else 'no reason given'}.")
    return result


def send(**message) -> None:
    """In a child: one message to the parent, whole even if threads send at once. A parent gone ends the child."""
    try:
        with _SENDING:
            print(_MARK + json.dumps(message), flush=True)
    except OSError:
        os._exit(1)
