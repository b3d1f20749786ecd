"""The lanes of one prompt on a common clock, and the round that is selected in them, in the player."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz.bench import lanes as lane_sets
from specviz.bench.lanes import PLAIN
from specviz.trace import rejections
from specviz.trace.records import Trace
from specviz.ui import recorded
from specviz.ui.drafters_page import Shown
from specviz.ui.lanes_component import Picked
from specviz.ui.lanes_component import lanes as lanes_component
from specviz.ui.player_component import Seek, player
from specviz.views import export, timeline


def race(now: Shown) -> None:
    """The lanes of one prompt on their common clock, and below them the selected round in the player."""
    st.fragment(_race)(now)


def _race(now: Shown) -> None:
    prompts = lane_sets.prompts_of(now.lanes)
    if st.session_state.get("lanes-of") not in prompts:
        st.session_state["lanes-of"] = prompts[0]
    if len(prompts) > 1:
        st.pills("Prompt of the lanes", prompts, key="lanes-of", label_visibility="collapsed", required=True)
    prompt = st.session_state["lanes-of"] or prompts[0]
    order = [PLAIN, *lane_sets.drafters_of(now.lanes)]
    named = [(d, now.lanes[prompt, d]) for d in order if (prompt, d) in now.lanes]
    picked = lanes_component(
        named, "lanes", f"{now.id}|{prompt}", "recorded" if now.recorded else "measured", _meta(now, named)
    )
    st.caption("The length of a block is its measured time. Tokens inside a draft block are spaced evenly, not timed.")
    rows = pd.DataFrame(timeline.table(named))
    st.download_button(
        "Blocks of time (CSV)",
        export.csv(rows),
        "specviz-lanes.csv",
        "text/csv",
        key="lanes-csv",
        on_click="ignore",
        icon=":material/download:",
        type="tertiary",
    )
    _inside(now, prompt, named, picked)


def _meta(now: Shown, named: list[tuple[str, Trace]]) -> str:
    trace = next((t for d, t in named if d != PLAIN), named[0][1])
    s = trace.settings
    return (
        f"{recorded.label(trace)} · {trace.machine.precision} · K {s.k} · temperature {s.temperature:g} · seed "
        f"{s.seed} · clock: seconds of decoding, measured"
    )


def _inside(now: Shown, prompt: str, named: list[tuple[str, Trace]], picked: Picked | None) -> None:
    st.markdown("##### Inside a round: how each drafter builds its K tokens")
    names_here = [d for d, _ in named if d != PLAIN] or [named[0][0]]
    if picked is not None and st.session_state.get("lanes-handled") != picked.id:
        st.session_state["lanes-handled"] = picked.id
        st.session_state["lanes-seek"] = (picked.id, picked.drafter, picked.round)
        st.session_state["lanes-drafter"] = picked.drafter
    wanted = st.session_state.get("lanes-drafter")
    options = [d for d, _ in named]
    if wanted not in options:
        st.session_state["lanes-drafter"] = "hybrid" if "hybrid" in options else names_here[-1]
    drafter = (
        st.segmented_control("Lane", options, key="lanes-drafter", required=True, label_visibility="collapsed")
        or options[0]
    )
    trace = dict(named)[drafter]
    st.caption(f"{trace.drafter_label}. {_built(trace)}")
    seek = st.session_state.get("lanes-seek")
    at = Seek(seek[0], seek[2]) if seek and seek[1] == drafter else None
    player(
        trace,
        key="lanes-player",
        run_id=f"{now.id}|{prompt}|{drafter}",
        meta=recorded.facts(trace),
        seek=at,
        recorded=recorded.label(trace) if now.recorded else None,
    )


def _built(trace: Trace) -> str:
    """How the drafts of this lane were built, with counts."""
    kind = timeline.building(trace)
    rounds = [v for r in trace.rounds for v in r.rows]
    drafting = sum(v.proposed > 0 for v in rounds)
    if kind == "plain":
        return "Every pass gives one token."
    if kind == "lookup":
        return (
            f"Nothing is computed: in {drafting} of {len(rounds)} rounds the last tokens occur earlier in the text, "
            "and the tokens after them were proposed (counted)."
        )
    if kind == "serial":
        return "Tokens are drafted one by one: each is forwarded before the next is drafted, so K passes for K tokens."
    if kind == "parallel":
        return "K mask tokens and the target's hidden states go through one pass: all K tokens are drafted together."
    m = rejections.refinement({("", ""): trace})
    return (
        f"One pass drafts all K tokens; then the serial head, which sees the tokens before, changed "
        f"{m['changed']} of {m['drafts']} drafts. Where the target judged: {m['refined']} wrong drafts corrected, "
        f"{m['worsened']} right drafts made wrong (counted)."
    )
