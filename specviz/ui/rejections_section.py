"""Rejected drafts by position, kind of token, entropy and prompt; each rejection opens in the player."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from specviz import format
from specviz.bench import lanes as lane_sets
from specviz.trace import rejections
from specviz.trace.records import Trace
from specviz.ui import drafters_page, recorded
from specviz.ui.chart import chart
from specviz.ui.drafters_page import Shown
from specviz.ui.player_component import Seek, player
from specviz.views import export
from specviz.views.figures import drafter_charts as figures

_SHOWN = [
    "position",
    "before",
    "drafted",
    "written",
    "token_class",
    "entropy_bits",
    "sure_of_drafted",
    "sure_of_written",
    "prompt",
    "round",
]
_CHANCE = ["p", "q", "u"]
"""Columns for sampled lanes only: greedy p and q are 0 and 1."""


def show(now: Shown) -> None:
    """The whole section, as a fragment: filters and rejections do not redraw the rest of the page."""
    st.fragment(_show)(now)


def _show(now: Shown) -> None:
    st.markdown("#### Where drafts are rejected")
    names = lane_sets.drafters_of(now.lanes)
    if not names:
        st.caption("No drafter has run.")
        return
    if st.session_state.get("fail-drafter") not in names:
        st.session_state["fail-drafter"] = "hybrid" if "hybrid" in names else names[-1]
    drafter = st.segmented_control("Drafter", names, key="fail-drafter", required=True, on_change=_forget) or names[0]
    everything = drafters_page.judged(now.id, now.lanes)
    mine = everything[everything.drafter == drafter]
    columns = st.columns(2, gap="large")
    for place, by in enumerate(figures.BY):
        data = rejections.rates(mine, by)
        with columns[place % 2]:
            chart(figures.failures_figure(data, by, drafter), data, f"rejections-by-{by}", key=f"fail-{by}")
    exact = mine.entropy_exact.all()
    st.caption(
        f"Counted over {len(mine)} judged drafts ({now.source}); a position is classed by the token that the target "
        "emitted there. Entropy: of the target's softmax at temperature 1, over the whole vocabulary"
        + ("." if exact else "; at some positions a lower bound, from the recorded tokens.")
    )
    _browse(now, mine, drafter)


def _forget() -> None:
    for key in ("fail-at", "fail-table"):
        st.session_state.pop(key, None)


def _filters(rejected: pd.DataFrame) -> pd.DataFrame:
    first, second, third, fourth = st.columns(4)
    positions = first.multiselect(
        "Position", sorted(rejected.position.unique()), key="fail-positions", on_change=_forget, placeholder="all"
    )
    classes = second.multiselect(
        "Kind of token",
        [c for c in rejections.CLASSES if c in set(rejected.token_class)],
        key="fail-classes",
        on_change=_forget,
        placeholder="all",
    )
    known = [b for b in rejections.entropy_bands() if b in set(rejected.entropy)]
    bands = third.multiselect("Entropy of the target", known, key="fail-bands", on_change=_forget, placeholder="all")
    prompts = fourth.multiselect(
        "Prompt", list(rejected.prompt.unique()), key="fail-prompts", on_change=_forget, placeholder="all"
    )
    for column, chosen in (("position", positions), ("token_class", classes), ("entropy", bands), ("prompt", prompts)):
        if chosen:
            rejected = rejected[rejected[column].isin(chosen)]
    return rejected.reset_index(drop=True)


def _picked() -> None:
    """Show the rejection of the table's selected row."""
    rows = st.session_state["fail-table"]["selection"]["rows"]
    if rows:
        st.session_state["fail-at"] = rows[0]


def _go(at: int) -> None:
    st.session_state["fail-at"] = at


