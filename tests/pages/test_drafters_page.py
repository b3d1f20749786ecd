"""The Drafters page through Streamlit's own test runner: recorded lanes, real ones on the toy pair, filters, costs."""

import time

import pytest

from specviz.bench.lanes import PLAIN

TOY = {"lanes-pair": "toy", "lanes-prompt": "the cat sees the dog and", "lanes-k": "3", "lanes-length": "16"}


def at_drafters(open_app, **more):
    return open_app(**more).switch_page("pages/drafters.py").run()


def words(app):
    kinds = (app.error, app.warning, app.info, app.success, app.markdown, app.caption, app.text)
    return " ".join(str(element.value) for kind in kinds for element in kind)


def counted(app):
    """Rejections of the hybrid that the table holds."""
    shown = next(m.value for m in app.markdown if "rejections of hybrid" in m.value)
    return int(shown.split(" of ")[0].strip("*"))


def wait(app, key, seconds=120):
    """Poll the work as the browser does, and draw the page once it has ended."""
    deadline = time.monotonic() + seconds
    work = app.session_state[key]
    while work.alive and time.monotonic() < deadline:
        work.poll()
        time.sleep(0.1)
    assert not work.alive, "it did not end"
    return app.run()


def test_the_recorded_lanes_are_shown_at_once_and_labelled(open_app):
    """Every section is there with its figures, each says that it is recorded, and no run has begun."""
    app = at_drafters(open_app)
    assert not app.exception and not app.error
    shown = words(app)
    for section in (
        "Tokens per pass and per second",
        "How acceptance decays",
        "Cost of a draft by K",
        "Confidence and its calibration",
        "Where drafts are rejected",
    ):
        assert section in shown
    assert "recorded on" in shown and "Recorded on" in shown and "ECE" in shown
    assert "lanes-run" not in app.session_state


def test_a_rejection_is_filtered_and_opened(open_app):
    app = at_drafters(open_app)
    everything = counted(app)
    app.multiselect("fail-positions").set_value([1]).run()
    assert not app.exception
    assert 0 < counted(app) < everything
    app.button("fail-next").click().run()
    assert "Rejection 1 of" in words(app) and "position 1." in words(app)
    app.button("fail-next").click().run()
    assert not app.exception and "Rejection 2 of" in words(app)
    app.button("fail-previous").click().run()
    assert "Rejection 1 of" in words(app)
    # another drafter starts again
    app.session_state["fail-drafter"] = "parallel"
    app.run()
    assert not app.exception and "rejections of parallel" in words(app)


def test_lanes_run_on_the_toy_pair_beside_plain_decoding(open_app):
    app = at_drafters(open_app, **TOY)
    app.button("lanes-go").click().run()
    app = wait(app, "lanes-run")
    assert not app.exception and not app.error
    run = app.session_state["lanes-run"]
    assert run.status == "complete" and {d for _, d in run.traces} == {PLAIN, "autoregressive", "ngram"}
    assert "measured here" in words(app) and "Only the hybrid drafter gives a confidence" in words(app)
    app.button("lanes-back").click().run()
    assert "recorded on" in words(app) and not app.exception


def test_several_prompts_and_a_stop_that_keeps_what_is_done(open_app):
    app = at_drafters(open_app, **TOY, **{"lanes-count": "20"})
    app.button("lanes-go").click().run()
    run = app.session_state["lanes-run"]
    deadline = time.monotonic() + 90
    while len(run.traces) < 3 and run.alive and time.monotonic() < deadline:
        run.poll()
        time.sleep(0.02)
    app.button("lanes-stop").click().run()
    run.join(30)
    app.run()
    assert not app.exception and len(run.traces) >= 3
    if run.status == "stopped":
        assert f"{len(run.traces)} finished lanes are kept" in words(app)


def test_costs_are_measured_here(open_app):
    app = at_drafters(open_app, **TOY)
    app.button("cost-go").click().run()
    app = wait(app, "cost-run")
    assert not app.exception and "Measured here" in words(app)
    assert set(app.session_state["cost-run"].cost.seconds["autoregressive"]) == set(range(1, 17))


@pytest.mark.parametrize("bad", [{"lanes-pair": "no-such-pair"}, {"lanes-k": "99"}, {"lanes-prompt": ""}])
def test_bad_input_is_no_traceback(open_app, bad):
    app = at_drafters(open_app, **(TOY | bad))
    assert not app.exception
    assert not app.button("lanes-go").disabled or app.error
