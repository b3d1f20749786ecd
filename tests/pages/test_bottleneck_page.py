"""The Bottleneck page through Streamlit's own test runner: first paint, measuring and Stop, other devices and models,
points that open, and bad input as sentences."""

import dataclasses
import json
import re
import threading
import time

import pytest

from specviz.bench import step_times
from specviz.hardware import ceilings, facts, monitor, shapes
from specviz.ui import live_load, point_arithmetic

CATALOGUE = {"chip": "H100 SXM", "shape": "Llama-3.1-8B", "peak": "bf16"}


@pytest.fixture
def open_page(open_app, monkeypatch):
    """open_page(**address parameters) -> the running page, with its own roofs, independent of earlier measurements."""
    roofs = ceilings.Ceilings(
        device="cpu",
        precision="fp32",
        bandwidth=2e10,
        flops=1.4e11,
        bandwidth_spread=(1.9e10, 2.1e10),
        flops_spread=(1.3e11, 1.5e11),
        measured_at="2026-01-01T00:00:00+00:00",
    )
    monkeypatch.setattr(ceilings, "cached", lambda device, precision: dataclasses.replace(roofs, precision=precision))

    def start(**parameters):
        app = open_app()
        for name, value in parameters.items():
            app.query_params[name] = value
        return app.switch_page("pages/bottleneck.py").run()

    return start


def sentences(app) -> str:
    return " ".join(element.value for kind in (app.error, app.warning, app.info) for element in kind)


def texts(app) -> str:
    return " ".join(element.value for kind in (app.markdown, app.caption) for element in kind)


def kept(app, key):
    """What the session keeps under a key, or None. (`in` does not work on the test runner's state.)"""
    try:
        return app.session_state[key]
    except (KeyError, AttributeError):
        return None


