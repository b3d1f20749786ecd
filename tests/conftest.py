"""Homes for weights in tests, a tiny model folder, and the embedded model, fetched once through the real code."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.kernels import binding
from specviz.loader.pairs import EMBEDDED, find_pair

ROOT = Path(__file__).parent
SLOW_SECONDS = 5.0
"""A test without the marker `slow` that takes longer is named at the end."""


def pytest_configure():
    """Divides the cores between the processes of pytest-xdist (-n 2), and checks the kernels."""
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        threads = max(1, len(os.sched_getaffinity(0)) // workers) if sys.platform == "linux" else 1
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)  # of the processes that tests start
    _check_kernels()


def _check_kernels() -> None:
    """Stops at once where the kernels that this pass of the tests is about are missing, or there against its wish."""
    kernels_are_off = os.environ.get("SPECVIZ_KERNELS", "").strip().lower() == "off"
    if kernels_are_off and binding.kernels() is not None:
        raise pytest.UsageError("SPECVIZ_KERNELS=off, but the kernels are there: this pass would prove nothing.")
    if not kernels_are_off and kernels_are_expected() and binding.kernels() is None:
        raise pytest.UsageError(
            f"This machine can have the C kernels, but they need {binding.missing_requirement()}: their tests would be "
            "skipped. SPECVIZ_KERNELS=off runs the tests without them on purpose."
        )


def kernels_are_expected() -> bool:
    """Whether this machine has what the README asks for, by what the system says, not by what specviz.kernels finds."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or shutil.which("gcc") is None:
        return False
    return "avx512_vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()


def pytest_collection_modifyitems(items):
    """Markers by rule: `browser` by folder, `model` by use of the fixture through which all of its weights come.

    With pytest-xdist and --dist loadgroup, the tests of one file in the browser share a process, and so one server.
    """
    for item in items:
        if item.path.is_relative_to(ROOT / "browser"):
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if "embedded_home" in item.fixturenames:
            item.add_marker(pytest.mark.model)


@pytest.fixture(autouse=True)
def marked_if_it_asks_for_weights(request):
    """A test that asks for the embedded model while it runs, which no rule sees beforehand, has to be marked."""
    yield
    asked = "embedded_home" in request.fixturenames
    assert not asked or request.node.get_closest_marker("model"), "this test needs the marker `model`"


def pytest_terminal_summary(terminalreporter):
    """Names the tests that belong to the marker `slow` but do not have it."""
    for report in terminalreporter.getreports("passed"):
        if report.duration > SLOW_SECONDS and not {"slow", "model", "browser"} & set(report.keywords):
            terminalreporter.write_line(f"{report.nodeid} took {report.duration:.0f} s without the marker slow")


@pytest.fixture(scope="session")
def embedded_home() -> Path:
    """A SPECVIZ_HOME that holds the embedded model: $SPECVIZ_TEST_HOME, or else the person's own cache.

    Set only while it is fetched; a test that wants it as its home uses `at_embedded_home`.
    """
    from specviz import paths
    from specviz.errors import SpecVizError
    from specviz.loader.fetch import fetch

    before = os.environ.get("SPECVIZ_HOME")
    if chosen := os.environ.get("SPECVIZ_TEST_HOME"):
        os.environ["SPECVIZ_HOME"] = chosen
    try:
        home = paths.home()
        fetch(find_pair(EMBEDDED).target)
    except SpecVizError as error:
        pytest.skip(f"the embedded model is not here and cannot be fetched: {error}")
    finally:
        os.environ.pop("SPECVIZ_HOME", None)
        if before is not None:
            os.environ["SPECVIZ_HOME"] = before
    return home


@pytest.fixture
def at_embedded_home(embedded_home, monkeypatch) -> Path:
    """SPECVIZ_HOME points at a home that holds the embedded model."""
    monkeypatch.setenv("SPECVIZ_HOME", str(embedded_home))
    return embedded_home


@pytest.fixture(scope="session")
def embedded_folder(embedded_home) -> Path:
    """The converted embedded model, as a model folder."""
    return embedded_home / "models" / EMBEDDED


@pytest.fixture
def empty_home(tmp_path, monkeypatch) -> Path:
    """SPECVIZ_HOME points at a fresh folder."""
    home = tmp_path / "home"
    monkeypatch.setenv("SPECVIZ_HOME", str(home))
    return home


@pytest.fixture
def tiny_folder(tmp_path) -> Path:
    """A whole model folder: a tiny Llama and a byte-level tokenizer."""
    folder = tmp_path / "tiny"
    tiny_model().save_pretrained(folder)
    byte_level_tokenizer().save_pretrained(folder)
    return folder
