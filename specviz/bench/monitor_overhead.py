"""Overhead of the device monitor: processor time of its sampling, and step times with and without it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from specviz.hardware.machine import synchronise
from specviz.hardware.monitor import Monitor
from specviz.worker import Job

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
    job: Job | None = None,
) -> Overhead:
    """Decode plain steps of a CausalModel, with and without the monitor in turn, and measure the sampling."""
    job = job or Job()
    cache = model.new_cache()
    cache.add(0, context + 2)
    model.forward(cache, [0], [[1] * context], logits=False)
    times: dict[bool, list[float]] = {True: [], False: []}
    watched, samples, spent = 0.0, 0, 0.0
    began, block = time.perf_counter(), 0
    while (gone := time.perf_counter() - began) < seconds or block < 2:
        job.check()
        job.report("Decoding with and without the monitor", min(0.99, gone / seconds))
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
    job.report("Measured", 1.0)
    medians = {k: statistics.median(v) if v else None for k, v in times.items()}
    return Overhead(watched, samples, spent, medians[True], medians[False])
