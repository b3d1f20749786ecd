"""Clocks of the server: real time, or simulated time from a cost table."""

from __future__ import annotations

import time
from typing import Protocol

from specviz.serving.scheduling import RoundCosts
from specviz.trace.records import Round


class Clock(Protocol):
    """Time of a server, in seconds from its start."""

    def now(self) -> float:
        """Seconds since the start."""

    def spend(self, round_: Round, prompt_tokens: int) -> None:
        """Account for one round that also prefilled `prompt_tokens` tokens."""

    def wait(self, until: float) -> None:
        """Wait for the time `until`, or part of the way there."""


class WallClock:
    """Real time since its construction."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def spend(self, round_: Round, prompt_tokens: int) -> None:
        """Nothing to do: a real round has already taken its time."""

    def wait(self, until: float) -> None:
        """Sleep until then, at most 50 ms, so that a stop is noticed."""
        time.sleep(max(0.0, min(0.05, until - self.now())))


class SimulatedClock:
    """Simulated time: a round takes the seconds of the cost table. Runs repeat exactly."""

    def __init__(self, costs: RoundCosts):
        self.costs = costs
        self._now = 0.0

    def now(self) -> float:
        """Simulated seconds since the start."""
        return self._now

    def spend(self, round_: Round, prompt_tokens: int) -> None:
        """Advance by the modelled seconds of this round."""
        self._now += self.costs.round(
            [v.verified for v in round_.rows], [v.proposed for v in round_.rows], prompt_tokens
        )

    def wait(self, until: float) -> None:
        """Jump to that time."""
        self._now = max(self._now, until)
