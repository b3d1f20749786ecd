"""Cache of measurements of this machine (roofs, step times) in one JSON file, shared by all processes.

A fact is a JSON object under a kind ('ceilings', 'steps', ...) and a key. A file that is missing, damaged or of
another version counts as empty: its facts are simply measured again.
"""

from __future__ import annotations

import json
from pathlib import Path

from filelock import FileLock, Timeout

from specviz import paths
from specviz.errors import SpecVizError

VERSION = 1
_LOCK_SECONDS = 30
"""How long to wait for another process that is writing."""


def file() -> Path:
    """Path of the JSON file."""
    return paths.home() / "machine.json"


def read(kind: str, key: str) -> dict | None:
    """The measurement under `kind` and `key`, or None."""
    fact = _all().get(kind, {}).get(key)
    return fact if isinstance(fact, dict) else None


def write(kind: str, key: str, fact: dict) -> bool:
    """Add or replace one measurement, under a lock between processes. False if it could not be written."""
    try:
        path = file()
        with FileLock(path.with_name(path.name + ".lock"), timeout=_LOCK_SECONDS):
            facts = _all()
            facts.setdefault(kind, {})[key] = fact
            text = json.dumps({"version": VERSION, "facts": facts}, indent=1, allow_nan=False)
            paths.write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))
    except (OSError, SpecVizError, Timeout):
        return False
    return True


def _all() -> dict[str, dict]:
    try:
        content = json.loads(file().read_text())
    except (OSError, ValueError, RecursionError, SpecVizError):
        return {}
    if not isinstance(content, dict) or content.get("version") != VERSION:
        return {}
    facts = content.get("facts")
    return {k: v for k, v in facts.items() if isinstance(v, dict)} if isinstance(facts, dict) else {}
