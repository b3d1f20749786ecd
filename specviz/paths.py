"""Where files lie: the assets that ship, and the cache folder for fetched weights and measured facts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specviz.errors import SpecVizError

ASSETS = Path(__file__).resolve().parents[1] / "assets"
"""What ships with the code: components, recorded traces, trained drafters, the toy pair."""


def home() -> Path:
    """The folder for fetched weights and measured facts, created on demand.

    $SPECVIZ_HOME if set, otherwise `specviz` in the user's cache folder. Raises SpecVizError if it cannot
    be made or written to.
    """
    folder = _wanted()
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
    """The folder inside `home()` that holds converted weights, one folder a model; created on demand."""
    folder = home() / "models"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise SpecVizError(f"The folder {folder} cannot be made ({error.strerror or error}).") from None
    return folder


def _wanted() -> Path:
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
