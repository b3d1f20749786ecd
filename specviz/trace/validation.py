"""Consistency checks of a trace: counts that agree, arrays of equal length, a text for every token."""

from __future__ import annotations

from specviz.errors import TraceError
from specviz.trace.records import MAX_K, MAX_ROWS, Baseline, Ceilings, Cost, Position, Round, Trace, Verdict


def check(trace: Trace) -> None:
    """Check what the types of the fields do not. Raises TraceError with the first inconsistency found."""
    rows = len(trace.prompts)
    _require(1 <= rows <= MAX_ROWS, f"it must have 1 to {MAX_ROWS} rows")
    _require(len(trace.texts) == rows, "texts and prompts differ in number")
    _require(all(p.token_ids for p in trace.prompts), "a prompt has no tokens")
    if trace.machine.ceilings:
        _check_ceilings(trace.machine.ceilings)
    _check_baseline(trace.baseline, rows)
    _require(_duration(trace.prefill_seconds), "the prefill took an impossible time")
    tokens: set[int] = set()
    finished: set[int] = set()
    for number, round_ in enumerate(trace.rounds):
        _check_round(round_, number, rows)
        active = {v.row for v in round_.rows}
        _require(not finished & active, "a row goes on after its end")
        finished |= {v.row for v in round_.rows if v.finished}
        for v in round_.rows:
            _check_verdict(v)
            tokens.update((v.anchor, *v.emitted), *(x.support for x in v.positions))
            tokens.update(x.first_guess for x in v.positions if x.first_guess is not None)
    _require(tokens <= trace.pieces.keys(), "a token lacks its text")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise TraceError(f"This trace is damaged: {problem}.")


def _duration(seconds: float) -> bool:
    return 0 <= seconds < 1e9


def _check_cost(cost: Cost) -> None:
    _require(cost.flops >= 0 and cost.bytes >= 0, "a cost is negative")


def _check_ceilings(roofs: Ceilings) -> None:
    numbers = (roofs.bandwidth, roofs.flops, *roofs.bandwidth_spread, *roofs.flops_spread)
    _require(min(numbers) >= 1 and max(numbers) <= 1e30, "a ceiling cannot have been measured")


def _check_baseline(base: Baseline, rows: int) -> None:
    _require(len(base.seconds) == len(base.forward_seconds) == len(base.rows), "its plain steps do not add up")
    _require(all(_duration(s) and s > 0 for s in (*base.seconds, *base.forward_seconds)), "a plain step took no time")
    _require(all(1 <= r <= rows for r in base.rows), "a plain step has rows that do not exist")
    _check_cost(base.cost)


def _check_round(round_: Round, number: int, rows: int) -> None:
    """Index, times, costs and the set of rows of one round."""
    _require(round_.index == number, "its rounds are out of order")
    times = (round_.draft_seconds, round_.verify_seconds, round_.other_seconds, round_.recording_seconds)
    _require(all(map(_duration, times)), "a round took an impossible time")
    _require(min(round_.target_tokens, round_.draft_tokens) >= 0, "a round forwarded less than nothing")
    _check_cost(round_.target_cost)
    _check_cost(round_.draft_cost)
    active = [v.row for v in round_.rows]
    _require(bool(active) and len(set(active)) == len(active), "a round has no rows, or one of them twice")
    _require(all(0 <= v.row < rows and v.context >= 0 for v in round_.rows), "a round names a row that does not exist")


def _check_verdict(v: Verdict) -> None:
    """One row's round: its counts, positions and tokens agree."""
    _require(MAX_K >= v.proposed >= v.verified >= v.accepted >= 0, "a round's counts do not add up")
    _require(len(v.positions) == v.verified + 1, "a round lacks positions")
    drafts = [x.draft_token for x in v.positions]
    _require(None not in drafts[:-1] and drafts[-1] is None, "a round's drafts do not fit its positions")
    bonus = () if v.bonus_token is None else (v.bonus_token,)
    _require(v.emitted == (*drafts[: v.accepted], *bonus), "a round's emitted tokens do not add up")
    _check_bonus(v)
    expected = ["accepted"] * v.accepted + ["rejected"] * (v.kind == "leftover")
    expected += ["dropped"] * (v.verified - len(expected)) + ["bonus"]
    _require([x.verdict for x in v.positions] == expected, "a round's verdicts contradict its counts")
    for x in v.positions:
        u, judged = x.accept_uniform, x.verdict in ("accepted", "rejected")
        _require((u is not None) == judged and (u is None or 0 <= u < 1), "a uniform is not where it must be")
    _require(v.bonus_uniform is None or 0 <= v.bonus_uniform < 1, "a uniform is not in 0..1")
    for x in v.positions:
        _check_position(x)
    if v.kind is not None:
        _require(v.bonus_token in v.positions[v.accepted].support, "a drawn token is not in its support")


def _check_bonus(v: Verdict) -> None:
    """The bonus token's fields agree with each other and with the counts."""
    _require(
        (v.kind is None) == (v.bonus_token is None) == (v.bonus_uniform is None), "a bonus token is only half there"
    )
    _require(v.kind != "leftover" or v.accepted < v.verified, "a leftover was drawn from without a rejection")
    _require(v.kind != "all_accepted" or v.accepted == v.verified, "not all drafts were accepted where it says so")
    _require(v.kind is not None or v.accepted > 0, "a round emitted nothing")


def _check_position(x: Position) -> None:
    """One position: arrays of equal length, probabilities in range, the drafted token in the support."""
    _require(
        len(x.support) == len(x.target_logits) == len(x.target_probs) == len(x.draft_probs)
        and (x.draft_logits is None or len(x.draft_logits) == len(x.support)),
        "a position's arrays differ in length",
    )
    _require(len(set(x.support)) == len(x.support) and min(x.support, default=0) >= 0, "a support is impossible")
    tails = (x.tail_target, x.tail_draft, x.tail_min, x.tail_leftover)
    _require(all(0 <= y <= 1 + 1e-9 for y in (*x.target_probs, *x.draft_probs, *tails)), "a probability is not in 0..1")
    _require(x.confidence is None or 0 <= x.confidence <= 1, "a confidence is not in 0..1")
    _require(x.target_entropy is None or 0 <= x.target_entropy < 100, "an entropy is impossible")
    _require(x.draft_token is None or x.draft_token in x.support, "a drafted token is not in its support")
