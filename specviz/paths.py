"""Paths of shipped assets and of the cache folder, and the atomic write of a file."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from specviz.errors import SpecVizError

ASSETS = Path(__file__).resolve().parents[1] / "assets"
"""What ships with the code: components, recorded traces, trained drafters, the toy pair."""


def home() -> Path:
    """The folder for fetched weights and measured facts, created on demand.

    $SPECVIZ_HOME if set, otherwise `specviz` in the user's cache folder. Raises SpecVizError if it cannot
    be made or written to.
    """
    folder = _home_path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise SpecVizError(
            f"The cache folder {folder} cannot be made ({error.strerror or error}): "
            "set SPECVIZ_HOME to a folder that you may write to."
        ) from None
    if not writable:
        raise SpecVizError(
            f"The cache folder {folder} is not writable: set SPECVIZ_HOME to a folder that you may write to."
        )
    return folder


def models() -> Path:
    """The folder inside `home()` for converted weights, one folder a model; created on demand."""
    folder = home() / "models"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecVizError(f"The folder {folder} cannot be made ({error.strerror or error}).") from None
    return folder


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all; missing parent folders are created.

    `write` is called with the path of a temporary file beside `path` and fills it. The file is then flushed to disk and
    renamed. If anything fails, `path` keeps its old content, and the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private; this one gets a new file's permissions
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's file mode mask. It can be read only by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _home_path() -> Path:
    if chosen := os.environ.get("SPECVIZ_HOME", "").strip():
        return Path(chosen).expanduser().absolute()
    try:
        if sys.platform == "win32":
            base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise SpecVizError("This account has no home folder: set SPECVIZ_HOME to a folder you may write to.") from None
    return Path(base).absolute() / "specviz"
