"""Acceptance rates, acceptance lengths and speeds of speculative decoding, computed from Rounds.

Sources use one name for different numbers, so each function names the convention it follows. Rows are pooled (sums
first, then one division) unless the name says otherwise. Where nothing was drafted or measured the result is None,
never NaN.

A *row-round* is one row's part in one round: one verify pass of that row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specviz.trace.records import Baseline, Round, Verdict


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts over some rounds, summed over rows. No count of drafts includes an anchor or a bonus token."""

    passes: int
    """Verify passes of the target: rounds, however many rows took part."""
    row_rounds: int
    drafting: int
    """Row-rounds in which at least one token was drafted (vLLM: num_drafts)."""
    proposed: int
    """Drafted tokens, including those that were not verified or came after a rejection."""
    verified: int
    """Drafts in the verify pass."""
    accepted: int
    rejected: int
    """Rejected drafts: at most one per row-round."""
    bonus: int
    """Tokens drawn by the target: one per row-round, unless the text ended on an accepted draft."""
    emitted: int

    @property
    def dropped(self) -> int:
        """Drafts verified but not judged: after a rejection or after the end of the text."""
        return self.verified - self.accepted - self.rejected


def counts(rounds: Iterable[Round], row: int | None = None) -> Counts:
    """The sums over `rounds`, of all rows or of one."""
    passes, verdicts = 0, []
    for round_ in rounds:
        mine = [v for v in round_.rows if row is None or v.row == row]
        passes += bool(mine)
        verdicts += mine
    return Counts(
        passes=passes,
        row_rounds=len(verdicts),
        drafting=sum(v.proposed > 0 for v in verdicts),
        proposed=sum(v.proposed for v in verdicts),
        verified=sum(v.verified for v in verdicts),
        accepted=sum(v.accepted for v in verdicts),
        rejected=sum(v.kind == "leftover" for v in verdicts),
        bonus=sum(v.kind is not None for v in verdicts),
        emitted=sum(len(v.emitted) for v in verdicts),
    )


# ------------------------------------------------------------------------------------------------ rates


