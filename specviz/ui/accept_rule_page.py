"""The accept rule in the reader's hands: a position of a run, its p, q and u, and ten thousand trials of any rule."""

from __future__ import annotations

import time
from dataclasses import dataclass

import streamlit as st

from specviz.checks import statistics
from specviz.errors import SpecVizError
from specviz.format import number
from specviz.sampling import accept_rules
from specviz.sampling.accept_rules import Tally
from specviz.trace.records import Trace
from specviz.trace.token_text import visible
from specviz.ui import recorded, stage
from specviz.ui.chart import chart
from specviz.views import position_case
from specviz.views.component_source import load_component
from specviz.views.figures import emitted_tokens, palette
from specviz.views.position_case import Case

_source = load_component("accept_rule")
_component = st.components.v2.component("specviz_accept_rule", html=_source.html, css=_source.css, js=_source.js)
KEY = "accept_rule"
TRIALS = 10_000
COMPARED = 2_000
"""Trials of each rule where all are compared."""
TICK_SECONDS = 0.4
WORK_SECONDS = 0.2
"""How long one tick draws before it shows what it has."""
PAPER = "the paper's counterexample: two tokens, for look-ahead"


@dataclass(frozen=True)
class Chosen:
    """The position in hand. `id` changes with everything that changes its p and q."""

    case: Case
    id: str
    note: str
    trace: Trace | None
    """The run it comes from."""


