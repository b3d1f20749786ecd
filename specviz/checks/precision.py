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
from specviz.loader.pairs import EMBEDDED
from specviz.training import corpus

if TYPE_CHECKING:
    from specviz.engine.run import Opened
    from specviz.models.causal import CausalModel

RECORDED = Path(__file__).resolve().parents[1] / "assets" / "precision.json"
"""The distances of the embedded target's precisions on CPUs, as they were measured."""
POSITIONS = 8
"""Positions of an answer that are forwarded in one pass, as many as a verify pass may have."""


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


def measure(
    reference: Opened, other: Opened, texts: int = 20, tell: Callable[[int], None] = lambda _: None
) -> Distance:
    """The embedded target opened in another precision against itself in fp32, along the held-out answers to which
    nothing was fitted (`texts` at most)."""
    variations, same = [], []
    for n, (part, i) in enumerate(corpus.judging()[:texts]):
        tokens, start = part.conversation(i).tolist(), int(part.answer_start[i])
        p, q = (_probabilities(opened.model, tokens, start - 1) for opened in (reference, other))
        variations += ((p - q).abs().sum(-1) / 2).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        tell(n + 1)
    return Distance(
        EMBEDDED,
        other.precision,
        float(np.mean(variations)),
        float(np.quantile(variations, 0.9)),
        max(variations),
        float(np.mean(same)),
        len(same),
        machine.device_name(other.device),
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _probabilities(model: CausalModel, tokens: list[int], start: int) -> torch.Tensor:
    """p [len(tokens) - start, V] after each token from `start` on, by passes of the widths that decoding has."""
    cache = model.new_cache()
    cache.add(0, len(tokens))
    if start:
        model.forward(cache, [0], [tokens[:start]], logits=False)
    logits = [
        model.forward(cache, [0], [tokens[i : i + POSITIONS]]).logits[0] for i in range(start, len(tokens), POSITIONS)
    ]
    return torch.softmax(torch.cat(logits).double(), -1)


def recorded() -> dict[str, Distance]:
    """What was recorded, by precision; empty if the file is not there or not of this form."""
    try:
        return {name: Distance(**fields) for name, fields in json.loads(RECORDED.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def record(found: Distance) -> None:
    """Keep it as the one of its precision."""
    kept = recorded() | {found.precision: found}
    words = json.dumps({name: asdict(kept[name]) for name in sorted(kept)}, indent=1)
    RECORDED.write_text(words + "\n", encoding="utf-8")


_HELD = {
    "int4": "The target's weights are held in that file's own bits (4, the head's 8), their inputs in 8 to 16",
    "bf16": "The target's layers multiply in bf16",
}


def sentence(pair: str, opened: Opened) -> str:
    """What a person should know of the precision that a pair's target runs in; "" where nothing is recorded."""
    known = recorded().get(opened.precision)
    if known is None or (known.pair, "cpu") != (pair, opened.device):
        return ""
    held = _HELD.get(known.precision, f"The target multiplies in {known.precision}")
    return (
        f"{held}, all else is fp32: total variation from fp32 "
        f"{known.total_variation:.1g} on average (recorded, {known.positions:,} positions)."
    )
