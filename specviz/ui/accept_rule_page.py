"""The Accept rule page: p, q and u of one position, which can be moved, and ten thousand trials of any rule."""

from __future__ import annotations

import time

import streamlit as st

from specviz.errors import SpecVizError
from specviz.format import number
from specviz.sampling import accept_rules
from specviz.sampling.accept_rules import Tally
from specviz.trace.token_text import visible
from specviz.ui import accept_rule_result
from specviz.ui.accept_rule_choice import Chosen
from specviz.ui.accept_rule_result import Hand
from specviz.views import position_case
from specviz.views.component_source import load_component
from specviz.views.figures import palette

_source = load_component("accept_rule")
_component = st.components.v2.component("specviz_accept_rule", html=_source.html, css=_source.css, js=_source.js)
KEY = "accept_rule"
TRIALS = 10_000
COMPARED = 2_000
"""Trials of each rule where all are compared."""
TICK_SECONDS = 0.4
WORK_SECONDS = 0.2
"""Seconds of trials between two drawings."""


def show(chosen: Chosen) -> None:
    """Rule, buttons, bars and trials. Reruns by itself while trials are drawn. A link may name a rule: ?rule=..."""
    linked = st.query_params.get("rule")
    if "rule_name" not in st.session_state and linked in {r.name for r in accept_rules.RULES}:
        st.session_state["rule_name"] = linked
    name = st.selectbox(
        "Rule for the trials",
        [r.name for r in accept_rules.RULES],
        key="rule_name",
        format_func=lambda n: (
            f"{accept_rules.rule(n).title} ({'lossless' if accept_rules.rule(n).lossless else 'NOT lossless'})"
        ),
        help="The right rule, or one of the known wrong ones.",
    )
    rule = accept_rules.rule(name)
    st.markdown(f"{rule.sentence} *{'From' if rule is accept_rules.RIGHT else 'Seen in'}: {rule.source}.*")
    working = st.session_state.get("rule_goal", 0) > 0
    st.fragment(_tick, run_every=TICK_SECONDS if working else None)(chosen, rule)


def _hand(chosen: Chosen) -> Hand:
    """p, q, draft and u as set on the page; the run's own numbers until something is moved."""
    case = chosen.case
    given = (st.session_state.get(KEY) or {}).get("hand") or {}
    if given.get("case") == chosen.id and len(given.get("p", ())) == len(case.p) == len(given.get("q", ())):
        token = min(max(0, int(given["token"])), len(case.p) - 1)
        return Hand(tuple(map(float, given["p"])), tuple(map(float, given["q"])), token, float(given["u"]))
    return Hand(case.p, case.q, case.drafted or 0, 0.5 if case.u is None else case.u)


def _tick(chosen: Chosen, rule: accept_rules.Rule) -> None:
    state, hand = st.session_state, _hand(chosen)
    what = (chosen.id, hand.p, hand.q, rule.name)
    if state.get("rule_what") != what:  # the bars moved: what was drawn belongs to other p and q
        state["rule_what"], state["rule_tally"] = what, None
        if state.get("rule_goal"):
            state["rule_goal"] = 0
            st.rerun()
    _buttons(chosen, hand)
    try:
        p, q = position_case.tensors(hand.p, hand.q)
        done = _draw_some(rule, p, q)
    except (SpecVizError, ValueError) as error:
        st.error(str(error))
        return
    tally: Tally | None = state.get("rule_tally")
    asked = tuple(rule.asked(p).tolist())
    _component(key=KEY, data=_data(chosen, rule, tally, asked, tuple(p.tolist())), on_hand_change=lambda: None)
    if tally is not None and not state.get("rule_goal"):
        accept_rule_result.show(chosen.case, rule, tally, asked, hand)
    with st.expander("Every number of this position"):
        st.dataframe(
            accept_rule_result.numbers_of(chosen.case, hand),
            hide_index=True,
            key="rule-numbers",
            height="content",
            column_config={n: st.column_config.NumberColumn(n, format="%.4f") for n in accept_rule_result.COLUMNS},
        )
    if done:
        st.rerun()


