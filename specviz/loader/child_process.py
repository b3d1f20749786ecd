"""Long work in a child process that can be killed: its output line by line, and messages in JSON between the two."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from specviz.errors import FetchError
from specviz.worker import Job

_MARK = "specviz-message "
_SENDING = threading.Lock()


@contextlib.contextmanager
def lines_of(command: list[str], environment: dict[str, str], job: Job) -> Iterator[Iterator[str | int]]:
    """Run a command and yield its output: each line as it is printed, then the exit code.

    Checks the job ten times a second (Stopped). The command is killed when the context is left early.
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

    def read(stream: IO[str]) -> None:
        with stream:
            for line in stream:
                lines.put(line.rstrip())
        lines.put(None)

    reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
    reader.start()

    def output() -> Iterator[str | int]:
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
        yield output()
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
    """In a child: send one message to the parent. Safe from several threads. Ends the child if the parent has ended."""
    try:
        with _SENDING:
            print(_MARK + json.dumps(message), flush=True)
    except OSError:
        os._exit(1)
