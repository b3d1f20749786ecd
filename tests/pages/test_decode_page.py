"""The Decode page through Streamlit's own test runner: first paint, runs, addresses, and bad input as sentences."""

import json
import os
import re
import time
from dataclasses import replace

import pytest

from specviz.engine.model_store import ModelStore
from specviz.trace import files as trace_files
from specviz.trace.records import Settings
from specviz.ui import preparing, stage

TOY = {"pair": "toy", "drafter": "autoregressive", "prompt": "the cat sees the", "length": "24"}


def sentences(app) -> str:
    return " ".join(element.value for kind in (app.error, app.warning, app.info) for element in kind)


def test_first_paint_shows_a_recorded_run_and_no_error(open_app):
    app = open_app()
    assert not app.exception
    assert not app.error
    assert app.button("run-button").label == "Run"
    assert any("tokens per target pass" in m.value for m in app.markdown)


def test_a_run_ends_as_a_trace_with_its_charts(open_app, finish):
    app = open_app(**TOY, temperature="1.0", k="3", seed="5", batch="2")
    app.button("run-button").click().run()
    app = finish(app)
    assert not app.exception
    trace = app.session_state["run"].trace
    assert trace.settings == Settings(k=3, temperature=1.0, seed=5, max_new_tokens=24)
    assert [len(trace.token_ids(row)) for row in (0, 1)] == [24, 24]
    assert trace_files.loads(trace_files.dumps(trace)) == trace


def test_a_link_with_go_starts_the_linked_run(open_app, finish):
    app = finish(open_app(**TOY, go="1"))
    assert app.session_state["run"].status == "complete"
    assert app.session_state["run"].prompts[0].text == TOY["prompt"]


def test_stop_keeps_what_was_decoded(open_app):
    app = open_app(pair="toy", drafter="ngram", prompt="the cat", length="512", k="0", batch="64")
    app.button("run-button").click().run()
    app.button("stop-button").click().run()
    run = app.session_state["run"]
    run.join(30)
    assert run.status in ("stopped", "complete")
    app.run()
    assert not app.exception


@pytest.mark.parametrize(
    "parameters, words",
    [
        ({"pair": "no-such-pair"}, "no pair called"),
        ({"prompt": " "}, "empty"),
        ({"prompt": "the elephant", "pair": "toy"}, "vocabulary"),
        ({"pair": "toy", "prompt": ("the cat " * 3000).strip(), "length": "512"}, "Shorten|shorten"),
        ({"device": "cuda"}, "CUDA"),
    ],
)
def test_bad_input_is_a_sentence_and_never_a_traceback(open_app, finish, parameters, words):

    app = open_app(**{"length": "8", **parameters})
    assert not app.exception
    if not app.button("run-button").disabled:
        app.button("run-button").click().run()
        app = finish(app) if "run" in app.session_state else app
    assert not app.exception
    assert re.search(words, sentences(app)), sentences(app)


@pytest.mark.parametrize("k", ["-1", "99", "banana"])
def test_an_invalid_k_falls_back_to_the_default(open_app, k):
    app = open_app(k=k)
    assert not app.exception
    assert app.slider("k").value == 5


@pytest.mark.parametrize(
    "content, words",
    [
        (b"{}", "not a SpecViz trace"),
        (b'{"format": "specviz-trace", "version": 99}', "update SpecViz"),
        (b'{"format": "specviz-tr', "not a complete JSON"),
        (b"\x1f\x8bgarbage", "damaged|cut short"),
        (json.dumps({"format": "specviz-trace", "version": 1}).encode(), "damaged"),
    ],
)
def test_a_file_that_is_not_a_trace_gives_a_sentence(open_app, content, words):

    app = open_app()
    app.file_uploader("trace-file").set_value(("some.json", content, "application/json")).run()
    assert not app.exception
    assert re.search(words, sentences(app)), sentences(app)


def test_an_opened_trace_replaces_the_stage(open_app):
    app = open_app()
    path = stage.recorded.shipped()[-1]
    app.file_uploader("trace-file").set_value((path.name, path.read_bytes(), "application/gzip")).run()
    assert not app.exception
    assert app.session_state["opened"] == trace_files.load(path)


def test_the_note_of_the_run_is_shown_under_it_as_plain_text(open_app):
    trace = replace(
        trace_files.load(stage.recorded.shipped()[-1]), note="No CUDA graphs here: ![x](http://elsewhere/y.png)"
    )
    app = open_app()
    assert not any("CUDA graphs" in c.value for c in app.caption)
    app.session_state["opened"] = trace
    app.run()
    notes = [c.value for c in app.caption if "CUDA graphs" in c.value]
    assert len(notes) == 1 and "![" not in notes[0]


def prepared(app, seconds=60):
    """The app once the preparation of the embedded pair has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        app.run()
        if preparing._holder()["now"].status != "running":
            return app.run()
        time.sleep(0.3)
    raise AssertionError("the preparation did not end")


@pytest.fixture
def nothing_loaded(monkeypatch):
    """No model is in memory yet, as in a fresh process."""
    monkeypatch.setattr("specviz.engine.model_store.STORE", ModelStore())


def test_no_network_is_a_sentence_beside_the_recorded_run(open_app, empty_home, nothing_loaded, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    app = prepared(open_app())
    assert not app.exception
    assert re.search("network|index|package", sentences(app)), sentences(app)
    assert any("tokens per target pass" in m.value for m in app.markdown)


def test_no_room_on_disk_is_a_sentence(open_app, empty_home, nothing_loaded, monkeypatch):
    monkeypatch.setattr("specviz.loader.space.free_disk_bytes", lambda folder: 1000)
    app = prepared(open_app())
    assert not app.exception
    assert "SPECVIZ_HOME" in sentences(app)
    assert not any(empty_home.rglob("*.safetensors"))


def test_too_little_memory_is_a_sentence(open_app, finish, monkeypatch):
    monkeypatch.setattr("specviz.engine.run.free_memory_bytes", lambda device: 1000)
    app = open_app(**TOY)
    app.button("run-button").click().run()
    app = finish(app)
    assert not app.exception
    assert "lower the batch" in sentences(app)