def _data(
    chosen: Chosen, rule: accept_rules.Rule, tally: Tally | None, asked: tuple[float, ...], p: tuple[float, ...]
) -> dict:
    """What the component draws. asked: the law that the rule claims to follow."""
    case, request = chosen.case, st.session_state.get("rule_set")
    whole = len(case.labels) - case.sums
    return {
        "case": {
            "id": chosen.id,
            "tokens": [visible(x) if i < whole else x for i, x in enumerate(case.labels)],
            "p": case.p,
            "q": case.q,
            "drafted": case.drafted,
            "u": case.u,
            "sums": case.sums,
            "note": chosen.note,
        },
        "set": request if request and request["case"] == chosen.id else None,
        "tally": None
        if tally is None
        else {
            "trials": tally.trials,
            "accepted": tally.accepted,
            "drawn": tally.drawn,
            "asked": asked,
            "goal": "p" if asked == p else f"p cut to its top {accept_rules.TOP}",
        },
        "verdict": _progress(tally, rule),
        "colours": palette.ROLES,
    }


def _buttons(chosen: Chosen, hand: Hand) -> None:
    state = st.session_state
    working = state.get("rule_goal", 0) > 0
    with st.container(horizontal=True, vertical_alignment="center"):
        if working:
            if st.button("Stop", icon=":material/stop:", key="rule_stop"):
                state["rule_goal"] = 0
                st.rerun()
        elif st.button(
            "Do it ten thousand times",
            type="primary",
            icon=":material/play_arrow:",
            key="rule_go",
            help="Draft, judge and draw 10,000 times with the p and q above, by the chosen rule",
        ):
            tally = state.get("rule_tally")
            state["rule_goal"] = (tally.trials if tally else 0) + TRIALS
            st.rerun()
        if st.button(
            "New draft and u",
            icon=":material/casino:",
            key="rule_new",
            help="A token drawn from q, and a fresh uniform to judge it",
        ):
            state["rule_count"] = state.get("rule_count", 0) + 1
            token, u = position_case.fresh(hand.q, 0, state["rule_count"])
            state["rule_set"] = {"id": f"new {state['rule_count']}", "case": chosen.id, "token": token, "u": u}
        if st.button("Back to the run's numbers", icon=":material/undo:", key="rule_back"):
            state["rule_count"] = state.get("rule_count", 0) + 1
            case = chosen.case
            state["rule_set"] = {
                "id": f"back {state['rule_count']}",
                "case": chosen.id,
                "token": case.drafted or 0,
                "u": 0.5 if case.u is None else case.u,
                "p": case.p,
                "q": case.q,
            }


def _draw_some(rule: accept_rules.Rule, p, q) -> bool:
    """Trials for a part of a second while the goal is not reached. True when the last one is drawn."""
    state = st.session_state
    goal = state.get("rule_goal", 0)
    if not goal:
        return False
    tally = state.get("rule_tally") or Tally.empty(len(p))
    end = time.monotonic() + WORK_SECONDS
    while tally.trials < goal and time.monotonic() < end:
        tally = accept_rules.tally(rule, p, q, min(100, goal - tally.trials), before=tally)
    state["rule_tally"] = tally
    if tally.trials >= goal:
        state["rule_goal"] = 0
        return True
    return False


def _progress(tally: Tally | None, rule: accept_rules.Rule) -> str:
    if tally is None:
        return "Nothing drawn yet. Do it ten thousand times, and see whether the bars reach the marks."
    return (
        f"{rule.title}: a draft was accepted in {number(100 * sum(tally.accepted) / max(1, tally.trials))} % of trials."
    )


def compare(chosen: Chosen) -> None:
    """Every rule with its flag, and on a click the result of each with this p and q."""
    hand = _hand(chosen)
    what = (chosen.id, hand.p, hand.q)
    if st.button(f"Try every rule {COMPARED:,} times", icon=":material/balance:", key="rule_all"):
        p, q = position_case.tensors(hand.p, hand.q)
        bar, found = st.progress(0.0), []
        for i, rule in enumerate(accept_rules.RULES):
            bar.progress(i / len(accept_rules.RULES), rule.title)
            found.append((rule, accept_rules.tally(rule, p, q, COMPARED), rule.asked(p).tolist()))
        bar.empty()
        st.session_state["rule_compared"] = (what, found)
    of, found = st.session_state.get("rule_compared", (None, []))
    if of == what:
        st.dataframe(
            [accept_rule_result.row_of(*each) for each in found], hide_index=True, key="rule-compared", height="content"
        )
    else:
        st.caption("Results of all rules with the p and q above, side by side.")
    st.markdown(
        "\n".join(
            f"- **{r.title}** ({'lossless' if r.lossless else 'NOT lossless'}). {r.sentence} *{r.source}*"
            for r in accept_rules.RULES
        )
    )
