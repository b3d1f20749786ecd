"""Homes for weights in tests, a tiny model folder, and the embedded model, fetched once through the real code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_models import byte_level_tokenizer, tiny_model

from specviz.loader.pairs import EMBEDDED, find_pair


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
