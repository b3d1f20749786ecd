"""Recorded distances of precisions from fp32 (total variation of p), and the note shown with a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from specviz.paths import ASSETS, write_atomically

RECORDED = ASSETS / "precision.json"
"""The distances of the embedded target's precisions on CPUs, as they were measured."""


@dataclass(frozen=True)
class Distance:
    """Of p at temperature 1, position by position, along held-out answers."""

    pair: str
    precision: str
    total_variation: float
    """The mean of half the sum of |p - p in fp32|."""
    p90: float
    worst: float
    same_likeliest: float
    """Share of positions whose likeliest token is fp32's."""
    positions: int
    machine: str
    measured_at: str


def recorded() -> dict[str, Distance]:
    """What was recorded, by precision; empty if the file is not there or not of this form."""
    try:
        return {name: Distance(**fields) for name, fields in json.loads(RECORDED.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def record(found: Distance) -> None:
    """Keep it as the one of its precision."""
    kept = recorded() | {found.precision: found}
    text = json.dumps({name: asdict(kept[name]) for name in sorted(kept)}, indent=1) + "\n"
    write_atomically(RECORDED, lambda file: file.write_text(text, encoding="utf-8"))


_STORAGE = {
    "int4": "The target's weights are stored in that file's own bits (4, the head's 8), their inputs in 8 to 16",
    "bf16": "The target's layers multiply in bf16",
}


def sentence(pair: str, precision: str, device: str) -> str:
    """The note on the precision of a pair's target on a device; "" where no distance is recorded."""
    known = recorded().get(precision)
    if known is None or (known.pair, "cpu") != (pair, device):
        return ""
    storage = _STORAGE.get(known.precision, f"The target multiplies in {known.precision}")
    return (
        f"{storage}, all else is fp32: total variation from fp32 "
        f"{known.total_variation:.1g} on average (recorded, {known.positions:,} positions)."
    )
