"""Finds the local folder of a source that was fetched before. Uses no network."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from specviz import paths
from specviz.errors import FetchError, SpecVizError
from specviz.loader import hub, model_folder
from specviz.loader.pairs import EMBEDDED, Source


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
    """The folder of a source, existing or not, and whether it is converted from a GGUF file. Raises FetchError."""
    if source.kind == "hub":
        return hub.cached(source), False
    if source.kind == "wheel":
        return paths.models() / source.name, True
    path = Path(source.path)
    if file := _gguf_of(path):
        return _converted(file), True
    return path, path.parent == paths.models() and path.name.startswith(("gguf-", EMBEDDED))


def _outdated(source: Source) -> Path | None:
    """The folder that an older version converted from a GGUF file, if there is one."""
    try:
        folder, converted = _place(source)
        if folder is None or not converted or not (folder / "config.json").is_file():
            return None
        return None if model_folder.is_current(folder) else folder
    except (SpecVizError, OSError, ValueError):
        return None


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
