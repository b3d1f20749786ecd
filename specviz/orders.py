"""What to run: an Order. Knows no torch, so that a page can be drawn before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, field

from specviz.models.pairs import Pair
from specviz.trace import Settings

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


@dataclass(frozen=True)
class Order:
    """What to run. `rows` copies of one prompt, each with its own seed: settings.seed, seed + 1, ..."""

    pair: str
    drafter: str
    text: str
    settings: Settings = field(default_factory=Settings)
    system: str | None = None
    raw: bool = False
    rows: int = 1
    device: str = "auto"
    precision: str = "auto"


def drafter_names(pair: Pair) -> tuple[str, ...]:
    """The drafters that a pair can run with here, the best first."""
    return pair.drafters
