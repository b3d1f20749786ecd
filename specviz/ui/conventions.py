"""One run's numbers by every convention: the same words mean different numbers, so each has its formula beside it."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz.format import number
from specviz.trace import metrics
from specviz.trace.metrics import Counts
from specviz.trace.records import Trace


def table(trace: Trace) -> pd.DataFrame:
    """name, whose convention, value, and the formula with this run's own counts."""
    rounds, c = trace.rounds, metrics.counts(trace.rounds)
    rows = range(len(trace.prompts))
    per_row = [metrics.acceptance_rate(rounds, row) for row in rows]
    known = [rate for rate in per_row if rate is not None]
    judged = sum(x.verdict in ("accepted", "rejected") for r in rounds for v in r.rows for x in v.positions)
    lengths = [metrics.mean_acceptance_length(rounds, row) for row in rows]
    drafting = [v for r in rounds for v in r.rows if v.proposed]
    return pd.DataFrame(
        [
            (
                "acceptance rate",
                "vLLM, SGLang, llama.cpp: counted, no bonus",
                metrics.acceptance_rate(rounds),
                f"accepted / drafted = {c.accepted} / {c.proposed}",
            ),
            (
                "acceptance rate",
                "the same, of drafts sent to the target",
                metrics.verified_acceptance_rate(rounds),
                f"accepted / verified = {c.accepted} / {c.verified}",
            ),
            (
                "acceptance rate",
                "of drafts that were judged",
                metrics.judged_acceptance_rate(rounds),
                f"accepted / (accepted + rejected) = {c.accepted} / ({c.accepted} + {c.rejected})",
            ),
            (
                "acceptance rate",
                "DSpark, DeepSpec: bonus counted in",
                metrics.acceptance_rate_with_bonus(rounds),
                f"(accepted + rounds) / (drafted + rounds) = ({c.accepted} + {len(drafting)}) / ({c.proposed} + "
                f"{len(drafting)})",
            ),
            (
                "acceptance rate",
                "Leviathan's alpha, by p and q alone",
                metrics.overlap(rounds),
                f"mean of sum min(p, q) over {judged} judged positions",
            ),
            (
                "acceptance rate",
                "mean over requests",
                sum(known) / len(known) if known else None,
                "mean of " + ", ".join(map(number, known[:6])) + (", ..." if len(known) > 6 else ""),
            ),
            (
                "mean acceptance length",
                "with bonus, pooled: SGLang, the papers' tau",
                metrics.mean_acceptance_length(rounds),
                f"emitted / row-rounds = {c.emitted} / {c.row_rounds}",
            ),
            (
                "mean acceptance length",
                "with bonus, vLLM",
                metrics.mean_acceptance_length_drafting(rounds),
                f"1 + accepted / rounds that drafted = 1 + {c.accepted} / {c.drafting}",
            ),
            (
                "mean acceptance length",
                "without bonus",
                metrics.mean_acceptance_length_without_bonus(rounds),
                f"accepted / rounds that drafted = {c.accepted} / {c.drafting}",
            ),
            (
                "mean acceptance length",
                "with bonus, mean over requests",
                metrics.mean_acceptance_length_of_rows(rounds),
                "mean of "
                + ", ".join(number(x) for x in lengths[:6] if x is not None)
                + (", ..." if len(lengths) > 6 else ""),
            ),
            (
                "tokens per target pass",
                "all rows of the batch",
                metrics.tokens_per_pass(rounds),
                f"emitted / passes = {c.emitted} / {c.passes}",
            ),
        ],
        columns=["figure", "convention", "value", "formula"],
    )


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
    """The panel: rates and lengths by every convention, and both curves by position."""
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
