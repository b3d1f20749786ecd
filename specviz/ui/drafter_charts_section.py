"""The Drafters page's charts: speed, acceptance by position, cost of a draft, and calibration of the confidences."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz import format
from specviz.bench import draft_cost
from specviz.bench import lanes as lane_sets
from specviz.errors import SpecVizError
from specviz.loader.pairs import EMBEDDED
from specviz.trace import calibration
from specviz.ui import task
from specviz.ui.chart import chart
from specviz.ui.drafters_page import Shown
from specviz.views.figures import drafter_charts as figures


def speed(now: Shown) -> None:
    """Tokens per pass and per second, and acceptance by position."""
    st.markdown("#### Tokens per pass and per second")
    data = figures.speed_table(now.lanes)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.speed_figure(data), data, "drafters-speed", key="drafters-speed")
    with right:
        st.dataframe(
            data[
                ["drafter", "tokens_per_pass", "tokens_per_second", "speedup", "draft_seconds", "verify_seconds"]
            ].assign(draft_seconds=1e3 * data.draft_seconds, verify_seconds=1e3 * data.verify_seconds),
            hide_index=True,
            key="drafters-speed-summary",
            column_config={
                "tokens_per_pass": st.column_config.NumberColumn("tokens/pass", format="%.2f"),
                "tokens_per_second": st.column_config.NumberColumn("tokens/s", format="%.1f"),
                "speedup": st.column_config.NumberColumn("times plain", format="%.2f"),
                "draft_seconds": st.column_config.NumberColumn("draft, ms", format="%.1f"),
                "verify_seconds": st.column_config.NumberColumn("verify, ms", format="%.1f"),
            },
        )
        st.caption(_speed_words(now, data))


def _speed_words(now: Shown, data: pd.DataFrame) -> str:
    words = [
        f"Tokens counted, times measured ({now.source}); per round on average. Plain decoding is a lane of the "
        "same run."
    ]
    compared = data[data.compared_texts > 0]
    if len(compared):
        same = ", ".join(f"{r.drafter} {r.equal_texts} of {r.compared_texts}" for r in compared.itertuples())
        words.append(
            f"Greedy texts equal to plain decoding's, token for token: {same}. A kernel for another "
            "number of rows may decide a near-tie differently."
        )
    return " ".join(words)


def acceptance(now: Shown) -> None:
    """How acceptance decays by position, conditional and unconditional."""
    st.markdown("#### How acceptance decays by position")
    data = figures.acceptance_table(now.lanes)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.acceptance_figure(data, "of_judged"), data, "acceptance-if-reached", key="drafters-judged")
    with right:
        chart(figures.acceptance_figure(data, "of_proposed"), data, "acceptance-of-all-rounds", key="drafters-proposed")
    st.caption(
        f"Counted ({now.source}); 95 % Wilson intervals. Hollow marks have fewer than {figures.THIN} trials. "
        "The left chart counts only drafts whose predecessors were all accepted, the right one every round."
    )


def cost() -> None:
    """The cost of a draft by K: recorded, or measured here on request."""
    st.markdown("#### Cost of a draft by K")
    run: draft_cost.Costs | None = st.session_state.get("cost-run")
    alive = run is not None and run.alive
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Measure here",
            icon=":material/timer:",
            key="cost-go",
            disabled=alive,
            help="One proposal at every K from 1 to 16 and every drafter; under 30 seconds once they are loaded",
        ):
            pair = st.session_state.get("lanes-pair", EMBEDDED)
            st.session_state["cost-run"] = draft_cost.Costs(pair, lane_sets.default_drafters(pair)).start()
            st.rerun()
        task.stop_button(run, "cost-stop")
    if run is not None:
        task.follow(
            run,
            "Stopped: the finished measurements are shown." if run.cost else "Stopped before anything was measured.",
        )
    mine = run.cost if run is not None else None
    found = mine or _recorded_cost()
    if found is None:
        st.info("Not measured yet: press Measure here.")
        return
    data = figures.cost_table(found)
    chart(figures.cost_figure(data, found.plain_seconds), data, "draft-cost-by-k", key="drafters-cost")
    where = "Measured here" if mine else f"Recorded on {found.machine} ({found.device}), {found.measured_at[:10]}"
    st.caption(
        f"{where}: median seconds of one proposal for one row, {found.precision}, {found.threads} threads, "
        f"after {found.context} tokens of prompt. A plain step, the target's forward pass of one token, takes "
        f"{format.seconds(found.plain_seconds)}. A lookup takes almost none. A drafter stops at the K that it "
        "was trained for."
    )


def _recorded_cost() -> draft_cost.DraftCost | None:
    try:
        return draft_cost.load()
    except SpecVizError as error:
        st.warning(str(error))
        return None


def confidence(now: Shown) -> None:
    """The drafter's confidence at each position, against whether the draft survived."""
    data = calibration.confidences(now.lanes)
    st.markdown("#### Confidence and its calibration")
    if data.empty:
        st.caption("Only the hybrid drafter gives a confidence with each draft, and it is not among these lanes.")
        return
    reached = data[data.judged]
    for place, (part, column, what, name) in zip(
        st.columns(2, gap="large"),
        (
            (data, "product", "All drafts up to here survive", "calibration-of-prefixes"),
            (reached, "confidence", "This draft survives, once all before it did", "calibration-of-drafts"),
        ),
    ):
        happened = part.survived.astype(float).tolist()
        said = part[column].tolist()
        table = calibration.reliability(said, happened)
        with place:
            figure = figures.reliability_figure(
                table, calibration.expected_error(said, happened), calibration.auc(said, happened), what
            )
            chart(figure, table, name, key=f"drafters-{name}")
    table = calibration.by_position(data)
    left, right = st.columns(2, gap="large")
    with left:
        chart(figures.confidence_figure(table), table, "confidence-by-position", key="drafters-confidence")
    with right:
        st.markdown(
            f"Counted over {len(data)} drafts of {', '.join(data.drafter.unique())} ({now.source}).\n\n"
            "- **All drafts up to here survive**: the product of the confidences up to a position, against whether the "
            "whole chain survived to it. A scheduler of verify lengths relies on it.\n"
            "- **This draft survives**: each confidence by itself, only where the target judged the draft.\n"
            "- **ECE**: the mean distance from the diagonal, weighted by counts. **AUC**: the probability that a draft "
            "that survived had a higher confidence than one that did not.\n\n"
            "The player shows the confidence beside each draft."
        )
