"""The Accept rule page through Streamlit's own test runner: recorded runs, every rule, warping, proof."""

import time
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.sampling import accept_rules
from specviz.trace.records import Settings
from specviz.ui import accept_rule_choice, accept_rule_page, conventions, preparing, recorded
from specviz.views import position_case

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(empty_home, monkeypatch):
    """The page, in a home where nothing was ever fetched; the first page must not begin to."""
    st.cache_resource.clear()
    monkeypatch.setattr(preparing, "show", lambda: None)
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    return app.switch_page("pages/accept_rule.py").run()


def drawn(app):
    """Go on, as the browser's polling does, until ten thousand trials are drawn."""
    app.button(key="rule_go").click().run()
    deadline = time.monotonic() + 120
    while app.session_state["rule_goal"] and time.monotonic() < deadline:
        app.run()
    return app.run()


def said(app) -> str:
    return " ".join(e.value for kind in (app.success, app.error, app.warning, app.info) for e in kind)


def test_it_opens_on_the_toy_run_without_any_model(page, empty_home):
    assert not page.exception and not page.error
    assert page.selectbox(key="rule_run").value.startswith("recorded: toy")
    assert not list((empty_home / "models").glob("*")), "nothing was fetched"


def test_ten_thousand_trials_of_the_right_rule_follow_p(page):
    app = drawn(page)
    assert not app.exception
    assert app.session_state["rule_tally"].trials == accept_rule_page.TRIALS
    assert "The counts agree with p" in said(app)
    assert [m.label for m in app.metric][:3] == ["Total variation from p", "Chi-square", "p-value"]
    assert float(app.metric[0].value) < 0.03


@pytest.mark.parametrize("rule", [r for r in accept_rules.RULES if r is not accept_rules.RIGHT], ids=lambda r: r.name)
def test_the_histogram_agrees_with_every_flag(page, rule):
    """One switch a rule: the lossy ones are caught, the others are not."""
    page.selectbox(key="rule_name").select(rule.name).run()
    app = drawn(page)
    assert not app.exception
    assert ("The counts agree with p" if rule.lossless else "Caught") in said(app)
    assert rule.source.split("#")[0] in " ".join(m.value for m in app.markdown)


@pytest.mark.parametrize("at", range(3))
def test_every_recorded_run_can_be_chosen(page, at):
    """And its settings become the page's own."""
    names = [n for n in page.selectbox(key="rule_run").options if n.startswith("recorded")]
    app = page.selectbox(key="rule_run").select(names[at]).run()
    assert not app.exception and not app.error
    trace = recorded.load(list(reversed(recorded.shipped()))[at])
    assert app.slider(key="rule_temperature").value == trace.settings.temperature
    assert len(app.selectbox(key="rule_position").options) == len(position_case.drafted_positions(trace))


def test_the_papers_counterexample_can_be_chosen(page):
    page.selectbox(key="rule_run").select(accept_rule_choice.PAPER).run()
    page.selectbox(key="rule_name").select("look-ahead").run()
    app = drawn(page)
    assert not app.exception and "Caught" in said(app)
    tally = app.session_state["rule_tally"]
    assert tally.counts[0] / tally.trials == pytest.approx(0.85, abs=0.02)


def test_temperature_top_k_and_top_p_apply_to_p_and_q(page):
    """Greedy makes p certain: no test is possible then, and no tick is given for it."""
    page.slider(key="rule_temperature").set_value(0.0).run()
    app = drawn(page)
    assert not app.exception
    assert "no test is possible" in said(app) and not app.success
    app.slider(key="rule_temperature").set_value(1.5)
    app.slider(key="rule_top_k").set_value(3)
    app.slider(key="rule_top_p").set_value(0.8)
    app.run()
    assert not app.exception and app.session_state["rule_tally"] is None


