"""What to run: an Order. Knows no torch, so that a page can be drawn before anything heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specviz.models.pairs import EMBEDDED, Pair
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


TRAINED_FOLDER = Path(__file__).resolve().parents[1] / "assets" / "drafters"
TRAINED_KINDS = ("hybrid", "parallel", "autoregressive")
"""The drafters that were trained for the embedded target, the best first."""


def trained(root: Path = TRAINED_FOLDER) -> dict[str, Path]:
    """The trained drafters whose files are there: kind to folder."""
    return {kind: root / kind for kind in TRAINED_KINDS if (root / kind / "model.safetensors").is_file()}


def drafter_names(pair: Pair) -> tuple[str, ...]:
    """The drafters that a pair can run with here, the best first."""
    return (*trained(), *pair.drafters) if pair.name == EMBEDDED else pair.drafters
