"""Requests of the server: a request, its state and timing, the server's limits, and Poisson arrivals."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from specviz.errors import MemoryBudgetError, SettingsError


@dataclass(frozen=True)
class Request:
    """One text to generate."""

    id: int
    arrival: float
    """Seconds after the start of the load."""
    prompt: tuple[int, ...]
    """Token ids."""
    limit: int
    """Maximum number of new tokens."""
    seed: int


@dataclass(kw_only=True)
class RequestRecord:
    """State, output and timing of one request. Times are seconds on the server's clock."""

    request: Request
    state: str = "waiting"
    """waiting | prefill | decoding | finished | cancelled | refused"""
    reason: str = ""
    """Why it was refused, as a sentence."""
    admitted: float | None = None
    """When it left the queue and got a cache slot."""
    started: float | None = None
    """When its prefill was complete and decoding began."""
    first: float | None = None
    """When its first token was emitted."""
    ended: float | None = None
    tokens: list[int] = field(default_factory=list)
    """Emitted token ids."""
    rounds: int = 0
    verified: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that were accepted."""

    @property
    def decoding_seconds(self) -> float | None:
        """Seconds from the end of prefill to the last token; None before both."""
        return None if self.ended is None or self.started is None else self.ended - self.started

    @property
    def seconds_per_token(self) -> float | None:
        """Decoding seconds per output token (TPOT); None without tokens or before the end."""
        seconds = self.decoding_seconds
        return seconds / len(self.tokens) if self.tokens and seconds is not None else None


@dataclass(frozen=True)
class ServerLimits:
    """Capacity of a server: its KV cache has `rows` slots of `tokens` positions each."""

    rows: int = 32
    """Requests in prefill or decoding at once."""
    tokens: int = 1024
    """Cache positions of one request: prompt, new tokens and drafts."""
    waiting: int = 10_000
    """Requests in the queue; further ones are refused."""
    chunk: int = 64
    """Prompt tokens per round (chunked prefill), so that a long prompt does not stall decoding."""

    def __post_init__(self) -> None:
        for name, low in (("rows", 1), ("tokens", 2), ("waiting", 0), ("chunk", 1)):
            if (value := getattr(self, name)) < low:
                raise SettingsError(f"A server's {name} must be at least {low}, not {value}.")

    @classmethod
    def within(
        cls, memory: float, bytes_per_token: float, tokens: int, most_rows: int = 64, chunk: int = 64
    ) -> ServerLimits:
        """As many rows of `tokens` positions as fit `memory` bytes. Raises MemoryBudgetError if none fits."""
        rows = int(memory // (bytes_per_token * tokens))
        if rows < 1:
            raise MemoryBudgetError(
                f"Not even one request of {tokens} tokens fits a cache of {memory / 2**20:.0f} "
                "MiB: shorten prompts or lengths, or give more memory."
            )
        return cls(min(rows, most_rows), tokens, chunk=chunk)


def arrivals(
    rate: float,
    seconds: float,
    prompts: Sequence[Sequence[int]],
    limits: tuple[int, int],
    seed: int = 0,
    burst: int = 1,
) -> list[Request]:
    """Requests of a Poisson process: `rate` per second on average, arriving in groups of `burst`.

    Each request draws one of the prompts and a number of new tokens from `limits` (both ends included), uniformly. The
    same arguments give the same requests. Raises SettingsError for values out of range.
    """
    if not (0 < rate <= 1e6 and 0 < seconds <= 1e5 and burst >= 1 and prompts and 1 <= limits[0] <= limits[1]):
        raise SettingsError("Arrivals need a rate, a time, a burst and lengths above 0, and at least one prompt.")
    rng = random.Random(seed)
    requests: list[Request] = []
    at = 0.0
    while True:
        at += rng.expovariate(rate / burst)
        if at >= seconds:
            return requests
        for _ in range(burst):
            id = len(requests)
            requests.append(Request(id, at, tuple(rng.choice(prompts)), rng.randint(*limits), (seed << 20) + id))
