"""Acceptance rates and lengths of a run by the convention of each tool and paper, with the formulas."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz.format import number
from specviz.trace import metrics
from specviz.trace.metrics import Counts
from specviz.trace.records import Trace

_Row = tuple[str, str, float | None, str]
"""figure, convention, value, formula"""


def table(trace: Trace) -> pd.DataFrame:
    """Each figure of a run by each convention: name, convention, value, and the formula with this run's counts."""
    rows = [*_rates(trace), *_lengths(trace)]
    return pd.DataFrame(rows, columns=["figure", "convention", "value", "formula"])


def _rates(trace: Trace) -> list[_Row]:
    rounds, c = trace.rounds, metrics.counts(trace.rounds)
    per_row = [metrics.acceptance_rate(rounds, row) for row in range(len(trace.prompts))]
    known = [rate for rate in per_row if rate is not None]
    judged = sum(x.verdict in ("accepted", "rejected") for r in rounds for v in r.rows for x in v.positions)
    drafting = sum(v.proposed > 0 for r in rounds for v in r.rows)
    rates: list[tuple[str, float | None, str]] = [
        (
            "vLLM, SGLang, llama.cpp: counted, no bonus",
            metrics.acceptance_rate(rounds),
            f"accepted / drafted = {c.accepted} / {c.proposed}",
        ),
        (
            "the same, of drafts sent to the target",
            metrics.verified_acceptance_rate(rounds),
            f"accepted / verified = {c.accepted} / {c.verified}",
        ),
        (
            "of drafts that were judged",
            metrics.judged_acceptance_rate(rounds),
            f"accepted / (accepted + rejected) = {c.accepted} / ({c.accepted} + {c.rejected})",
        ),
        (
            "DSpark, DeepSpec: bonus counted in",
            metrics.acceptance_rate_with_bonus(rounds),
            f"(accepted + rounds) / (drafted + rounds) = ({c.accepted} + {drafting}) / ({c.proposed} + {drafting})",
        ),
        (
            "Leviathan's alpha, by p and q alone",
            metrics.overlap(rounds),
            f"mean of sum min(p, q) over {judged} judged positions",
        ),
        ("mean over requests", sum(known) / len(known) if known else None, _mean_of(known)),
    ]
    return [("acceptance rate", *rate) for rate in rates]


def _lengths(trace: Trace) -> list[_Row]:
    rounds, c = trace.rounds, metrics.counts(trace.rounds)
    per_row = [metrics.mean_acceptance_length(rounds, row) for row in range(len(trace.prompts))]
    lengths: list[tuple[str, float | None, str]] = [
        (
            "with bonus, pooled: SGLang, the papers' tau",
            metrics.mean_acceptance_length(rounds),
            f"emitted / row-rounds = {c.emitted} / {c.row_rounds}",
        ),
        (
            "with bonus, vLLM",
            metrics.mean_acceptance_length_drafting(rounds),
            f"1 + accepted / rounds that drafted = 1 + {c.accepted} / {c.drafting}",
        ),
        (
            "without bonus",
            metrics.mean_acceptance_length_without_bonus(rounds),
            f"accepted / rounds that drafted = {c.accepted} / {c.drafting}",
        ),
        (
            "with bonus, mean over requests",
            metrics.mean_acceptance_length_of_rows(rounds),
            _mean_of([length for length in per_row if length is not None]),
        ),
    ]
    per_pass = metrics.tokens_per_pass(rounds)
    return [
        *(("mean acceptance length", *length) for length in lengths),
        ("tokens per target pass", "all rows of the batch", per_pass, f"emitted / passes = {c.emitted} / {c.passes}"),
    ]


def _mean_of(values: list[float]) -> str:
    return "mean of " + ", ".join(map(number, values[:6])) + (", ..." if len(values) > 6 else "")


def by_position(trace: Trace) -> pd.DataFrame:
    """Per draft position: unconditional (vLLM) and conditional (DSpark) acceptance."""
    rounds = trace.rounds
    unconditional, conditional = metrics.position_rates(rounds), metrics.survival_rates(rounds)
    return pd.DataFrame(
        {
            "draft": list(range(1, len(unconditional) + 1)),
            "unconditional (vLLM): of all rounds that drafted": unconditional,
            "conditional (DSpark): of those judged there": conditional,
        }
    )


def panel(trace: Trace, key: str = "conventions") -> None:
    """Rates and lengths by every convention, and both curves by position."""
    st.subheader("The same run by every convention")
    c: Counts = metrics.counts(trace.rounds)
    if not c.proposed:
        st.info("Nothing was drafted in this run, so it has no acceptance rate by any convention.")
        return
    st.caption(
        f"Counted: {c.passes} verify passes, {c.proposed} drafts proposed, {c.accepted} accepted, {c.rejected} "
        f"rejected, {c.proposed - c.accepted - c.rejected} never judged, {c.bonus} bonus tokens, {c.emitted} "
        "tokens emitted. The bonus token is the one that the target draws at the end of each pass."
    )
    three = st.column_config.NumberColumn("value", format="%.3f", width="small")
    st.dataframe(table(trace), hide_index=True, key=f"{key}-table", column_config={"value": three}, height="content")
    rates = by_position(trace)
    st.dataframe(
        rates,
        hide_index=True,
        key=f"{key}-positions",
        column_config={name: st.column_config.NumberColumn(name, format="%.3f") for name in rates.columns[1:]},
    )
