"""The Load page through Streamlit's own test runner: a served load, one step, the counterexample, a simulation."""

import time

from streamlit.testing.v1 import AppTest

TOY = {"load-pair": "toy", "load-drafter": "autoregressive", "load-rate": "8.0", "load-seconds": "2"}


def at_load(open_app, **more):
    return open_app(**(TOY | more)).switch_page("pages/load.py").run()


def wait(app, worker, seconds=200):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        app.run()
        if not worker(app).alive:
            return app.run()
        time.sleep(0.2)
    raise AssertionError("it did not end")


def words(app):
    kinds = (app.error, app.warning, app.info, app.success, app.markdown, app.caption)
    return " ".join(element.value for kind in kinds for element in kind)


def test_the_page_opens_with_one_step_and_nothing_served(open_app):
    app = at_load(open_app)
    assert not app.exception and not app.error
    assert "Nothing served yet" in words(app) and "candidates are verified" in words(app)
    app.selectbox("step-cost").set_value("a flat cost up to 16 tokens (made up)").run()
    app.slider("step-survival").set_value(0.3).run()
    app.slider("step-requests").set_value(64).run()
    assert not app.exception and "No candidate pays" in words(app)


def test_a_load_is_served_under_all_policies(open_app):
    app = at_load(open_app)
    app.button("load-run").click().run()
    app = wait(app, lambda a: a.session_state["loads"][-1])
    assert not app.exception and not app.error
    outcomes = app.session_state["loads"][-1].results
    assert [o.policy for o in outcomes] == ["none", "fixed", "uniform", "prefix"]
    assert len({o.summary.requests for o in outcomes}) == 1 and all(o.summary.identical for o in outcomes)
    assert "equals its text alone" in words(app)


def parted():
    from types import SimpleNamespace as Some

    from specviz.ui import load_page

    summary = Some(identical=False, near_ties=1, differing=0, widest_gap=0.041)
    load_page._texts([Some(summary=summary, records=[Some(tokens=tokens) for tokens in ([5], [6, 7], [])])])


def test_near_ties_are_counted_among_the_texts_that_were_written():
    app = AppTest.from_function(parted).run()
    assert app.info[0].value.startswith("1 of 2 texts differ") and "at most 0.041 apart" in app.info[0].value


def test_the_counterexample_runs(open_app):
    app = at_load(open_app)
    app.button("counter-run").click().run()
    assert not app.exception
    shares = {m.label: float(m.value) for m in app.metric if "token A" in m.label}
    assert abs(shares["Share of token A, looks ahead"] - 0.85) < 0.02
    assert abs(shares["Share of token A, stops early"] - 0.70) < 0.02


def test_another_device_is_simulated(open_app):
    app = at_load(open_app)
    app.session_state["sim-rate"] = 2
    app.button("sim-run").click().run()
    app = wait(app, lambda a: a.session_state["simulation"])
    assert not app.exception and not app.error
    assert len(app.session_state["simulation"].results) == 8  # two rates, four policies
    assert "Simulated" in words(app)