def acceptance_rate(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """accepted / proposed: the counted rate of vLLM, SGLang and llama.cpp, without the bonus token.

    It falls as K grows, since every draft after a rejection counts as not accepted: do not compare it between
    different K. It is not Leviathan's alpha unless K = 1; see `overlap` for that."""
    c = counts(rounds, row)
    return _ratio(c.accepted, c.proposed)


def verified_acceptance_rate(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """accepted / verified: of the drafts that the target forwarded. Differs from `acceptance_rate` only where
    drafts were cut off before the verify pass."""
    c = counts(rounds, row)
    return _ratio(c.accepted, c.verified)


def judged_acceptance_rate(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """accepted / (accepted + rejected): of the drafts that were judged; drafts after a rejection do not count."""
    c = counts(rounds, row)
    return _ratio(c.accepted, c.accepted + c.rejected)


def acceptance_rate_with_bonus(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """sum(accepted + 1) / sum(proposed + 1) over row-rounds that drafted: DeepSpec's verify_rate, DSpark's rate."""
    drafting = [v for r in rounds for v in r.rows if v.proposed and (row is None or v.row == row)]
    return _ratio(sum(v.accepted + 1 for v in drafting), sum(v.proposed + 1 for v in drafting))


def overlap(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """Mean of beta = sum of min(p, q) over the positions that were judged: the analytic acceptance probability
    (Leviathan's alpha, estimated on the text of this run). It does not depend on the uniforms."""
    betas = [x.overlap for v in _verdicts(rounds, row) for x in v.positions if x.verdict in ("accepted", "rejected")]
    return _ratio(sum(betas), len(betas))


def position_rates(rounds: Iterable[Round], row: int | None = None) -> list[float]:
    """Share of drafting row-rounds in which draft 1, 2, ... was accepted: vLLM's per-position rate. It is
    unconditional, so it never rises. Empty if nothing was drafted."""
    drafting = [v for v in _verdicts(rounds, row) if v.proposed]
    most = max((v.proposed for v in drafting), default=0)
    return [sum(v.accepted > i for v in drafting) / len(drafting) for i in range(most)]


def survival_rates(rounds: Iterable[Round], row: int | None = None) -> list[float | None]:
    """Share of draft 1, 2, ... that was accepted, of those that were judged: conditional on all before it (DSpark's
    curves). None at a position that was never reached."""
    verdicts = [v for v in _verdicts(rounds, row) if v.proposed]
    most = max((v.proposed for v in verdicts), default=0)
    accepted = [sum(v.accepted > i for v in verdicts) for i in range(most)]
    refused = [sum(v.kind == "leftover" and v.accepted == i for v in verdicts) for i in range(most)]
    return [_ratio(a, a + b) for a, b in zip(accepted, refused)]


# ---------------------------------------------------------------------------------------------- lengths


def mean_acceptance_length(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """Emitted tokens per row-round, the bonus token included: tokens per target pass of a row, at most K + 1.

    This is SGLang's completion_tokens / verify_ct and the papers' tau or block efficiency. Row-rounds in which
    nothing was drafted count too, as passes that gave one token. None if nothing at all was drafted."""
    c = counts(rounds, row)
    return _ratio(c.emitted, c.row_rounds) if c.proposed else None


def mean_acceptance_length_drafting(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """1 + accepted / row-rounds that drafted: vLLM's mean acceptance length, bonus token included."""
    c = counts(rounds, row)
    return 1 + c.accepted / c.drafting if c.drafting else None


def mean_acceptance_length_without_bonus(rounds: Iterable[Round], row: int | None = None) -> float | None:
    """Accepted drafts per row-round that drafted: the length as older reports give it."""
    c = counts(rounds, row)
    return _ratio(c.accepted, c.drafting)


def mean_acceptance_length_of_rows(rounds: Iterable[Round]) -> float | None:
    """The mean over rows of each row's own `mean_acceptance_length`. It differs from the pooled one when rows have
    different numbers of rounds: rows with few rounds weigh more here."""
    rounds = tuple(rounds)
    each = [mean_acceptance_length(rounds, row) for row in sorted({v.row for v in _verdicts(rounds, None)})]
    known = [x for x in each if x is not None]
    return _ratio(sum(known), len(known))


def tokens_per_pass(rounds: Iterable[Round]) -> float | None:
    """Emitted tokens of all rows per verify pass of the batch: with one row the mean acceptance length."""
    c = counts(rounds)
    return _ratio(c.emitted, c.passes)


# ------------------------------------------------------------------------------------------ time and work


def seconds(rounds: Iterable[Round]) -> float:
    """Decoding time: drafting, verifying, sampling and bookkeeping. Prefill and recording are not in it."""
    return sum(r.seconds for r in rounds)


def tokens_per_second(rounds: Iterable[Round]) -> float | None:
    """Emitted tokens of all rows per second of decoding time (measured)."""
    rounds = tuple(rounds)
    return _ratio(counts(rounds).emitted, seconds(rounds))


def speed_up(rounds: Iterable[Round], baseline: Baseline) -> float | None:
    """`tokens_per_second` against plain decoding, both measured in the same run."""
    fast, plain = tokens_per_second(rounds), baseline.tokens_per_second
    return None if fast is None or plain is None else _ratio(fast, plain)


def flops_per_token(rounds: Iterable[Round]) -> float | None:
    """FLOPs of target and drafter per emitted token (counted): including that of rejected drafts."""
    rounds = tuple(rounds)
    return _ratio(sum(r.target_cost.flops + r.draft_cost.flops for r in rounds), counts(rounds).emitted)


def plain_flops_per_token(baseline: Baseline) -> float | None:
    """FLOPs per token of the last plain step (counted)."""
    return _ratio(baseline.cost.flops, baseline.rows[-1]) if baseline.rows else None


def _verdicts(rounds: Iterable[Round], row: int | None) -> list[Verdict]:
    return [v for r in rounds for v in r.rows if row is None or v.row == row]


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