def test_moved_bars_change_p_and_clear_earlier_trials(page):
    app = drawn(page)
    p, q = (0.1, 0.2, 0.3, 0.4, 0.0, 0.0), (0.5, 0.3, 0.2, 0.0, 0.0, 0.0)
    app.session_state[accept_rule_page.KEY] = {
        "hand": {"case": app.session_state["rule_what"][0], "p": p, "q": q, "token": 1, "u": 0.4}
    }
    app.run()
    assert app.session_state["rule_tally"] is None and app.session_state["rule_what"][1] == p
    counts = drawn(app).session_state["rule_tally"].counts
    assert [c / accept_rule_page.TRIALS for c in counts] == pytest.approx(p, abs=0.02)


def test_a_batch_has_its_rows_to_choose_from(page):
    """A position of another row than the first, of a run opened from a file."""
    run = Run(
        RunRequest(
            "toy",
            "autoregressive",
            "the cat the the dog",
            Settings(k=2, temperature=1.0, max_new_tokens=6),
            raw=True,
            rows=2,
        )
    ).execute()
    page.session_state["opened"] = run.trace
    page.run()
    name = next(n for n in page.selectbox(key="rule_run").options if n.startswith("your run"))
    page.selectbox(key="rule_run").select(name).run()
    before = page.selectbox(key="rule_position").options
    app = page.selectbox(key="rule_row").select(1).run()
    assert not app.exception and not app.error
    assert len(app.selectbox(key="rule_position").options) == len(position_case.drafted_positions(run.trace, 1))
    assert app.selectbox(key="rule_position").options != before


def test_a_link_opens_a_rule(empty_home, monkeypatch):
    """And a rule that does not exist is passed over."""
    monkeypatch.setattr(preparing, "show", lambda: None)
    for asked, shown in (("look-ahead", "look-ahead"), ("nonsense", "right")):
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
        app.query_params["rule"] = asked
        app.switch_page("pages/accept_rule.py").run()
        assert not app.exception and app.selectbox(key="rule_name").value == shown


def test_all_rules_can_be_compared_side_by_side(page):
    """What is seen agrees with what is declared, rule by rule, with the p and q of the toy run."""
    app = page.button(key="rule_all").click().run()
    assert not app.exception
    table = next(d.value for d in app.dataframe if "declared" in d.value.columns)
    wanted = ["agrees with p" if r.lossless else "differs from p" for r in accept_rules.RULES]
    assert list(table.seen) == wanted


def test_a_new_draft_is_drawn_from_q(page):
    page.button(key="rule_new").click().run()
    first = page.session_state["rule_set"]
    page.button(key="rule_new").click().run()
    assert first["id"] != page.session_state["rule_set"]["id"] and 0 <= first["u"] < 1


def test_the_proof_of_the_toy_run_is_green_and_says_why(page):
    page.select_slider(key="rule-proof-samples").set_value(200).run()
    app = page.button(key="rule-proof-go").click().run()
    deadline = time.monotonic() + 90
    while app.session_state["rule-proof-job"].alive and time.monotonic() < deadline:
        app.run()
        time.sleep(0.1)
    app.run()
    assert not app.exception and not app.error
    assert "Nothing was lost" in said(app) and "200 short runs each way" in said(app)


def test_too_few_runs_are_never_green(page):
    page.select_slider(key="rule-proof-samples").set_value(100).run()
    app = page.button(key="rule-proof-go").click().run()
    app.session_state["rule-proof-job"].join(60)
    app.run()
    assert "Inconclusive" in said(app) and not any("lost" in s.value for s in app.success)


def test_every_convention_has_its_number_and_formula():
    """From the recorded toy run's own counts; lengths with and without the bonus token differ by one."""
    trace = recorded.load(recorded.shipped()[-1])
    table = conventions.table(trace).set_index("convention")
    assert "18 / 22" in table.formula.iloc[0]
    assert table.value["with bonus, vLLM"] == pytest.approx(table.value["without bonus"] + 1)
    assert set(table.figure) == {"acceptance rate", "mean acceptance length", "tokens per target pass"}
    assert len(conventions.by_position(trace)) == trace.settings.k
