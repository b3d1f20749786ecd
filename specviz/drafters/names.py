"""Drafter names: those that a pair can run with, paths of folders, and FILE.py:CLASS. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specviz.errors import PairError
from specviz.loader.pairs import EMBEDDED, Pair
from specviz.paths import ASSETS

TRAINED_FOLDER = ASSETS / "drafters"
TRAINED_KINDS = ("hybrid", "parallel", "autoregressive")
"""The drafters that were trained for the embedded target, the best first."""
LOOKUP_FIRST = "lookup+parallel"
"""The trained parallel drafter behind a prompt lookup."""


def trained(root: Path = TRAINED_FOLDER) -> dict[str, Path]:
    """The trained drafters whose files are there: kind to folder."""
    return {kind: root / kind for kind in TRAINED_KINDS if (root / kind / "model.safetensors").is_file()}


def drafter_names(pair: Pair) -> tuple[str, ...]:
    """The drafters that a pair can run with here, the best first."""
    if pair.name != EMBEDDED:
        return pair.drafters
    kinds = trained()
    return (*kinds, *([LOOKUP_FIRST] if "parallel" in kinds else []), *pair.drafters)


def is_folder(name: str) -> bool:
    """Whether a drafter's name is the path of a folder, whose files are weights and never code."""
    try:
        return Path(name).expanduser().is_dir() if name else False
    except (OSError, ValueError, RuntimeError):
        return False


def plugin_parts(name: str) -> tuple[Path, str] | None:
    """(file, class name) if a drafter's name has the form FILE.py:CLASS, else None."""
    match = re.fullmatch(r"(.+\.py):([^:/\\]*)", name, re.DOTALL)
    return (Path(match[1]).expanduser(), match[2]) if match else None


_code_permitted = False


@contextmanager
def code_permitted() -> Iterator[None]:
    """Within it FILE.py:CLASS may be loaded, which runs the code of that file. Only the command line enters it: the
    app never does, so that neither a link nor a trace that somebody sent can run code."""
    global _code_permitted
    before, _code_permitted = _code_permitted, True
    try:
        yield
    finally:
        _code_permitted = before


def check_drafter(pair: Pair, name: str) -> None:
    """Raises PairError with a sentence unless a run of this pair may use a drafter of this name. Opens no file."""
    if parts := plugin_parts(name):
        if not _code_permitted:
            raise PairError(
                "A drafter of the form FILE.py:CLASS runs the code of that file, so it is loaded from the "
                "command line only: python -m specviz run --drafter FILE.py:CLASS."
            )
        if not parts[0].is_file():
            raise PairError(f"There is no file {str(parts[0])[:200]}: write FILE.py:CLASS with the path of your file.")
        return
    if name not in drafter_names(pair) and not is_folder(name):
        looks_like_path = any(sign in name for sign in "/\\~.")
        start = (
            f"There is no drafter's folder {name[:200]}"
            if looks_like_path
            else f"{pair.title} has no drafter {name[:40]!r}"
        )
        raise PairError(
            f"{start}: choose one of {', '.join(drafter_names(pair))}, or name a folder with a drafter's weights."
        )
