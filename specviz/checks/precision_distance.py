"""Distance of a precision's distribution from fp32: total variation along texts of the target."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import numpy as np
import torch

from specviz.hardware import machine
from specviz.loader.pairs import EMBEDDED
from specviz.models.precision import Distance
from specviz.training import corpus
from specviz.worker import Job

if TYPE_CHECKING:
    from specviz.engine.model_store import LoadedModel
    from specviz.models.causal import CausalModel

POSITIONS = 8
"""Positions of an answer that are forwarded in one pass, as many as a verify pass may have."""


def measure(reference: LoadedModel, other: LoadedModel, texts: int = 20, job: Job | None = None) -> Distance:
    """The embedded target opened in another precision against itself in fp32, along the held-out answers to which
    nothing was fitted (`texts` at most)."""
    job, parts = job or Job(), corpus.judging()[:texts]
    variations, same = [], []
    for n, (part, i) in enumerate(parts):
        tokens, start = part.conversation(i).tolist(), int(part.answer_start[i])
        p, q = (_probabilities(opened.model, tokens, start - 1) for opened in (reference, other))
        variations += ((p - q).abs().sum(-1) / 2).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        job.report(f"{n + 1} of {len(parts)} texts", (n + 1) / len(parts))
        job.check()
    return Distance(
        pair=EMBEDDED,
        precision=other.precision,
        total_variation=float(np.mean(variations)),
        p90=float(np.quantile(variations, 0.9)),
        worst=max(variations),
        same_likeliest=float(np.mean(same)),
        positions=len(same),
        machine=machine.device_name(other.device),
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
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
