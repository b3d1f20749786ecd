"""Step times of a loaded model: plain, verify at each K, and prefill passes at any batch and context.

The tokens are random: time and FLOPs of a pass do not depend on them. A draft step is the plain step of the drafter's
own model. `by_width` also times the matrix products alone, and the same modules with tiny matrices (dispatch).
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specviz.errors import MemoryBudgetError, SettingsError
from specviz.hardware.costs import pass_cost
from specviz.hardware.machine import Timer
from specviz.hardware.memory import free_memory_bytes
from specviz.hardware.roofline import Explained, Point, explained, point
from specviz.models.causal import CausalModel
from specviz.trace.records import Ceilings, Cost
from specviz.worker import Job

LARGEST_BATCH = 256
LARGEST_POSITIONS = 4096


@dataclass(frozen=True, kw_only=True)
class Step:
    """Measured time of one kind of pass."""

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
    model: CausalModel,
    ks: Sequence[int],
    batches: Sequence[int],
    context: int = 128,
    repeats: int = 5,
    kind: str = "verify",
    prefill: bool = True,
    job: Job | None = None,
) -> list[Step]:
    """Time passes of a CausalModel; a plain step (K = 0) of each batch is always included.

    `kind`: the kind of passes with K > 0; a plain pass is 'plain', or 'draft' if that is the kind. Passes of different
    K are repeated in turn, so that a disturbance affects all of them. Raises SettingsError for sizes out of range,
    MemoryBudgetError if the cache would not fit, Stopped.
    """
    _check(model, ks, batches, context)
    ks = sorted({0, *ks})
    job = job or Job()
    found: list[Step] = []
    sizes = sorted(set(batches))
    for i, batch in enumerate(sizes):
        timed = _TimedBatch(model, batch, context, ks[-1])
        if context:
            spent = timed.prefill(min(repeats, 3) + 1 if prefill else 1, job)
            if prefill:
                cost = pass_cost(model.shape, [context] * batch, [0] * batch, 0)
                found.append(_step("prefill", 0, batch, context, cost, spent[1:]))
        times = timed.passes(ks, repeats + 1, job.part(0.99 * i / len(sizes), 0.99 * (i + 1) / len(sizes)))
        for k in ks:
            cost = pass_cost(model.shape, [k + 1] * batch, [context] * batch, batch * (k + 1))
            label = kind if k or kind == "draft" else "plain"
            found.append(_step(label, k, batch, context, cost, times[k][1:]))
    job.report("Measured", 1.0)
    return found


def _step(kind: str, k: int, batch: int, context: int, cost: Cost, times: Sequence[float]) -> Step:
    return Step(
        kind=kind,
        k=k,
        batch=batch,
        context=context,
        cost=cost,
        seconds=statistics.median(times),
        spread=(min(times), max(times)),
    )


class _TimedBatch:
    """Rows of random tokens with a cache, and timed passes over them."""

    def __init__(self, model: CausalModel, batch: int, context: int, most_k: int):
        self.model, self.context, self.rows = model, context, list(range(batch))
        self.cache = model.new_cache()
        for row in self.rows:
            self.cache.add(row, context + most_k + 1)
        self.tokens = torch.randint(
            0, model.vocab_size, (batch, context + most_k + 1), generator=torch.Generator().manual_seed(0)
        ).tolist()
        self.timer = Timer(str(model.device))

    def prefill(self, repeats: int, job: Job) -> list[float]:
        """Seconds of each prefill of the context; the first one also allocates the cache."""
        names = [f"prefill {i}" for i in range(repeats)]
        for name in names:
            job.check()
            for row in self.rows:
                self.cache.truncate(row, 0)
            with self.timer.section(name):
                self.model.forward(self.cache, self.rows, [t[: self.context] for t in self.tokens], logits=False)
        return [self.timer.seconds(name) for name in names]

    def passes(self, ks: Sequence[int], repeats: int, job: Job) -> dict[int, list[float]]:
        """Seconds of `repeats` passes of K + 1 positions per row, by K; the first of each is the warm-up."""
        times: dict[int, list[float]] = {k: [] for k in ks}
        for repeat, k in itertools.product(range(repeats), ks):
            job.check()
            job.report(f"Batch {len(self.rows)}, K = {k}", sum(map(len, times.values())) / (repeats * len(ks)))
            name = f"{repeat} {k}"
            with self.timer.section(name):
                tokens = [t[self.context : self.context + k + 1] for t in self.tokens]
                self.model.forward(self.cache, self.rows, tokens)
            for row in self.rows:
                self.cache.truncate(row, self.context)
            times[k].append(self.timer.seconds(name))
        return times


@dataclass(frozen=True, kw_only=True)
class WidthStep:
    """Measured time of a pass over n positions of one row, and two measurements that explain it."""

    positions: int
    context: int
    cost: Cost
    seconds: float
    """The median of the repetitions."""
    spread: tuple[float, float]
    linear_seconds: float | None
    """The matrix products of such a pass alone: every linear layer and the head, on n rows of random numbers."""
    linear_cost: Cost
    dispatch_seconds: float | None
    """One pass of the same modules with tiny matrices: the time of launching operators. None: not supported."""


def by_width(
    model: CausalModel,
    widths: Sequence[int] = range(1, 33),
    context: int = 128,
    repeats: int = 3,
    job: Job | None = None,
) -> list[WidthStep]:
    """Time passes of one row over `widths` positions, their matrix products and dispatch. Raises as `measure` does."""
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
        steps_.append(
            WidthStep(
                positions=width,
                context=context,
                cost=step.cost,
                seconds=step.seconds,
                spread=step.spread,
                linear_seconds=seconds,
                linear_cost=cost,
                dispatch_seconds=dispatch,
            )
        )
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


def dispatch_seconds(model: CausalModel, context: int = 128, repeats: int = 15) -> float | None:
    """Seconds of a one-position pass through the same modules and layers with tiny matrices: the time of Python and of
    launching operators. None for an architecture without a small version."""
    config = model.config
    heads = getattr(config, "num_attention_heads", None)
    if not heads or getattr(config, "model_type", "") not in _CAN_BE_SMALL:
        return None
    from specviz.loader import load_model
    from specviz.loader.llama import Llama

    sizes = {"hidden_size": 8 * heads, "head_dim": 8, "intermediate_size": 16}
    if model.native_bits:  # the smallest sizes of the kernel
        sizes = {"hidden_size": 64, "head_dim": 64, "intermediate_size": 64} | dict.fromkeys(
            ("num_attention_heads", "num_key_value_heads"), 1
        )
    small = type(config).from_dict(config.to_dict() | sizes | {"vocab_size": 64, "pad_token_id": None})
    twin = Llama(small) if isinstance(model.module, Llama) else load_model.stock_like(small)
    for parameter in twin.parameters():
        torch.nn.init.constant_(parameter, 2**-7)
    small_model = CausalModel(twin.to(model.device, model.embedding.dtype), int4=model.native_bits == 4)
    return measure(small_model, [0], [1], context, repeats, prefill=False)[0].seconds


_CAN_BE_SMALL = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gpt_neox")


@torch.inference_mode()
def _time_products(model: CausalModel, rows: int, repeats: int) -> tuple[float | None, Cost]:
    """Median seconds and cost of all products by weights of a pass, on `rows` rows of random numbers."""
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
    weights = sum(layers) * shape.weight_bytes + head * (shape.head_bytes or shape.weight_bytes)
    activations = rows * sum(outputs + inputs for _, (outputs, inputs) in products) * shape.activation_bytes
    cost = Cost(2 * rows * (sum(layers) + head), round(weights + activations))
    return statistics.median(timer.seconds(str(r)) for r in range(1, repeats + 1)), cost


@dataclass(frozen=True)
class BusySearch:
    """The batch whose measured plain step is closest to a target busy share."""

    plain: Step
    verify: Step
    tried: tuple[Step, ...]
    """Every measured step, plain and verify."""
    reached: bool
    """False: even the largest batch stays below the target share."""


def find_busy(
    model: CausalModel,
    ceilings: Ceilings,
    target: float = 0.12,
    k: int = 4,
    context: int = 128,
    repeats: int = 5,
    largest: int = 64,
    job: Job | None = None,
) -> BusySearch:
    """Measure plain and verify steps at growing batches until a plain step is `target` busy; return the closest.

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
    """The draft model of an opened target: the pair's own, or the target's first layers; None if neither."""
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


def _check(model: CausalModel, ks: Sequence[int], batches: Sequence[int], context: int) -> None:
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