@dataclass(frozen=True)
class Hand:
    """p, q, the draft and u as the reader has set them."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    token: int
    u: float


# ------------------------------------------------------------------------------------- choosing a position


def _runs() -> dict[str, Trace | None]:
    """The runs whose positions can be taken in hand, the toy run first."""
    found: dict[str, Trace | None] = {}
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
    return drafted | {PAPER: None}


def _own_settings(trace: Trace) -> None:
    st.session_state["rule_temperature"] = float(min(2.0, trace.settings.temperature))
    st.session_state["rule_top_k"] = min(12, trace.settings.top_k)
    st.session_state["rule_top_p"] = max(0.05, trace.settings.top_p)


def choose() -> Chosen:
    """The controls above the bars: which run, which position, and how its logits are warped."""
    runs = _runs()
    left, right = st.columns(2)
    with left:
        name = st.selectbox("A position of", list(runs), key="rule_run", help="Recorded runs need no model.")
    trace = runs[name]
    if trace is None:
        case = position_case.two_tokens(accept_rules.PAPER_P, accept_rules.PAPER_Q)
        note = "Made up: the example by which the DSpark paper shows what look-ahead does. Choose that rule below."
        return Chosen(case, "paper", note, None)
    if st.session_state.get("rule_shown") != (name, trace.recorded_at):
        st.session_state["rule_shown"] = (name, trace.recorded_at)
        for key in ("rule_position", "rule_row"):
            st.session_state.pop(key, None)
        _own_settings(trace)
    with right:
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
    one, two, three = st.columns(3)
    with one:
        temperature = st.slider(
            "Temperature",
            0.0,
            2.0,
            step=0.05,
            key="rule_temperature",
            help="Acts on both models' kept logits; no model runs. 0 is greedy.",
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
    case = position_case.case_of(trace, positions[at][2], temperature, top_k, top_p)
    id = f"{name}|{trace.recorded_at}|{row}|{at}|{temperature}|{top_k}|{top_p}"
    return Chosen(case, id, _note(case, trace), trace)


def _title(trace: Trace, round_: int, slot: int, position) -> str:
    token = visible(trace.pieces.get(position.draft_token, "?"))
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


# ----------------------------------------------------------------------------------------------- the hands


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
        help="One switch: the right rule, or one of the ways in which it is got wrong.",
    )
    rule = accept_rules.rule(name)
    st.markdown(f"{rule.sentence} *{'From' if rule is accept_rules.RIGHT else 'Met in'}: {rule.source}.*")
    working = st.session_state.get("rule_goal", 0) > 0
    st.fragment(_tick, run_every=TICK_SECONDS if working else None)(chosen, rule)


def _hand(chosen: Chosen) -> Hand:
    """Where the reader's hands are; the run's own numbers as long as nothing was moved."""
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
    _component(
        key=KEY,
        data={
            "case": {
                "id": chosen.id,
                "tokens": [
                    visible(x) if i < len(chosen.case.labels) - chosen.case.sums else x
                    for i, x in enumerate(chosen.case.labels)
                ],
                "p": chosen.case.p,
                "q": chosen.case.q,
                "drafted": chosen.case.drafted,
                "u": chosen.case.u,
                "sums": chosen.case.sums,
                "note": chosen.note,
            },
            "set": wish if (wish := state.get("rule_set")) and wish["case"] == chosen.id else None,
            "tally": None
            if tally is None
            else {
                "trials": tally.trials,
                "accepted": tally.accepted,
                "drawn": tally.drawn,
                "asked": asked,
                "goal": "p" if asked == tuple(p.tolist()) else f"p cut to its top {accept_rules.TOP}",
            },
            "verdict": _progress(tally, rule),
            "colours": palette.ROLES,
        },
        on_hand_change=lambda: None,
    )
    if tally is not None and not state.get("rule_goal"):
        _result(chosen.case, rule, tally, asked, hand)
    with st.expander("Every number of this position"):
        st.dataframe(
            _numbers(chosen.case, hand),
            hide_index=True,
            key="rule-numbers",
            height="content",
            column_config={n: st.column_config.NumberColumn(n, format="%.4f") for n in _COLUMNS},
        )
    if done:
        st.rerun()


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
    """Trials for a part of a second, as long as some are wanted. True when the last one is drawn."""
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
        return "Nothing drawn yet: do it ten thousand times, and see whether the bars grow onto the marks."
    return f"{rule.title}: a draft was kept in {number(100 * sum(tally.accepted) / max(1, tally.trials))} % of trials."


# ---------------------------------------------------------------------------------------------- the result


def _result(case: Case, rule: accept_rules.Rule, tally: Tally, asked: tuple[float, ...], hand: Hand) -> None:
    """Total variation, chi-square, what they say, and the chart with its exports."""
    test = statistics.chi_square(tally.counts, asked)
    distance = statistics.total_variation(dict(enumerate(tally.counts)), dict(enumerate(asked)))
    one, two, three, four = st.columns(4)
    one.metric(
        "Total variation from p",
        number(distance),
        help="Half the sum of differences between shares and p. "
        "0 is equal. Chance alone gives about 0.005 to 0.01 after 10,000 trials.",
    )
    two.metric(
        "Chi-square",
        number(test.statistic) if test.statistic < float("inf") else "infinite",
        help=f"{test.freedom} degrees of freedom, bins that expect fewer than 5 are pooled.",
    )
    three.metric("p-value", _p_value(test.p_value), help="The chance to be at least this far off if nothing is lost.")
    four.metric(
        "Drafts kept",
        number(sum(tally.accepted) / tally.trials),
        help=f"Counted. The accept rule keeps {number(sum(map(min, hand.p, hand.q)))}, the sum of min(p, q).",
    )
    flag = "declared lossless" if rule.lossless else "declared NOT lossless"
    if test.p_value is None:
        st.info(f"Nearly all of p is on one token here: no test is possible. The rule is {flag}.")
    elif test.p_value < 1e-6:
        (st.error if rule.lossless else st.success)(
            f"Caught: counts like these do not come from p. The rule is {flag}"
            + (", so this must not be." if rule.lossless else ", and the histogram shows it."),
            icon=":material/gavel:",
        )
    elif rule.lossless:
        st.success(f"Nothing speaks against p. The rule is {flag}, and the histogram agrees.", icon=":material/check:")
    else:
        st.warning(
            f"Not caught with these p and q after {tally.trials:,} trials, though the rule is {flag}: take "
            "another position, or drag p and q apart.",
            icon=":material/search:",
        )
    labels = [visible(x) for x in case.labels]
    data = emitted_tokens.emitted_table(labels, tally.accepted, tally.drawn, asked)
    with st.expander("The histogram as a chart, with its numbers and exports"):
        chart(
            emitted_tokens.emitted_figure(data, rule.title, distance), data, f"emitted-{rule.name}", key="rule-emitted"
        )


_COLUMNS = ("p", "q", "min(p, q)", "min(1, p/q)", "max(0, p - q)", "leftover, normalised")


def _numbers(case: Case, hand: Hand) -> dict[str, list]:
    """p, q and all that follows from them, computed by the engine's own functions."""
    kept, left, share = position_case.chances(hand.p, hand.q)
    ratios = [min(1.0, p / q) if q > 0 else None for p, q in zip(hand.p, hand.q)]
    columns = zip(_COLUMNS, (hand.p, hand.q, kept, ratios, left, share))
    return {"token": [visible(x) for x in case.labels]} | {name: list(values) for name, values in columns}


def _p_value(p: float | None) -> str:
    return "none" if p is None else "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def compare(chosen: Chosen) -> None:
    """Every rule with its flag, and on a click what each makes of the p and q in hand."""
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
        st.dataframe([_row(*each) for each in found], hide_index=True, key="rule-compared", height="content")
    else:
        st.caption("What the rules make of the p and q above, side by side.")
    st.markdown(
        "\n".join(
            f"- **{r.title}** ({'lossless' if r.lossless else 'NOT lossless'}). {r.sentence} *{r.source}*"
            for r in accept_rules.RULES
        )
    )


def _row(rule: accept_rules.Rule, tally: Tally, asked: list[float]) -> dict[str, str]:
    test = statistics.chi_square(tally.counts, asked)
    distance = statistics.total_variation(dict(enumerate(tally.counts)), dict(enumerate(asked)))
    seen = "no test possible" if test.p_value is None else "differs from p" if test.p_value < 1e-6 else "agrees with p"
    return {
        "rule": rule.title,
        "declared": "lossless" if rule.lossless else "NOT lossless",
        "seen": seen,
        "total variation": number(distance),
        "p-value": _p_value(test.p_value),
        "drafts kept": number(sum(tally.accepted) / tally.trials),
    }
