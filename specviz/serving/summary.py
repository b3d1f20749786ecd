"""Figures of a served load: throughput, latency, acceptance and wasted verification."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from specviz.serving.server import Server


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Figures of one policy on one load. Rates are None where the denominator is 0."""

    policy: str
    rate: float
    """Requests per second that arrived."""
    tokens_per_second: float | None
    """Throughput of the server: all emitted tokens over the time from the first arrival to the last token."""
    tokens_per_second_per_user: float | None
    """Tokens of finished requests over the sum of their decoding seconds, without queueing."""
    seconds_per_token: float | None
    """Median over finished requests of decoding seconds per token (TPOT)."""
    mean_verify_length: float | None
    """Drafts verified per request and round, the anchor not counted."""
    wasted_verify_fraction: float | None
    """Share of verified positions (anchors and drafts) that gave no token."""
    acceptance_rate: float | None
    """Accepted drafts over verified drafts."""
    mean_running: float | None
    """Requests decoding, averaged over time."""
    requests: int
    finished: int
    cancelled: int
    refused: int
    waited: float | None
    """Mean seconds from arrival to the start of decoding."""
    identical: bool | None = None
    """Whether every greedy text equals that of the same prompt decoded alone; None if that was not compared."""
    near_ties: int = 0
    """Texts that differ from it first at a near tie of the two largest logits, which rounding may swap."""
    differing: int = 0
    """Texts that differ from it anywhere else: a defect."""
    widest_gap: float | None = None
    """The largest difference of the two largest logits among the near ties."""


def summarize(server: Server, rate: float) -> Summary:
    """The figures of a served load; `identical` and the fields after it keep their defaults."""
    records, rounds = server.records.values(), server.round_stats
    finished = [r for r in records if r.state == "finished"]
    emitted, verified = sum(t.emitted for t in rounds), sum(t.verified for t in rounds)
    accepted, row_rounds = sum(t.accepted for t in rounds), sum(t.running for t in rounds)
    decoding = sum(s for r in finished if (s := r.decoding_seconds) is not None)
    times = [s for r in finished if (s := r.seconds_per_token) is not None]
    begin = min((r.request.arrival for r in records), default=0.0)
    span = rounds[-1].at - begin if rounds else 0.0
    busy = sum(t.seconds for t in rounds)
    waits = [r.started - r.request.arrival for r in records if r.started is not None]
    return Summary(
        policy=server.policy.name,
        rate=rate,
        tokens_per_second=_ratio(emitted, span),
        tokens_per_second_per_user=_ratio(sum(len(r.tokens) for r in finished), decoding),
        seconds_per_token=statistics.median(times) if times else None,
        mean_verify_length=_ratio(verified, row_rounds),
        wasted_verify_fraction=_ratio(verified - accepted, verified + row_rounds),
        acceptance_rate=_ratio(accepted, verified),
        mean_running=_ratio(sum(t.running_seconds for t in rounds), busy),
        requests=len(server.records),
        finished=len(finished),
        cancelled=sum(r.state == "cancelled" for r in records),
        refused=sum(r.state == "refused" for r in records),
        waited=_ratio(sum(waits), len(waits)),
    )


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
