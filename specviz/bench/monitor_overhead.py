"""What watching costs: the share of a run that the monitor's sampling takes, measured on real steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from specviz.hardware.ceilings import Stopped
from specviz.hardware.machine import synchronise
from specviz.hardware.monitor import Monitor

BLOCK_SECONDS = 1.0


@dataclass(frozen=True)
class Overhead:
    """Sampling, measured while a model decoded."""

    watched_seconds: float
    samples: int
    sampling_seconds: float
    """Processor time of the sampling thread."""
    step_watched: float | None
    """Median seconds of a plain step while the monitor sampled."""
    step_alone: float | None
    """The same, in turn, without it."""

    @property
    def share(self) -> float:
        """Of the run's time, what sampling took: 0.01 is 1 %."""
        return self.sampling_seconds / self.watched_seconds


def measure(
    model,
    seconds: float = 10.0,
    context: int = 128,
    make_monitor: Callable[[str], Monitor] = Monitor,
    progress: Callable[[float, str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Overhead:
    """Decode plain steps of a CausalModel, in turn with the monitor and without, and tell what sampling took."""
    tell, halt = progress or (lambda fraction, sentence: None), stop or (lambda: False)
    cache = model.new_cache()
    cache.add(0, context + 2)
    model.forward(cache, [0], [[1] * context], logits=False)
    times: dict[bool, list[float]] = {True: [], False: []}
    watched, samples, spent = 0.0, 0, 0.0
    began, block = time.perf_counter(), 0
    while (gone := time.perf_counter() - began) < seconds or block < 2:
        if halt():
            raise Stopped("The measurement was stopped.")
        tell(min(0.99, gone / seconds), "Decoding with and without the monitor")
        watching = block % 2 == 0
        monitor = make_monitor(str(model.device)).start() if watching else None
        start = time.perf_counter()
        while time.perf_counter() - start < BLOCK_SECONDS:
            before = time.perf_counter()
            model.forward(cache, [0], [[1]])
            synchronise(str(model.device))
            times[watching].append(time.perf_counter() - before)
            cache.truncate(0, context)
        if monitor is not None:
            watched += time.perf_counter() - start
            monitor.stop()
            samples, spent = samples + len(monitor.samples()), spent + monitor.spent_seconds
        block += 1
    tell(1.0, "Measured")
    medians = {k: statistics.median(v) if v else None for k, v in times.items()}
    return Overhead(watched, samples, spent, medians[True], medians[False])
