"""How far a precision moves a target's distribution from fp32: total variation on texts that the target wrote."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from specviz.hardware import machine
from specviz.models.pairs import EMBEDDED
from specviz.training import corpus

if TYPE_CHECKING:
    from specviz.models.causal import CausalModel
    from specviz.runs import Opened

RECORDED = Path(__file__).resolve().parents[1] / "assets" / "precision.json"
"""The distance of the embedded target's default precision on CPUs, as it was measured."""


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


def measure(reference: Opened, other: Opened, texts: int = 20,
            tell: Callable[[int], None] = lambda _: None) -> Distance:
    """The embedded target opened in another precision against itself in fp32, along the held-out answers to which
    nothing was fitted (`texts` at most)."""
    variations, same = [], []
    for n, (part, i) in enumerate(corpus.judging()[:texts]):
        tokens, start = part.conversation(i).tolist(), int(part.answer_start[i])
        p, q = (_probabilities(opened.model, tokens)[start - 1:] for opened in (reference, other))
        variations += ((p - q).abs().sum(-1) / 2).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        tell(n + 1)
    return Distance(
        EMBEDDED, other.precision, float(np.mean(variations)), float(np.quantile(variations, 0.9)), max(variations),
        float(np.mean(same)), len(same), machine.device_name(other.device),
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _probabilities(model: CausalModel, tokens: list[int]) -> torch.Tensor:
    cache = model.new_cache()
    cache.add(0, len(tokens))
    return torch.softmax(model.forward(cache, [0], [tokens]).logits[0].double(), -1)


def recorded() -> Distance | None:
    """What was recorded, or None if the file is not there or not of this form."""
    try:
        return Distance(**json.loads(RECORDED.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def record(found: Distance) -> None:
    """Make it the recorded one."""
    RECORDED.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")


def sentence(pair: str, opened: Opened) -> str:
    """What a person should know of the precision that a pair's target runs in; "" where nothing is recorded."""
    known = recorded()
    if known is None or (known.pair, known.precision, "cpu") != (pair, opened.precision, opened.device):
        return ""
    return (f"Its layers multiply in {known.precision}, all else is fp32: total variation from fp32 "
            f"{known.total_variation:.3f} on average (recorded, {known.positions:,} positions).")
