"""The Accept rule page's results: tests of the drawn counts against p, the histogram, and all rules compared."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from specviz.checks import statistics
from specviz.format import number
from specviz.sampling import accept_rules
from specviz.sampling.accept_rules import Tally
from specviz.trace.token_text import visible
from specviz.ui.chart import chart
from specviz.views import position_case
from specviz.views.figures import emitted_tokens
from specviz.views.position_case import Case


@dataclass(frozen=True)
class Hand:
    """p, q, the draft and u as set on the page."""

    p: tuple[float, ...]
    q: tuple[float, ...]
    token: int
    u: float


def show(case: Case, rule: accept_rules.Rule, tally: Tally, asked: tuple[float, ...], hand: Hand) -> None:
    """Total variation, chi-square, their verdict, and the histogram. asked: the law that the rule claims to follow."""
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
    three.metric(
        "p-value",
        _p_value(test.p_value),
        help="Probability of a difference this large if nothing is lost.",
    )
    four.metric(
        "Drafts accepted",
        number(sum(tally.accepted) / tally.trials),
        help=f"Counted. The accept rule accepts {number(sum(map(min, hand.p, hand.q)))}, the sum of min(p, q).",
    )
    _verdict(rule, tally, test.p_value)
    labels = [visible(x) for x in case.labels]
    data = emitted_tokens.emitted_table(labels, tally.accepted, tally.drawn, asked)
    figure = emitted_tokens.emitted_figure(data, rule.title, distance or 0.0)
    with st.expander("The histogram as a chart, with its numbers and exports"):
        chart(figure, data, f"emitted-{rule.name}", key="rule-emitted")


def _verdict(rule: accept_rules.Rule, tally: Tally, p_value: float | None) -> None:
    flag = "declared lossless" if rule.lossless else "declared NOT lossless"
    if p_value is None:
        st.info(f"Nearly all of p is on one token here: no test is possible. The rule is {flag}.")
    elif p_value < 1e-6:
        (st.error if rule.lossless else st.success)(
            f"Caught: counts like these do not come from p. The rule is {flag}"
            + (", so this must not be." if rule.lossless else ", and the histogram shows it."),
            icon=":material/gavel:",
        )
    elif rule.lossless:
        st.success(f"The counts agree with p. The rule is {flag}, and the histogram agrees.", icon=":material/check:")
    else:
        st.warning(
            f"Not caught with these p and q after {tally.trials:,} trials, though the rule is {flag}: take "
            "another position, or drag p and q apart.",
            icon=":material/search:",
        )


COLUMNS = ("p", "q", "min(p, q)", "min(1, p/q)", "max(0, p - q)", "leftover, normalised")


def numbers_of(case: Case, hand: Hand) -> dict[str, list]:
    """p, q and everything computed from them, by the engine's own functions."""
    kept, left, share = position_case.chances(hand.p, hand.q)
    ratios = [min(1.0, p / q) if q > 0 else None for p, q in zip(hand.p, hand.q)]
    columns: list[list] = [list(hand.p), list(hand.q), list(kept), ratios, list(left), list(share)]
    return {"token": [visible(x) for x in case.labels], **dict(zip(COLUMNS, columns))}


def _p_value(p: float | None) -> str:
    return "none" if p is None else "< 1e-12" if p < 1e-12 else f"{p:.2g}"


def row_of(rule: accept_rules.Rule, tally: Tally, asked: list[float]) -> dict[str, str]:
    test = statistics.chi_square(tally.counts, asked)
    distance = statistics.total_variation(dict(enumerate(tally.counts)), dict(enumerate(asked)))
    seen = "no test possible" if test.p_value is None else "differs from p" if test.p_value < 1e-6 else "agrees with p"
    return {
        "rule": rule.title,
        "declared": "lossless" if rule.lossless else "NOT lossless",
        "seen": seen,
        "total variation": number(distance),
        "p-value": _p_value(test.p_value),
        "drafts accepted": number(sum(tally.accepted) / tally.trials),
    }
