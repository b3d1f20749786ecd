"""Pass times of one target for the benchmark: ceilings, plain and verify passes at the same context."""

from __future__ import annotations

import statistics

from specviz.bench import step_times
from specviz.bench.paired_ratios import interval
from specviz.bench.systems import FULL
from specviz.engine.model_store import LoadedModel
from specviz.hardware import ceilings, machine, roofline

CONTEXT = 200


VERIFY = 6
"""Positions of the verify pass that is compared with a plain step (K = 5)."""


PADDED = (2, 4)
"""Padded sizes of a plain step, which may be faster than one position."""


def time_steps(target: LoadedModel, repeats: int) -> dict:
    """Ceilings, and median seconds of passes of 1, VERIFY and PADDED positions at the same context, in turn.

    The denominator of verify_over_decode is the fastest plain step: a padded pass of two or four positions where that
    is faster than a pass of one.
    """
    roofs = ceilings.measure(target.device, target.precision, quick=repeats < FULL.steps)
    model = target.model
    cache = model.new_cache()
    cache.add(0, CONTEXT + VERIFY)
    ids = [int(i) % model.vocab_size for i in range(5, 5 + CONTEXT + VERIFY)]
    model.forward(cache, [0], [ids[:CONTEXT]], logits=False)
    timer = machine.clock(target.device)
    seconds: dict[int, list[float]] = {n: [] for n in (1, *PADDED, VERIFY)}
    for repeat in range(repeats + 3):
        for size, kept in seconds.items():
            timer.reset()
            with timer.section("pass"):
                model.forward(cache, [0], [ids[CONTEXT : CONTEXT + size]])
            cache.truncate(0, CONTEXT)
            if repeat >= 3:
                kept.append(timer.seconds("pass"))
    by_width = {n: statistics.median(s) for n, s in seconds.items()}
    plain = by_width[1]
    fastest = min(s for n, s in by_width.items() if n != VERIFY)
    point = roofline.point("plain", roofline.step_cost(model.shape, 1, 0, CONTEXT), plain, roofs)
    return {
        "precision": target.precision,
        "verify_over_decode": by_width[VERIFY] / fastest,
        "limit_ratio": 1 / max(point.busy_fraction, point.stream_fraction),
        "bandwidth_share": point.stream_fraction,
        "overhead_fraction": point.overhead_fraction,
        "forward_seconds": {str(n): s for n, s in by_width.items()},
        "step_seconds": {str(n): s for n, s in by_width.items()},  # its older name
        "step_spread": {str(n): list(interval(s)) for n, s in seconds.items()},
        "ceilings": step_times.ceilings_json(roofs),
    }
