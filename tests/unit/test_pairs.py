"""The catalogue and the parser of pair names."""

import os

import pytest

from specviz import paths
from specviz.errors import PairError, SpecVizError
from specviz.loader.pairs import CATALOGUE, EMBEDDED, find_pair, names, size_of


def test_the_catalogue_is_complete_and_its_names_are_unique():
    assert len(set(names())) == len(CATALOGUE) and names()[0] == EMBEDDED and "toy" in names()
    for pair in CATALOGUE:
        assert find_pair(pair.name) is pair and find_pair(f" {pair.name.upper()} ") is pair
        assert pair.licence and pair.title and pair.drafters and "+" not in pair.name
        if pair.target.kind == "hub":
            assert pair.draft and size_of(pair.target) and size_of(pair.draft)
    assert {pair.name for pair in CATALOGUE if pair.gated} == {"llama-3.2-3b", "gemma-3-1b"}


def test_the_embedded_pair_says_that_its_weights_are_dequantised():
    assert any("dequantised Q4_1" in note for note in find_pair(EMBEDDED).notes)


def test_the_toy_pair_is_two_folders_that_ship():
    toy = find_pair("toy")
    assert all(os.path.isdir(source.path) for source in (toy.target, toy.draft))


def test_two_hub_ids_make_a_pair_and_may_name_a_revision():
    pair = find_pair("Qwen/Qwen3-4B@main + Qwen/Qwen3-0.6B")
    assert (pair.target.repo, pair.target.revision) == ("Qwen/Qwen3-4B", "main")
    assert (pair.draft.repo, pair.draft.revision) == ("Qwen/Qwen3-0.6B", None)
    assert "autoregressive" in pair.drafters
    alone = find_pair("Qwen/Qwen3-4B")
    assert alone.draft is None and "autoregressive" not in alone.drafters


def test_folders_make_a_pair_even_with_a_plus_in_their_path(tmp_path):
    one, two = tmp_path / "a+b", tmp_path / "c++"
    one.mkdir()
    two.mkdir()
    pair = find_pair(f"{one}+{two}")
    assert (pair.target.path, pair.draft.path) == (str(one), str(two))
    assert find_pair(str(one)).target.path == str(one)
    assert find_pair(f"{EMBEDDED}+{two}").target.kind == "wheel"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smolm2-135m", "Did you mean smollm2-135m?"),
        ("", "No pair was named"),
        ("a/b+c/d+e/f", "more than two models"),
        ("./no/such/folder", "There is no folder or file './no/such/folder'"),
        ("a/b+./nowhere", "There is no folder or file './nowhere'"),
        ("nonsense", "There is no pair called 'nonsense'"),
        ("../../no/such/file", "There is no folder or file"),
        ("x" * 5000, "..."),
        ("\0", "There is no pair called"),
        ("a/b+", "There is no pair called"),
    ],
)
def test_an_unknown_pair_is_refused_in_one_sentence_that_lists_what_there_is(name, says):
    with pytest.raises(PairError) as caught:
        find_pair(name)
    text = str(caught.value)
    assert says in text and EMBEDDED in text and "TARGET+DRAFT" in text and len(text) < 700


def test_home_is_where_the_variable_says_and_is_made_on_demand(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "a" / "b"))
    assert paths.home() == tmp_path / "a" / "b" and paths.home().is_dir()
    assert paths.models().is_dir()


def test_without_the_variable_home_is_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SPECVIZ_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.home() == tmp_path / "specviz"


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(SpecVizError, match="set SPECVIZ_HOME"):
        paths.home()
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SpecVizError, match="not writable"):
        paths.home()
