"""Benchmark of a model shape with random weights: pass times, and plain decoding against transformers."""

from __future__ import annotations

from typing import Any

import torch

from specviz.bench import peers
from specviz.bench.model_steps import CONTEXT, time_steps
from specviz.bench.paired_ratios import ratio
from specviz.bench.systems import FULL, Scale, System, decode_run
from specviz.engine.model_store import LoadedModel
from specviz.errors import SpecVizError
from specviz.hardware import machine, shapes
from specviz.loader.hub_config import hub_config
from specviz.loader.precision import resolve_precision
from specviz.models import random_weights
from specviz.worker import Job


def bench_shape(
    name: str, precision: str = "auto", device: str = "auto", scale: Scale = FULL, job: Job | None = None
) -> dict:
    """Pass times and plain decoding of a shape with random weights, against transformers on the same shape.

    The seconds of a pass do not depend on the values of the weights; the text is random. Raises SpecVizError.
    """
    job, device = job or Job(), machine.resolve_device(device)
    precision = resolve_precision(precision, device)
    config = shapes.CONFIGS.get(name) or hub_config(name)
    model = random_weights.build(config, device, precision, name, job.part(0.0, 0.0))
    target = LoadedModel(model, None, device, precision)
    job.report("Ceilings and steps")
    timed = time_steps(target, scale.steps)
    job.report("Plain decoding against transformers")
    stock: Any = random_weights.module(config, device, precision, name)
    stock.set_attn_implementation("sdpa")
    ours = System("specviz", "plain", precision, decode_run(target, lambda s: None, 0, frozenset()))
    peer = peers.Transformers(stock, device, precision, frozenset())
    theirs = System("transformers", "plain", precision, peer.runner(eos_token_id=None))
    groups = [[[(7 * i + j) % model.vocab_size for j in range(CONTEXT)]] for i in range(1 + scale.least)]
    for index, group in enumerate(groups):
        for system in (ours, theirs):
            system.measure(index, group, scale.tokens if index else 8)
    for system in (ours, theirs):  # the first of each was the warm-up
        del system.rates[0]
    lead = ratio(ours.rates, theirs.rates)
    if lead is None:
        raise SpecVizError("No text was long enough to be timed: decode more tokens.")
    return {
        "shape": name,
        "weights": "random",
        "machine": machine.device_name(device),
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "context": CONTEXT,
        "tokens": scale.tokens,
        "plain_tokens_per_second": ours.rate,
        "transformers_tokens_per_second": theirs.rate,
        "plain_vs_transformers_plain": lead.median,
        "intervals": {"plain_vs_transformers_plain": [lead.low, lead.high]},
        **timed,
        "notes": [model.graphs.note] if model.graphs else [],
    }
