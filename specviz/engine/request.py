"""A request for a run: pair, drafter, prompt and settings, as plain data. Imports no torch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from specviz.trace.records import Settings


@dataclass(frozen=True)
class RunRequest:
    """One run. `rows` copies of one prompt, each with its own seed: settings.seed, seed + 1, ..."""

    pair: str
    drafter: str
    """A name that `drafter_names` lists, the path of a drafter's folder, or FILE.py:CLASS (see `code_permitted`)."""
    text: str
    settings: Settings = field(default_factory=Settings)
    _: KW_ONLY
    system: str | None = None
    raw: bool = False
    rows: int = 1
    device: str = "auto"
    precision: str = "auto"
