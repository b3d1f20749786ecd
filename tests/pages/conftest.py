"""Pages are tested through app.py, with the toy pair and a home that holds the embedded model."""

import time
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from specviz.ui import preparing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def open_app(at_embedded_home):
    """open_app(**address parameters) -> the running app, on its first page."""
    st.cache_resource.clear()

    def start(**parameters) -> AppTest:
        app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
        for name, value in parameters.items():
            app.query_params[name] = value
        return app.run()

    yield start
    # no thread may still be at work in torch when the interpreter ends
    if (preparation := preparing._holder().get("now")) is not None:
        preparation.stop()
        preparation.join()


@pytest.fixture
def finish():
    """finish(app): rerun, as the browser's polling does, until the session's run has ended."""

    def wait(app: AppTest, seconds: float = 90) -> AppTest:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            app.run()
            if not app.session_state["run"].alive:
                return app.run()
            time.sleep(0.2)
        raise AssertionError(f"the run is still {app.session_state['run'].status}")

    return wait
