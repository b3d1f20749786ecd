"""The roofline model: measured steps against the compute and memory limits of the device.

Pure arithmetic over Cost, seconds and Ceilings, without torch.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Literal

from specviz.errors import SettingsError
from specviz.hardware.costs import ModelShape, pass_cost
from specviz.trace.records import Baseline, Ceilings, Cost, Round

Kind = Literal["plain", "verify", "draft", "prefill"]
TOLERANCE = 0.02
"""How far above a roof a point may lie before it is flagged: the resolution of timers and medians."""


@dataclass(frozen=True)
class Point:
    """One step (or kind of step) on the roofline. The fractions are of the step's time, each in 0..1."""

    kind: str
    flops: int
    bytes: int
    seconds: float
    intensity: float
    """FLOPs per byte moved"""
    bound: Literal["memory", "compute", "overhead"]
    """What explains most of the time; overhead: neither roof explains half of it."""
    busy_fraction: float
    """Share of the time that the arithmetic would need at full throughput (hardware FLOPs utilization)."""
    stream_fraction: float
    """Share of the time that the memory traffic would need at full bandwidth (bandwidth utilization)."""
    overhead_fraction: float
    """Share that neither roof explains: launches, Python, and kernels that fall short of the roofs."""
    flagged: bool
    """True: the point lies above a roof, so the time, the count or the roof is wrong (often: a roof that was
    measured while the machine was busy). Its fractions are then limited to 1."""
    roof: Literal["memory", "compute"] = "memory"
    """Which roof stands above the point, by its intensity alone."""

    @property
    def throughput(self) -> float:
        """FLOPs per second reached."""
        return self.flops / self.seconds

    @property
    def bandwidth(self) -> float:
        """Bytes per second reached."""
        return self.bytes / self.seconds

    @property
    def warning(self) -> str | None:
        """A sentence for the screen if the point is flagged."""
        if not self.flagged:
            return None
        return (
            f"This {self.kind} step came out faster than the measured roof allows: measure the ceilings again on "
            "an idle machine."
        )


def point(kind: str, cost: Cost, seconds: float, ceilings: Ceilings) -> Point:
    """The roofline point of a step of `cost` that took `seconds`, under `ceilings`.

    Raises SettingsError for a time or a traffic that is not above 0: such a step has no place on the roofline.
    """
    if not (seconds > 0 and math.isfinite(seconds)) or cost.bytes <= 0 or cost.flops < 0:
        raise SettingsError(
            f"A {kind} step of {cost.flops} FLOPs, {cost.bytes} bytes and {seconds} s has no place on the roofline."
        )
    busy = cost.flops / ceilings.flops / seconds
    stream = cost.bytes / ceilings.bandwidth / seconds
    flagged = max(busy, stream) > 1 + TOLERANCE
    busy, stream = min(1.0, busy), min(1.0, stream)
    intensity = cost.flops / cost.bytes
    roof: Literal["memory", "compute"] = "memory" if intensity < ceilings.ridge else "compute"
    return Point(
        kind=kind,
        flops=cost.flops,
        bytes=cost.bytes,
        seconds=seconds,
        intensity=intensity,
        bound=roof if max(busy, stream) >= 0.5 else "overhead",
        busy_fraction=busy,
        stream_fraction=stream,
        overhead_fraction=max(0.0, 1 - max(busy, stream)),
        flagged=flagged,
        roof=roof,
    )


def round_points(round_: Round, baseline: Baseline, ceilings: Ceilings | None) -> dict[str, Point]:
    """The points of a round by kind: draft, verify, and plain (the baseline of the same run).

    A kind without a cost or a time (a lookup drafts without arithmetic) is left out; so are all without ceilings.
    """
    if ceilings is None:
        return {}
    steps = {"draft": (round_.draft_cost, round_.draft_seconds), "verify": (round_.target_cost, round_.verify_seconds)}
    if (seconds := plain_seconds(baseline)) is not None:
        steps["plain"] = (baseline.cost, seconds)
    return {
        kind: point(kind, cost, seconds, ceilings)
        for kind, (cost, seconds) in steps.items()
        if cost.bytes > 0 and seconds > 0
    }


def plain_seconds(baseline: Baseline) -> float | None:
    """The median forward time of those plain steps that had as many rows as the last, whose cost is known."""
    if not baseline.forward_seconds or not baseline.rows:
        return None
    alike = [s for s, rows in zip(baseline.forward_seconds, baseline.rows) if rows == baseline.rows[-1]]
    return statistics.median(alike) if alike else None


@dataclass(frozen=True)
class Utilization:
    """How well a round used the device; shares in 0..1."""

    model_flops: float
    """MFU: only the arithmetic of emitted tokens, over the whole round's time."""
    hardware_flops: float
    """HFU: all arithmetic that was executed, drafts and rejected positions included, over the same time."""
    model_bandwidth: float
    """MBU: what the target pass had to read and write, over the time of that pass; never by time per token, which
    would count one reading of the weights several times."""


def utilization(round_: Round, ceilings: Ceilings) -> Utilization:
    """The three utilizations of a round. Raises SettingsError for a round without time."""
    if not (round_.verify_seconds > 0 and round_.target_tokens > 0):
        raise SettingsError("A round without a timed target pass has no utilization.")
    useful = round_.target_cost.flops * sum(len(v.emitted) for v in round_.rows) / round_.target_tokens
    spent = round_.target_cost.flops + round_.draft_cost.flops
    shares = (
        useful / ceilings.flops / round_.seconds,
        spent / ceilings.flops / round_.seconds,
        round_.target_cost.bytes / ceilings.bandwidth / round_.verify_seconds,
    )
    return Utilization(*(min(1.0, share) for share in shares))


