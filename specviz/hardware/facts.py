"""Measured facts of this machine, kept in one JSON file so that they are measured once.

A fact is a JSON object under a kind ('ceilings', 'steps', ...) and a key. A file that is missing, damaged or of
another version counts as empty: its facts are simply measured again.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from specviz import paths
from specviz.errors import SpecVizError
from specviz.trace.files import write_atomically

VERSION = 1
_LOCK = threading.Lock()


def file() -> Path:
    """Where the facts are kept."""
    return paths.home() / "machine.json"


def read(kind: str, key: str) -> dict | None:
    """The fact, or None."""
    fact = _all().get(kind, {}).get(key)
    return fact if isinstance(fact, dict) else None


def write(kind: str, key: str, fact: dict) -> bool:
    """Keep a fact, beside those that are there. False if the folder cannot be written: then it is not kept."""
    with _LOCK:
        facts = _all()
        facts.setdefault(kind, {})[key] = fact
        text = json.dumps({"version": VERSION, "facts": facts}, indent=1, allow_nan=False)
        try:
            write_atomically(file(), text.encode())
        except (OSError, SpecVizError):
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
