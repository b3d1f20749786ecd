"""Timeline of lanes as JSON for the browser: the measured time blocks of each round, and its tokens.

The time axis is decoding time: drafting, verifying, and sampling with bookkeeping, as measured in each lane's own run,
one round after the other. Prefill, plain steps of the baseline and recording are left out. Only a whole draft block is
timed, so its parts are drawn evenly. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from specviz.trace import metrics
from specviz.trace.records import Trace, Verdict
from specviz.trace.token_text import visible

BUILDS = {
    "plain": "no draft",
    "lookup": "looked up, all at once",
    "serial": "one by one",
    "parallel": "all at once",
    "hybrid": "all at once, then refined from left to right",
}


def building(trace: Trace) -> str:
    """How a lane's drafter proposes its K tokens, from its rounds: a key of BUILDS."""
    positions = [x for r in trace.rounds for v in r.rows for x in v.positions if x.draft_token is not None]
    if trace.settings.k == 0:
        return "plain"
    if any(x.first_guess is not None for x in positions):
        return "hybrid"
    if not any(r.draft_tokens for r in trace.rounds):
        return "lookup"
    return "parallel" if trace.draft_parallel else "serial"


def lane(trace: Trace, name: str, row: int = 0) -> dict:
    """One lane: name, how it builds, label, seconds, tokens, passes, rates, and its rounds.

    A round: `start`, `draft`, `verify`, `other` in seconds; `drafts`, each with its text, first guess (where it is
    another) and verdict; `bonus`, `accepted`, `text` (what it emitted, as it is).
    """
    rounds, start = [], 0.0
    for round_, v in trace.row_rounds(row):
        rounds.append(
            {
                "start": round(start, 6),
                "draft": round(round_.draft_seconds, 6),
                "verify": round(round_.verify_seconds, 6),
                "other": round(round_.other_seconds, 6),
                **_tokens(trace, v),
            }
        )
        start += round_.seconds
    only = [r for r, _ in trace.row_rounds(row)]
    counts = metrics.counts(only, row)
    return {
        "name": name,
        "builds": building(trace),
        "label": trace.drafter_label,
        "seconds": round(start, 6),
        "tokens": counts.emitted,
        "passes": counts.row_rounds,
        "finished": trace.end == "complete",
        "tokens_per_second": counts.emitted / start if start else None,
        "tokens_per_pass": counts.emitted / counts.row_rounds if counts.row_rounds else None,
        "rounds": rounds,
    }


def _tokens(trace: Trace, v: Verdict) -> dict:
    def text(token: int | None) -> str:
        return "" if token is None else visible(trace.pieces[token])

    drafts = []
    for x in v.positions[: v.verified]:
        guess = None if x.first_guess is None or x.first_guess == x.draft_token else text(x.first_guess)
        drafts.append({"text": text(x.draft_token), "guess": guess, "verdict": x.verdict})
    return {
        "drafts": drafts,
        "accepted": v.accepted,
        "bonus": None if v.bonus_token is None else text(v.bonus_token),
        "text": "".join(trace.pieces[t] for t in v.emitted),
    }


def lanes_data(named: Sequence[tuple[str, Trace]]) -> list[dict]:
    """The lanes of one prompt, in the given order."""
    return [lane(trace, name) for name, trace in named]


def table(named: Sequence[tuple[str, Trace]]) -> list[dict]:
    """Every block of every lane as a row, for a CSV: lane, round, block, start and end in seconds, tokens emitted by
    the end of the round."""
    out = []
    for name, trace in named:
        at, emitted = 0.0, 0
        for number, (r, v) in enumerate(trace.row_rounds(0), 1):
            emitted += len(v.emitted)
            for block in ("draft", "verify", "other"):
                seconds = getattr(r, f"{block}_seconds")
                out.append(
                    {
                        "lane": name,
                        "round": number,
                        "block": block,
                        "start_seconds": at,
                        "end_seconds": at + seconds,
                        "drafted": v.proposed,
                        "accepted": v.accepted,
                        "tokens_after_round": emitted,
                    }
                )
                at += seconds
    return out