def _browse(now: Shown, mine: pd.DataFrame, drafter: str) -> None:
    rejected = mine[mine.verdict == "rejected"]
    if rejected.empty:
        st.success("No draft was rejected in these lanes.")
        return
    found = _filters(rejected)
    st.markdown(f"**{len(found)} of {len(rejected)} rejections of {drafter}.** Choose a row to open its round.")
    if found.empty:
        return
    _table(found)
    at = st.session_state.get("fail-at")
    at = at if isinstance(at, int) and 0 <= at < len(found) else None
    _buttons(found, at, drafter)
    if at is not None:
        st.fragment(_open)(now, found.iloc[at], drafter, at, len(found))


def _table(found: pd.DataFrame) -> None:
    """The rejections; a selected row is opened."""
    st.dataframe(
        found[_SHOWN + (_CHANCE if found.q.lt(1).any() else [])],
        hide_index=True,
        key="fail-table",
        on_select=_picked,
        selection_mode="single-row",
        height=280,
        column_config={
            "position": st.column_config.NumberColumn("pos.", width=50),
            "before": st.column_config.TextColumn("text before"),
            "drafted": st.column_config.TextColumn("drafted"),
            "written": st.column_config.TextColumn("written instead"),
            "token_class": st.column_config.TextColumn("kind"),
            "entropy_bits": st.column_config.NumberColumn("entropy, bits", format="%.2f"),
            "sure_of_drafted": st.column_config.NumberColumn(
                "target on draft", format="percent", help="The target's softmax at temperature 1, for the drafted token"
            ),
            "sure_of_written": st.column_config.NumberColumn(
                "on written", format="percent", help="... and for the one that it wrote instead"
            ),
            "p": st.column_config.NumberColumn("p", format="%.3f"),
            "q": st.column_config.NumberColumn("q", format="%.3f"),
            "u": st.column_config.NumberColumn("u", format="%.3f"),
        },
    )


def _buttons(found: pd.DataFrame, at: int | None, drafter: str) -> None:
    """Previous, next, and the rejections as a file."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "Previous rejection",
            icon=":material/navigate_before:",
            key="fail-previous",
            disabled=not at,
            on_click=_go,
            args=((at or 0) - 1,),
        )
        last = at is not None and at == len(found) - 1
        st.button(
            "Open the first" if at is None else "Next rejection",
            icon=":material/navigate_next:",
            key="fail-next",
            disabled=last,
            on_click=_go,
            args=(0 if at is None else at + 1,),
        )
        st.download_button(
            "Rejections (CSV)",
            export.csv(found),
            f"specviz-rejections-{export.safe_name(drafter)}.csv",
            "text/csv",
            key="fail-csv",
            on_click="ignore",
            icon=":material/download:",
        )


def _open(now: Shown, row: pd.Series, drafter: str, at: int, count: int) -> None:
    trace = now.lanes[row.prompt, drafter]
    sure = "" if row.confidence is None or pd.isna(row.confidence) else f", confidence {format.percent(row.confidence)}"
    guess = "" if row.first_guess is None or row.first_guess == row.drafted else f" (first guess “{row.first_guess}”)"
    st.text(
        f"Rejection {at + 1} of {count}: {row.prompt}, round {row['round']}, position {row.position}. Drafted "
        f"“{row.drafted}”{guess}, written “{row.written}” ({row.token_class}){sure}."
    )
    # the player's step in which this draft is judged
    steps = _steps(trace, int(row["round"]) - 1)
    frame = next((i for i, f in enumerate(steps) if f["kind"] == "judge" and f["slots"] == [int(row.position) - 1]), 0)
    where = f"{now.id}|{row.prompt}|{drafter}"
    player(
        trace,
        key="fail-player",
        run_id=where,
        meta=recorded.facts(trace),
        recorded=recorded.label(trace) if now.recorded else None,
        seek=Seek(f"{where}|{row['round']}|{row.position}", int(row["round"]) - 1, frame),
    )


def _steps(trace: Trace, number: int) -> list[dict]:
    from specviz.views import frames

    return frames.row_rounds(trace, 0, 0)[number]["frames"]
