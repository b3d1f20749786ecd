"""The Retune page: your prompts, the retuning with its progress, and the comparison before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from specviz.errors import SpecVizError
from specviz.trace.records import MAX_K
from specviz.ui import task
from specviz.ui.chart import chart
from specviz.ui.controls import OWN
from specviz.views.figures import retuning as charts

if TYPE_CHECKING:  # imported on a click only: the page does not wait for torch
    from specviz.training.retune import Retune, Retuned

EXAMPLE = "\n".join(
    (
        "Write a recipe for tomato soup.",
        "Write a recipe for banana pancakes.",
        "Write a recipe for a lentil stew.",
        "Write a recipe for fried rice.",
        "Write a recipe for apple cake.",
        "Write a recipe for mushroom risotto.",
        "Write a recipe for a Greek salad.",
        "Write a recipe for pumpkin soup.",
        "Write a recipe for baked salmon.",
        "Write a recipe for chickpea curry.",
        "Write a recipe for garlic bread.",
        "Write a recipe for potato gratin.",
        "Write a recipe for oatmeal cookies.",
        "Write a recipe for vegetable lasagne.",
        "Write a recipe for onion tart.",
        "Write a recipe for rice pudding.",
        "Write a recipe for stuffed peppers.",
        "Write a recipe for carrot muffins.",
        "Write a recipe for chicken noodle soup.",
        "Write a recipe for bean tacos.",
        "Write a recipe for pea risotto.",
        "Write a recipe for lemon tart.",
        "Write a recipe for spinach quiche.",
        "Write a recipe for plum crumble.",
    )
)
"""Prompts of one kind: a drafter can learn what they share."""


def show() -> None:
    """The whole page below its headline."""
    job: Retune | None = st.session_state.get("retune-job")
    alive = job is not None and job.alive
    text = st.text_area(
        "Your prompts, one a line",
        EXAMPLE,
        height=220,
        key="retune-prompts",
        disabled=alive,
        help=(
            "8 to 200. The target answers each twice. Every fourth prompt is held out for the comparison; the drafter "
            "is not trained on its answers."
        ),
    )
    first, second, third = st.columns(3)
    seconds = first.slider("Seconds of training", 30, 1800, 120, 30, key="retune-seconds", disabled=alive)
    k = second.slider(
        "K (drafts)", 1, MAX_K, 5, key="retune-k", disabled=alive, help="Acceptance is measured at this K"
    )
    name = third.text_input("Name of the new drafter", "retuned", max_chars=40, key="retune-name", disabled=alive)
    with st.container(horizontal=True):
        go = st.button("Retune", icon=":material/model_training:", type="primary", key="retune-go", disabled=alive)
        task.stop_button(job, "retune-stop")
    st.caption(
        f"About {seconds + 90:.0f} s in all on two cores: answers, a measurement before, training, a "
        "measurement after. All on this machine; the shipped drafter is not changed."
    )
    if go:
        try:
            job = _begin(text, name, float(seconds), k)
        except SpecVizError as error:
            st.error(str(error))
            return
        st.session_state["retune-job"] = job
        st.rerun()
    if job is not None:
        task.follow(job, "Stopped: nothing was kept.", lambda: _found(job))


def _begin(text: str, name: str, seconds: float, k: int) -> Retune:
    from specviz.training.retune import Retune, RetuneOrder

    lines = tuple(line.strip() for line in text.splitlines() if line.strip())
    return Retune(RetuneOrder(lines, name.strip(), seconds, k)).start()


def _found(job: Retune) -> None:
    if job.alive and job.alphas:
        step, alpha = job.alphas[-1]
        st.caption(
            f"After {step} steps, on what it is being trained on, the drafter covers "
            f"{', '.join(f'{a:.0%}' for a in alpha[:4])} of p in slots 1 to 4 (measured)."
        )
    elif job.result is not None:
        outcome(job.result)


def outcome(found: Retuned) -> None:
    """The verdict, the chart, and the figures behind it."""
    look = st.success if found.gain[1] > 0 else st.warning
    look(f"{found.sentence} Measured on this machine.", icon=":material/straighten:")
    same, all_of = found.after.live.identical_to_plain, found.after.live.prompts
    st.markdown(
        f"**{'The text stayed the same' if same == all_of else 'Not every text is the same'}:** {same} of "
        f"{all_of} greedy texts equal plain decoding's with the retuned drafter. {found.steps} steps in "
        f"{found.seconds:.0f} s on {found.answer_tokens:,} answer tokens."
    )
    data = charts.retuned_table(
        found.before.overlap, found.after.overlap, found.before.old_overlap, found.after.old_overlap
    )
    chart(charts.retuned_figure(data), data, "retuned")
    st.caption(
        "Overlap is sum(min(p, q)), the probability that a draft is accepted, on texts that were not trained on, "
        "over the draft vocabulary. Where the dotted lines fall, older kinds of text were forgotten."
    )
    columns = st.columns(3)
    for column, words, at in (
        (columns[0], "Tokens per target pass", "mean_acceptance_length"),
        (columns[1], "Tokens per second", "tokens_per_second"),
        (columns[2], "Calibration error", "calibration_error"),
    ):
        before, after = (getattr(side.live, at) for side in (found.before, found.after))
        if before is not None and after is not None:
            # no colour and no arrow: only the interval above says whether anything changed
            column.metric(
                f"{words} (measured)", f"{after:.3g}", f"{before:.3g} before", delta_color="off", delta_arrow="off"
            )
    st.caption(
        "Before and after were measured one after the other. Other work on this machine changes the speeds only."
    )
    st.page_link(
        "pages/decode.py",
        label="Decode with the retuned drafter",
        icon=":material/play_circle:",
        query_params={"drafter": OWN, "folder": str(found.folder)},
    )
    st.caption(f"Its folder is {found.folder}. On the command line: --drafter with that folder.")
