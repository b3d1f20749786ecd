"""The Accept rule page's choice of a position: a run, a row, a draft in it, and the warping of its logits."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from specviz.sampling import accept_rules
from specviz.trace.records import Position, Trace
from specviz.trace.token_text import visible
from specviz.ui import recorded, stage
from specviz.views import position_case
from specviz.views.position_case import Case

PAPER = "the paper's counterexample: two tokens, for look-ahead"


@dataclass(frozen=True)
class Chosen:
    """The chosen position. `id` changes with everything that changes its p and q."""

    case: Case
    id: str
    note: str
    trace: Trace | None
    """Its run; None for the paper's example."""


def _runs() -> dict[str, Trace | None]:
    """The runs with drafted positions by title, the toy run first, and the paper's example (None)."""
    found: dict[str, Trace] = {}
    run = stage.current()
    own = st.session_state.get("opened") or (run.trace if run is not None else None)
    for path in reversed(recorded.shipped()):
        trace = recorded.load(path)
        found[f"recorded: {trace.pair}, {trace.drafter}, temperature {trace.settings.temperature:g}"] = trace
    if own is not None:
        found[f"your run: {own.pair}, {own.drafter}, temperature {own.settings.temperature:g}"] = own
    drafted = {
        n: t for n, t in found.items() if any(position_case.drafted_positions(t, row) for row in range(len(t.prompts)))
    }
    return {**drafted, PAPER: None}


def _own_settings(trace: Trace) -> None:
    st.session_state["rule_temperature"] = float(min(2.0, trace.settings.temperature))
    st.session_state["rule_top_k"] = min(12, trace.settings.top_k)
    st.session_state["rule_top_p"] = max(0.05, trace.settings.top_p)


def choose() -> Chosen:
    """The controls above the bars: run, position, and the warping of its logits."""
    runs = _runs()
    left, right = st.columns(2)
    with left:
        name = st.selectbox("A position of", list(runs), key="rule_run", help="Recorded runs need no model.")
    trace = runs[name]
    if trace is None:
        case = position_case.two_tokens(accept_rules.PAPER_P, accept_rules.PAPER_Q)
        note = "Made up: the DSpark paper's example of what look-ahead does. Choose that rule below."
        return Chosen(case, "paper", note, None)
    if st.session_state.get("rule_shown") != (name, trace.recorded_at):
        st.session_state["rule_shown"] = (name, trace.recorded_at)
        for key in ("rule_position", "rule_row"):
            st.session_state.pop(key, None)
        _own_settings(trace)
    with right:
        row, at, position = _position(trace)
    temperature, top_k, top_p = _warping()
    case = position_case.case_of(trace, position, temperature, top_k, top_p)
    id = f"{name}|{trace.recorded_at}|{row}|{at}|{temperature}|{top_k}|{top_p}"
    return Chosen(case, id, _note(case, trace), trace)


def _position(trace: Trace) -> tuple[int, int, Position]:
    """The chosen row, the index among its drafted positions, and that position."""
    row = 0
    if len(trace.prompts) > 1:
        row = st.selectbox(
            "Row of the batch", range(len(trace.prompts)), key="rule_row", format_func=lambda i: str(i + 1)
        )
    positions = position_case.drafted_positions(trace, row)
    if not positions:
        st.info("Nothing was drafted in this row: choose another.")
        st.stop()
    at = st.selectbox(
        "Round and draft",
        range(len(positions)),
        key="rule_position",
        format_func=lambda i: _title(trace, *positions[i]),
    )
    return row, at, positions[at][2]


def _warping() -> tuple[float, int, float]:
    """Temperature, top-k and top-p of the position."""
    one, two, three = st.columns(3)
    with one:
        temperature = st.slider(
            "Temperature",
            0.0,
            2.0,
            step=0.05,
            key="rule_temperature",
            help="Applied to both models' recorded logits; no model runs. 0 is greedy.",
        )
    with two:
        top_k = st.slider("Top-k", 0, 12, key="rule_top_k", help="Keep the k likeliest tokens of each. 0 is off.")
    with three:
        top_p = st.slider(
            "Top-p",
            0.05,
            1.0,
            step=0.05,
            key="rule_top_p",
            help="Keep the smallest set of tokens with this much probability. 1 is off.",
        )
    return temperature, top_k, top_p


def _title(trace: Trace, round_: int, slot: int, position: Position) -> str:
    drafted = position.draft_token
    token = visible("?" if drafted is None else trace.pieces.get(drafted, "?"))
    return f"round {round_ + 1}, draft {slot + 1}: “{token}”, {position.verdict}"


def _note(case: Case, trace: Trace) -> str:
    note = f"Recorded {recorded.label(trace)}."
    if case.hidden:
        note += (
            f" {case.hidden:,} tokens are summed up"
            + ("." if case.exact else "; warped again from those kept, so approximate.")
            + " In trials they count as one token: exact for the accept rule, approximate for wrong ones."
        )
    return note