def ended(app, key, seconds=120):
    """Rerun, as the browser's polling does, until a measurement has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        app.run()
        task = kept(app, f"{key}-task")
        if task is None or not task.alive:
            return app.run()
        time.sleep(0.2)
    raise AssertionError(f"still working: {task.progress.stage}")


def test_first_paint_models_every_step_on_the_measured_roofs(open_page):
    app = open_page()
    assert not app.exception and not app.error
    opened = app.selectbox(point_arithmetic.PICKED)
    assert len(opened.options) == 1 + 16 + 1 + 1, "plain, verify at each K, draft and prefill"
    assert opened.value == "verify, K = 4 (modelled)"
    assert "12 % and 58 %" in " ".join(s.value for s in app.subheader)
    assert "The two figures assume" in texts(app)


def test_an_unmeasured_machine_says_so_and_still_shows_the_ledger(open_app, monkeypatch):
    monkeypatch.setattr(ceilings, "cached", lambda device, precision: None)
    app = open_app().switch_page("pages/bottleneck.py").run()
    assert not app.exception
    assert "not measured yet" in sentences(app)
    assert app.button("ceilings-button").label == "Measure the ceilings"
    assert any("FLOPs go up" in s.value for s in app.subheader)


def test_another_device_and_model_are_modelled_with_their_source(open_page):
    app = open_page(**CATALOGUE)
    assert not app.exception and not app.error
    assert "NVIDIA H100 Tensor Core GPU datasheet" in texts(app)
    assert re.search(r"with \*\*\d+ rows\*\* a plain step keeps compute busy for \*\*12 %\*\*", texts(app))
    assert "ceilings-button" not in [b.key for b in app.button], "nothing is measured on a machine that is elsewhere"


@pytest.mark.parametrize("name", list(shapes.CONFIGS))
def test_every_built_in_shape_can_be_put_on_a_device(open_page, name):
    app = open_page(**CATALOGUE | {"shape": name})
    assert not app.exception and not app.error


def test_a_point_opens_to_its_arithmetic(open_page):
    app = open_page(**CATALOGUE)
    app.selectbox(point_arithmetic.PICKED).set_value("plain (modelled)").run()
    shown = app.table[0].value
    said = shown.Value.to_dict()
    assert said["Roof that binds"] == "memory" and said["Neither"] == "0 %"
    assert said["FLOPs"].endswith("GFLOP") and "feed-forward" in shown.How["FLOPs"]
    assert set(shown.Kind) <= {"counted", "measured", "modelled", "recorded"}


def test_measuring_the_ceilings_shows_progress_and_keeps_the_result(open_app, monkeypatch):
    found, seen_running = {}, threading.Event()
    roofs = ceilings.Ceilings(
        device="cpu",
        precision="fp32",
        bandwidth=2e10,
        flops=1.4e11,
        bandwidth_spread=(1e10, 3e10),
        flops_spread=(1e11, 2e11),
        measured_at="2026-01-01T00:00:00+00:00",
    )

    def measure(device, precision, job):
        job.report("halfway", 0.5)
        assert seen_running.wait(60)
        found["roofs"] = dataclasses.replace(roofs, device=device, precision=precision)

    monkeypatch.setattr(ceilings, "measure", measure)
    monkeypatch.setattr(ceilings, "cached", lambda device, precision: found.get("roofs"))
    app = open_app().switch_page("pages/bottleneck.py").run()
    app.button("ceilings-button").click().run()
    assert app.session_state["ceilings-task"].status == "running"
    seen_running.set()
    app = ended(app, "ceilings")
    assert not app.exception
    assert app.button("ceilings-button").label == "Measure again"
    assert "differ" in sentences(app) or "times the median" in sentences(app), "a wide spread is shown"


def test_stop_ends_a_measurement_and_keeps_nothing(open_page, monkeypatch):
    def slow(*_, job, **__):
        while True:
            job.check()
            time.sleep(0.02)

    monkeypatch.setattr(step_times, "measure", slow)
    app = open_page()
    app.button("steps-button").click().run()
    app.button("steps-stop").click().run()
    app = ended(app, "steps")
    assert "Stopped: nothing was kept." in sentences(app)
    assert kept(app, "steps") is None


TINY = json.dumps(
    {
        "model_type": "llama",
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": 64,
        "max_position_embeddings": 256,
    }
)


def test_steps_of_any_config_are_timed_with_random_weights_and_become_measured_points(open_page):
    app = open_page(cached="32")
    app.text_area("config-text").set_value(TINY).run()
    app.button("steps-button").click().run()
    app = ended(app, "steps")
    assert not app.exception and not app.error, sentences(app)
    measured = [o for o in app.selectbox(point_arithmetic.PICKED).options if "measured" in o]
    assert {"plain (measured)", "prefill (measured)", "draft (measured)", "verify, K = 8 (measured)"} <= set(measured)


def test_widths_of_1_to_32_are_timed_explained_and_predict_a_speed_up(open_page):
    app = open_page()
    app.text_area("config-text").set_value(TINY).run()
    app.button("widths-button").click().run()
    app = ended(app, "widths")
    assert not app.exception and not app.error, sentences(app)
    assert [w.positions for w in app.session_state["widths"][1][0]] == list(range(1, 33))
    assert "The model is within 25" in texts(app) and "Predicted: E" in texts(app)


def test_the_batch_with_12_per_cent_busy_is_found_by_running(open_page):
    app = open_page()
    app.text_area("config-text").set_value(TINY).run()
    app.button("found-12-button").click().run()
    app = ended(app, "found-12", 240)
    assert not app.exception and not app.error, sentences(app)
    assert "**Measured** here" in texts(app)


def test_a_shape_that_does_not_fit_is_modelled_and_refused_with_the_reason(open_page, monkeypatch):
    monkeypatch.setattr("specviz.models.random_weights.free_memory_bytes", lambda device: 10**9)
    app = open_page(shape="Qwen3-32B")
    assert "does not fit" in sentences(app)
    app.button("steps-button").click().run()
    app = ended(app, "steps")
    assert re.search(r"Qwen3-32B with random weights needs about .* only be modelled", sentences(app))


@pytest.mark.parametrize("shape,words", [("GPT-9", "Hub id such as"), ("no/such/model", "Hub id such as")])
def test_an_unknown_model_gives_a_sentence(open_page, shape, words):
    app = open_page(shape=shape)
    assert not app.exception
    assert words in sentences(app)


@pytest.mark.parametrize(
    "text,words",
    [
        ("not json", "no JSON"),
        ("{}", "no model_type"),
        ('{"model_type": "mamba"}', "cannot be counted"),
        ('{"model_type": "llama", "hidden_size": "wide"}', "lacks a usable"),
    ],
)
def test_an_invalid_pasted_config_gives_a_sentence(open_page, text, words):
    app = open_page()
    app.text_area("config-text").set_value(text).run()
    assert not app.exception
    assert words in sentences(app)


def test_a_pasted_config_is_put_on_the_device(open_page):
    app = open_page(**CATALOGUE)
    app.text_area("config-text").set_value(json.dumps(shapes.CONFIGS["Qwen3-4B"])).run()
    assert not app.exception and not app.error
    assert "your qwen3" in texts(app)


@pytest.mark.parametrize(
    "parameters", [{"chip": "H900"}, {"rows": "-3"}, {"drafts": "banana"}, {"cached": "7"}, {"peak": "fp64"}]
)
def test_an_address_with_nonsense_falls_back_to_defaults(open_page, parameters):
    app = open_page(**parameters)
    assert not app.exception and not app.error
    assert app.slider("drafts").value == 4 and app.slider("rows").value == 1


def test_a_run_is_watched_with_its_utilizations_and_its_points(open_page):
    app = open_page()
    app.button("live-run").click().run()
    run, deadline = app.session_state["run"], time.monotonic() + 200
    while len(run.rounds) < 2 and run.alive and time.monotonic() < deadline:
        app.run()
        time.sleep(0.2)
    app.run()
    assert not app.exception
    assert run.rounds, run.error
    assert app.button("steps-button").disabled or not run.alive, "no measuring beside a run"
    app.button("live-stop").click().run()
    run.join(60)
    app.run()
    assert not app.exception
    assert "MFU counts emitted tokens only" in texts(app)
    assert any("of the last run" in o for o in app.selectbox(point_arithmetic.PICKED).options)


def test_the_monitor_stops_when_the_last_session_leaves():
    watch = live_load.Watch()
    watch.samples("one")
    watch.samples("two")
    watch.leave("one")
    assert watch.monitor.running
    watch.leave("two")
    assert not watch.monitor.running


def test_a_busy_machine_is_reported_on_screen(open_page, monkeypatch):
    monkeypatch.setattr(facts, "read", lambda kind, key: {"measured_at": "2026-01-01T00:00:00+00:00", "others": 0.6})
    app = open_page()
    assert "other programs used 60 % of the device" in sentences(app)
    assert app.button("ceilings-button").label == "Measure again"


def test_joules_per_token_count_only_the_time_while_sampled(monkeypatch):
    """Energy and tokens both count from the moment a run is first seen; another run starts again."""
    monkeypatch.setattr(live_load.st, "session_state", {})

    def shown(joules, tokens, run="a"):
        return live_load.joules_per_token(
            [monitor.Sample(0.0, 0.5, 0.2, 1, 2, watts=100.0, joules=joules)], (run, tokens)
        )

    assert shown(50.0, 10) is None, "nothing has been emitted yet while it was watched"
    assert shown(80.0, 20) == "3.00 J"
    assert shown(80.0, 20) == "3.00 J", "no new token: the last figure stays"
    assert shown(90.0, 5, run="b") is None
    assert shown(None, 5, run="b") is None and live_load.joules_per_token([monitor.Sample(0, 0, 0, 0, 0)], None) is None
