"""The Load page's scheduler: one step with adjustable requests and costs, and why looking ahead is not lossless."""

from __future__ import annotations

import streamlit as st

from specviz.hardware import catalogue, shapes
from specviz.serving import step_table
from specviz.serving.scheduling import RoundCosts, StepCosts, best_schedule, prefix_schedule, survivals
from specviz.ui.address import BOUND
from specviz.ui.chart import chart
from specviz.ui.load_page import runs_of_session
from specviz.views.figures import scheduler_step as scheduler_chart

TRIALS = 10_000


def one_step() -> None:
    """One decision of the scheduler, for the requests and costs of the controls."""
    st.subheader("One step of the scheduler")
    tables = [r.table for r in runs_of_session() if r.table is not None]
    sources = (["this machine's step table (measured)"] if tables else []) + [
        "a flat cost up to 16 tokens (made up)",
        "an H100 with Llama-3.1-8B (modelled)",
    ]
    first, second, third = st.columns(3)
    source = first.selectbox("Cost of a round", sources, key="step-cost")
    requests = second.slider("Requests running", 1, 256, 4, key="step-requests", **BOUND)
    best = third.slider("Survival, most confident request", 0.0, 1.0, 0.9, 0.01, key="step-survival", **BOUND)
    rule = st.segmented_control(
        "Rule",
        ["stop at the first drop", "whole maximum"],
        default="stop at the first drop",
        key="step-rule",
        help="Stopping early is lossless with sampled drafts; the whole maximum "
        "needs deterministic drafts, or survival known from the past",
    )
    # evenly spaced from the most to the least confident: requests differ, as they do in a server
    rates = [best * (1 - 0.6 * r / max(1, requests - 1)) for r in range(requests)]
    cost = _cost(source, tables).verifying(requests)
    choose = best_schedule if rule == "whole maximum" else prefix_schedule
    schedule = choose([survivals([c] * 7) for c in rates], cost)
    data = scheduler_chart.table(schedule)
    shown = data.iloc[: max(40, sum(schedule.lengths) + 10)]
    chart(scheduler_chart.figure(shown, schedule), shown, "scheduler-step", key="step")
    st.markdown(
        "A candidate pays exactly if **a > Θ · (T(B+1) − T(B))**: the tokens that it is expected to add must exceed "
        "those that the extra time would give. "
        f"Lengths: {', '.join(map(str, schedule.lengths[:32]))}{' …' if requests > 32 else ''}."
    )


def _cost(source: str, tables: list[step_table.StepTable]) -> RoundCosts:
    if source.startswith("this machine"):
        return tables[-1].costs
    if source.startswith("an H100"):
        return step_table.modelled(
            shapes.shape("Llama-3.1-8B"), catalogue.device("H100 SXM").ceilings("bf16"), 1024, 0.05, False
        )
    return RoundCosts(StepCosts((1, 16, 64), (0.02, 0.02, 0.08)))


def counterexample() -> None:
    """A counterexample: looking ahead is not lossless, the early stop is."""
    st.subheader("Why the scheduler must not look ahead")
    st.markdown(
        "One request, two tokens, p = (0.70, 0.30). The drafter draws from q = (0.5, 0.5); if its first draft "
        "is token A, the second looks safe. One draft costs more than it gains, two gain more. A scheduler "
        "that looks at the whole maximum verifies **because the draft was A**, and A is emitted too often."
    )
    if st.button("Run the counterexample", icon=":material/play_arrow:", key="counter-run"):
        from specviz.serving import counterexample as example

        st.session_state["counter"] = {
            name: (example.law(rule)[0], example.trials(rule, TRIALS)[0] / TRIALS)
            for name, rule in (("looks ahead", best_schedule), ("stops early", prefix_schedule))
        }
    if found := st.session_state.get("counter"):
        for place, (name, (exact, run)), wrong in zip(st.columns(2), found.items(), (True, False)):
            place.metric(
                f"Share of token A, {name}",
                f"{run:.3f}",
                f"{run - 0.7:+.3f} from p" if wrong else "follows p",
                border=True,
                delta_color="inverse" if wrong else "off",
                delta_arrow="auto" if wrong else "off",
            )
            place.caption(
                f"Counted in {TRIALS:,} runs of the engine's own judge and scheduler; exactly {exact:.2f}, "
                "where p is 0.70."
            )