def modelled_seconds(cost: Cost, ceilings: Ceilings, overhead_seconds: float = 0.0) -> float:
    """The time that the roofs allow, traffic and arithmetic overlapping fully, plus a fixed overhead."""
    return max(cost.flops / ceilings.flops, cost.bytes / ceilings.bandwidth) + overhead_seconds


@dataclass(frozen=True)
class Explained:
    """The time of a measured pass in seconds, by cause. The parts add up to the measured time; `rest` is negative where
    the modelled time exceeds it."""

    roofs: float
    """What the slower roof allows: modelled."""
    dispatch: float
    """Python and the launch of operators: measured on the same modules with tiny matrices."""
    kernels: float
    """What the matrix products, measured alone, take beyond what the roofs allow them."""
    rest: float
    """Attention, norms, activations and all else."""

    @property
    def seconds(self) -> float:
        """The measured time."""
        return self.roofs + self.dispatch + self.kernels + self.rest

    @property
    def error(self) -> float:
        """How far the model (roofs and dispatch) is off the measured time: -0.25 is a quarter too short."""
        return (self.roofs + self.dispatch) / self.seconds - 1

    @property
    def culprit(self) -> str | None:
        """A sentence where the model is more than 25 % off; None where it is not."""
        if abs(self.error) <= LARGE_ERROR:
            return None
        if self.error > 0:
            return (
                "the pass was faster than the model says: the roofs were measured on a busier machine, or dispatch "
                "overlaps with arithmetic"
            )
        if self.kernels >= self.rest:
            return "matrix products of few rows do not reach the roofs"
        return "attention, norms and activations take more than their counted traffic"


LARGE_ERROR = 0.25


def explained(
    seconds: float,
    cost: Cost,
    ceilings: Ceilings,
    dispatch: float | None = None,
    linear_seconds: float | None = None,
    linear_cost: Cost | None = None,
) -> Explained:
    """Split the time of a measured pass. What was not measured (None) is part of the rest."""
    roofs = modelled_seconds(cost, ceilings)
    allowed = modelled_seconds(linear_cost, ceilings) if linear_cost else 0.0
    left = max(0.0, seconds - roofs - (dispatch or 0.0))
    # timed separately, the products may take longer than the whole pass: limited to the time that is left
    kernels = 0.0 if linear_seconds is None else min(left, max(0.0, linear_seconds - allowed))
    return Explained(roofs, dispatch or 0.0, kernels, seconds - roofs - (dispatch or 0.0) - kernels)


def step_cost(shape: ModelShape, batch: int, k: int, context: int) -> Cost:
    """The cost of one target pass over `batch` rows of anchor + k drafts each (k = 0: a plain step)."""
    return pass_cost(shape, [k + 1] * batch, [context] * batch, batch * (k + 1))


def predicted_speedup(tokens_per_round: float, draft_ratio: float, verify_ratio: float) -> float:
    """E / (c_draft + T(K+1)/T(1)).

    `tokens_per_round`: E, emitted tokens per round, the bonus token included; `draft_ratio`: the whole draft of a
    round in plain steps; `verify_ratio`: the verify pass in plain steps (1 is the ideal of the briefing).
    """
    if min(tokens_per_round, draft_ratio) < 0 or verify_ratio <= 0:
        raise SettingsError("A predicted speed-up needs times and tokens that are not negative.")
    return tokens_per_round / (draft_ratio + verify_ratio)


def expected_tokens(acceptance: float, k: int) -> float:
    """E = (1 - a^(K+1)) / (1 - a): tokens per round if every draft survives with the same chance a."""
    if not 0 <= acceptance <= 1 or k < 0:
        raise SettingsError("An acceptance rate lies in 0..1, and K is not negative.")
    return sum(acceptance**i for i in range(k + 1))


@dataclass(frozen=True)
class BusyPair:
    """A plain step and a verify step of the same batch, modelled: the briefing's picture."""

    batch: int
    k: int
    context: int
    plain: Point
    verify: Point


def batch_for_busy(
    shape: ModelShape,
    ceilings: Ceilings,
    target: float = 0.12,
    k: int = 4,
    context: int = 128,
    overhead_seconds: float = 0.0,
    largest: int = 4096,
) -> BusyPair | None:
    """The batch whose plain step is closest to `target` busy, with the verify step of k drafts beside it.

    Modelled on the given roofs. None if no batch up to `largest` comes within a half of the target: a long context
    adds traffic as fast as arithmetic, and a device may be too busy already at one row.
    """

    def busy(batch: int) -> float:
        cost = step_cost(shape, batch, 0, context)
        return cost.flops / ceilings.flops / modelled_seconds(cost, ceilings, overhead_seconds)

    # busy grows with the batch: bisect for the first batch at or above the target
    low, high = 0, largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if busy(middle) >= target else (middle, high)
    batch = min((b for b in (low, high) if b >= 1), key=lambda b: abs(busy(b) - target))
    if abs(busy(batch) - target) > target / 2:
        return None
    points = []
    for kind, drafts in (("plain", 0), ("verify", k)):
        cost = step_cost(shape, batch, drafts, context)
        points.append(point(kind, cost, modelled_seconds(cost, ceilings, overhead_seconds), ceilings))
    return BusyPair(batch, k, context, *points)
