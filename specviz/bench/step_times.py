"""Real steps of a loaded model, timed: plain, verify at each K, prefill, at any batch and context.

The tokens are random: the time and the arithmetic of a pass do not depend on what they say. Knows no drafting: a draft
step is the plain step of the drafter's own model. `by_width` also times what explains a pass: its matrix products
alone, and the same modules with next to nothing to compute.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.errors import MemoryBudgetError, SettingsError
from specviz.hardware.costs import pass_cost
from specviz.hardware.machine import Timer
from specviz.hardware.memory import free_memory_bytes
from specviz.hardware.roofline import Explained, Point, explained, point
from specviz.trace.records import Ceilings, Cost
from specviz.worker import Job

LARGEST_BATCH = 256
LARGEST_POSITIONS = 4096


@dataclass(frozen=True)
class Step:
    """One kind of pass, timed."""

    kind: str
    """plain, verify, draft or prefill"""
    k: int
    batch: int
    context: int
    cost: Cost
    seconds: float
    """The median of the repetitions."""
    spread: tuple[float, float]

    def point(self, ceilings: Ceilings) -> Point:
        """Where it lies on the roofline."""
        return point(self.kind, self.cost, self.seconds, ceilings)


def measure(
    model,
    ks: Sequence[int],
    batches: Sequence[int],
    context: int = 128,
    repeats: int = 5,
    kind: str = "verify",
    prefill: bool = True,
    job: Job | None = None,
) -> list[Step]:
    """Time passes of a CausalModel. A plain step (K = 0) of each batch is always there.

    `kind`: what passes with K > 0 are called; a plain pass is called 'plain', or 'draft' if that is the kind. Passes of
    different K are repeated in turn, so that a busy moment falls on all of them. Raises SettingsError for sizes out of
    range, MemoryBudgetError if the cache would not fit, Stopped.
    """
    _check(model, ks, batches, context)
    ks = sorted({0, *ks})
    job = job or Job()
    found: list[Step] = []
    total, done = len(batches) * (repeats + 2) * len(ks), 0
    for batch in sorted(set(batches)):
        rows = list(range(batch))
        cache = model.new_cache()
        for row in rows:
            cache.add(row, context + ks[-1] + 1)
        tokens = torch.randint(
            0, model.vocab_size, (batch, context + ks[-1] + 1), generator=torch.Generator().manual_seed(0)
        ).tolist()
        timer = Timer(str(model.device))
        if context:
            # the first pass also makes the cache and wakes the kernels; it is not counted
            names = [f"prefill {i}" for i in range(min(repeats, 3) + 1 if prefill else 1)]
            for name in names:
                job.check()
                for row in rows:
                    cache.truncate(row, 0)
                with timer.section(name):
                    model.forward(cache, rows, [t[:context] for t in tokens], logits=False)
            if prefill:
                spent = [timer.seconds(name) for name in names[1:]]
                cost = pass_cost(model.shape, [context] * batch, [0] * batch, 0)
                found.append(
                    Step("prefill", 0, batch, context, cost, statistics.median(spent), (min(spent), max(spent)))
                )
        times: dict[int, list[float]] = {k: [] for k in ks}
        for repeat in range(repeats + 1):
            for k in ks:
                job.check()
                done += 1
                job.report(f"Batch {batch}, K = {k}", min(0.99, done / total))
                name = f"{repeat} {k}"
                with timer.section(name):
                    model.forward(cache, rows, [t[context : context + k + 1] for t in tokens])
                for row in rows:
                    cache.truncate(row, context)
                if repeat:  # the first of each is the warm-up
                    times[k].append(timer.seconds(name))
        for k in ks:
            cost = pass_cost(model.shape, [k + 1] * batch, [context] * batch, batch * (k + 1))
            label = kind if k or kind == "draft" else "plain"
            found.append(
                Step(label, k, batch, context, cost, statistics.median(times[k]), (min(times[k]), max(times[k])))
            )
    job.report("Measured", 1.0)
    return found


@dataclass(frozen=True)
class WidthStep:
    """A pass over n positions of one row, timed, and two timings that explain it."""

    positions: int
    context: int
    cost: Cost
    seconds: float
    """The median of the repetitions."""
    spread: tuple[float, float]
    linear_seconds: float | None
    """The matrix products of such a pass alone: every linear layer and the head, on n rows of noise."""
    linear_cost: Cost
    dispatch_seconds: float | None
    """One pass of the same modules with tiny matrices: what launching the operators takes. None: no such twin."""


def by_width(
    model,
    widths: Sequence[int] = range(1, 33),
    context: int = 128,
    repeats: int = 3,
    job: Job | None = None,
) -> list[WidthStep]:
    """Time passes of one row over `widths` positions, and what explains them. Raises as `measure` does."""
    widths = sorted(set(widths))
    if not widths or widths[0] < 1:
        raise SettingsError("A pass has at least one position.")
    job = job or Job()
    job.report("Timing the modules with next to nothing to compute", 0.0)
    dispatch = dispatch_seconds(model, context, repeats=5 * repeats)
    found = measure(
        model,
        [w - 1 for w in widths],
        [1],
        context,
        repeats,
        prefill=False,
        job=job.part(0.0, 0.65, "Timing passes of each width"),
    )
    whole = {s.k + 1: s for s in found}
    steps_ = []
    for i, width in enumerate(widths):
        job.check()
        job.report("Timing the matrix products alone", 0.65 + 0.35 * i / len(widths))
        step = whole[width]
        seconds, cost = _time_products(model, width, repeats)
        steps_.append(WidthStep(width, context, step.cost, step.seconds, step.spread, seconds, cost, dispatch))
    job.report("Measured", 1.0)
    return steps_


UNSTEADY = 1.5


def spread_warning(timed: Sequence[Step | WidthStep]) -> str | None:
    """A sentence where repetitions of one pass typically differ by half or more; else None."""
    wide = statistics.median(s.spread[1] / s.spread[0] for s in timed) if timed else 1.0
    if wide < UNSTEADY:
        return None
    return (
        f"The slowest repetition of a pass took {wide:.1f} times as long as the fastest: the machine was busy with "
        "other work. Time it again when it is idle."
    )


def dispatch_seconds(model, context: int = 128, repeats: int = 15) -> float | None:
    """Seconds of a pass of one position through the same modules, as many layers, with tiny matrices: what Python and
    the launch of its operators take by themselves. None for an architecture that cannot be made small."""
    config = model.config
    heads = getattr(config, "num_attention_heads", None)
    if not heads or getattr(config, "model_type", "") not in _CAN_BE_SMALL:
        return None
    from specviz.loader import load_model
    from specviz.loader.llama import Llama
    from specviz.models.causal import CausalModel

    sizes = {"hidden_size": 8 * heads, "head_dim": 8, "intermediate_size": 16}
    if model.native_bits:  # as small as the kernel goes
        sizes = {"hidden_size": 64, "head_dim": 64, "intermediate_size": 64} | dict.fromkeys(
            ("num_attention_heads", "num_key_value_heads"), 1
        )
    small = type(config).from_dict(config.to_dict() | sizes | {"vocab_size": 64, "pad_token_id": None})
    twin = Llama(small) if isinstance(model.module, Llama) else load_model.stock_like(small)
    for parameter in twin.parameters():
        torch.nn.init.constant_(parameter, 2**-7)
    twin = CausalModel(twin.to(model.device, model.embedding.dtype), int4=model.native_bits == 4)
    found = measure(twin, [0], [1], context, repeats, prefill=False)
    return found[0].seconds


_CAN_BE_SMALL = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gpt_neox")


@torch.inference_mode()
def _time_products(model, rows: int, repeats: int) -> tuple[float | None, Cost]:
    """Median seconds of all products by weights, as a pass makes them, on `rows` rows of noise, and what they cost."""
    if not (products := model.products):
        return None, Cost(0, 0)
    device, dtype = str(model.device), model.dtype
    noise = {inputs: torch.randn(rows, inputs).to(model.device, dtype) for _, (_, inputs) in products}
    timer = Timer(device)
    for repeat in range(repeats + 1):
        with timer.section(str(repeat)):
            for product, (_, inputs) in products:
                product(noise[inputs])
    shape = model.shape
    *layers, head = (outputs * inputs for _, (outputs, inputs) in products)
    held = sum(layers) * shape.weight_bytes + head * (shape.head_bytes or shape.weight_bytes)
    through = rows * sum(outputs + inputs for _, (outputs, inputs) in products) * shape.activation_bytes
    cost = Cost(2 * rows * (sum(layers) + head), round(held + through))
    return statistics.median(timer.seconds(str(r)) for r in range(1, repeats + 1)), cost


@dataclass(frozen=True)
class BusySearch:
    """The batch whose plain step is closest to a wished busy share, found by running it."""

    plain: Step
    verify: Step
    tried: tuple[Step, ...]
    """Every step that was timed on the way, plain and verify."""
    reached: bool
    """False: even the largest batch that was tried stays below the wish; the largest is then given."""


def find_busy(
    model,
    ceilings: Ceilings,
    target: float = 0.12,
    k: int = 4,
    context: int = 128,
    repeats: int = 5,
    largest: int = 64,
    job: Job | None = None,
) -> BusySearch:
    """Run plain and verify steps at growing batches until a plain step is `target` busy; keep the closest.

    Busy is counted FLOPs over measured time, against the measured roof. Raises as `measure` does.
    """
    job = job or Job()
    tried: list[Step] = []
    batch, reached = 1, False
    while batch <= largest and not reached:
        done = min(0.99, batch / largest)
        part = job.part(done, done, f"Plain and verify steps of {batch} row{'s' if batch > 1 else ''}")
        tried += measure(model, [k], [batch], context, repeats, prefill=False, job=part)
        reached = tried[-2].point(ceilings).busy_fraction >= target
        batch += max(1, batch // 4)
    job.report("Measured", 1.0)
    plains = [s for s in tried if s.kind == "plain"]
    best = min(plains, key=lambda s: abs(s.point(ceilings).busy_fraction - target))
    verify = next(s for s in tried if s.kind == "verify" and s.batch == best.batch)
    return BusySearch(best, verify, tuple(tried), reached)


def draft_model(pair, target, store):
    """The model that drafts for an opened target: the pair's own, or the target's first layers; None if neither."""
    if pair.draft is not None:
        return store.open(pair.draft, target.device, target.precision).model
    if "first-layers" not in pair.drafters or target.model.layers < 2:
        return None
    from specviz.engine.drafter_factory import FIRST_LAYERS

    return store.first_layers(target, pair.target, min(FIRST_LAYERS, target.model.layers // 2))


def explain(step: WidthStep, ceilings: Ceilings) -> Explained:
    """Where the time of a timed width goes."""
    return explained(step.seconds, step.cost, ceilings, step.dispatch_seconds, step.linear_seconds, step.linear_cost)


def as_json(step: Step, ceilings: Ceilings) -> dict:
    """A measured step and its place on the roofline, as plain JSON values. `bound` is the roof that binds."""
    p = step.point(ceilings)
    return {
        "kind": step.kind,
        "k": step.k,
        "batch": step.batch,
        "context": step.context,
        "flops": p.flops,
        "bytes": p.bytes,
        "seconds": p.seconds,
        "forward_seconds": p.seconds,
        "spread": list(step.spread),
        "intensity": p.intensity,
        "bound": p.roof,
        "explained_by": p.bound,
        "busy_fraction": p.busy_fraction,
        "stream_fraction": p.stream_fraction,
        "overhead_fraction": p.overhead_fraction,
        "flagged": p.flagged,
    }


def width_json(step: WidthStep, ceilings: Ceilings) -> dict:
    """A timed width and its parts, as plain JSON values; `error` is of the model that counts roofs and dispatch."""
    parts = explain(step, ceilings)
    return {
        "positions": step.positions,
        "context": step.context,
        "seconds": step.seconds,
        "forward_seconds": step.seconds,
        "spread": list(step.spread),
        "flops": step.cost.flops,
        "bytes": step.cost.bytes,
        "linear_seconds": step.linear_seconds,
        **dataclasses.asdict(parts),
        "error": parts.error,
        "culprit": parts.culprit,
    }


def ceilings_json(ceilings: Ceilings) -> dict:
    """Measured roofs as plain JSON values, the ridge with them."""
    plain = dataclasses.asdict(ceilings)
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()} | {"ridge": ceilings.ridge}


def _check(model, ks: Sequence[int], batches: Sequence[int], context: int) -> None:
    if not ks or not batches or min(ks) < 0 or max(ks) > 64:
        raise SettingsError("K must be from 0 to 64, and at least one K and one batch are needed.")
    if min(batches) < 1 or max(batches) > LARGEST_BATCH:
        raise SettingsError(f"The batch must be from 1 to {LARGEST_BATCH}.")
    if max(batches) * (max(ks) + 1) > LARGEST_POSITIONS:
        raise SettingsError(
            f"A pass of {max(batches)} rows x {max(ks) + 1} positions is larger than the "
            f"{LARGEST_POSITIONS} that are measured here: lower K or the batch."
        )
    limit = model.max_positions
    if context < 0 or (limit is not None and context + max(ks) + 1 > limit):
        raise SettingsError(f"The context must be from 0 to {(limit or 0) - max(ks) - 1} for this model.")
    needed = max(batches) * (context + max(ks) + 1) * (model.shape.cache_bytes_per_token + 4 * model.vocab_size)
    free = free_memory_bytes(str(model.device))
    if needed > free / 2:
        raise MemoryBudgetError(
            f"Measuring {max(batches)} rows at a context of {context} needs about "
            f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: lower the batch, the "
            "context or K."
        )
