"""The Batch page through Streamlit's own test runner: a measured toy map, a chosen cell, Stop and Resume, bad input."""

import time

TOY = {"map-pair": "toy", "map-drafter": "autoregressive", "map-prompt": "toy", "map-rounds": "4"}


def at_batch(open_app, **more):
    return open_app(**TOY, **more).switch_page("pages/batch.py").run()


def sweep_of(app):
    return next(iter(app.session_state["sweeps"].values()))


def measured(app, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        app.run()
        if not sweep_of(app).alive:
            return app.run()
        time.sleep(0.2)
    raise AssertionError("the sweep did not end")


def words(app):
    kinds = (app.error, app.warning, app.info, app.success, app.markdown, app.caption)
    return " ".join(element.value for kind in kinds for element in kind)


def test_the_page_opens_with_a_modelled_map_and_no_run(open_app):
    app = at_batch(open_app)
    assert not app.exception and not app.error
    assert "modelled" in words(app) and "no cell yet" in words(app)
    assert not sweep_of(app).cells


def test_a_map_is_measured_and_a_cell_shown(open_app):
    app = at_batch(open_app)
    app.slider("map-ks").set_value((0, 2)).run()
    app.session_state["map-batches"] = [1, 2]
    app.button("map-run").click().run()
    app = measured(app)
    assert not app.exception and not app.error
    sweep = sweep_of(app)
    assert set(sweep.cells) == {(k, b, 0) for k in (0, 1, 2) for b in (1, 2)}
    assert sweep.cells[2, 2, 0].tokens_per_second > 0 and sweep.cells[2, 2, 0].acceptance_rate > 0
    app.slider("map-k").set_value(2).run()
    assert not app.exception
    labels = {m.label: m.value for m in app.metric}
    assert labels["Speed-up (measured)"].endswith("times")
    assert "Do not speculate here" in words(app) or "Best K for batch 1" in words(app)
    app.button("map-play").click().run()
    app.session_state["run"].join(60)
    app.run()
    assert not app.exception and app.session_state["run"].trace.settings.k == 2
    app.button("map-close").click().run()
    assert "map-close" not in [b.key for b in app.button]
    # a click on the map is what the sliders say
    app.session_state["map-picked"] = "1|2"
    app.run()
    assert (app.slider("map-k").value, app.session_state["map-batch"]) == (1, 2)
    # a cell outside the order is measured by itself, and the map stays
    app.slider("map-k").set_value(4).run()
    app.button("map-one").click().run()
    app = measured(app)
    assert (4, 2, 0) in sweep.cells and len(sweep.cells) == 7


def test_stop_keeps_cells_and_resume_goes_on(open_app):
    app = at_batch(open_app)
    app.button("map-run").click().run()
    sweep = sweep_of(app)
    while not sweep.cells and sweep.alive:
        sweep.poll()
        time.sleep(0.05)
    app.button("map-stop").click().run()
    sweep.join(30)
    kept = dict(sweep.cells)
    assert sweep.status in ("stopped", "complete") and kept
    if sweep.status == "stopped":
        app.run()
        assert "kept" in words(app)
        app.button("map-run").click().run()
        while len(sweep.cells) == len(kept) and sweep.alive:
            sweep.poll()
            time.sleep(0.05)
        assert all(sweep.cells[key] is cell for key, cell in kept.items())
        sweep.stop()
        sweep.join(30)


def test_bad_input_is_a_sentence(open_app):
    app = open_app(**(TOY | {"map-pair": "no-such-pair"})).switch_page("pages/batch.py").run()
    assert not app.exception
