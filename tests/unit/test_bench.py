"""The benchmark on the toy pair: its keys, equal texts, and that it names no winner inside the noise."""

import json

import pytest
import torch

from specviz import bench
from specviz.bench import System, ratio, winner
from specviz.cli import main


def system(name, rates):
    return System("specviz", name, lambda ids, tokens: ([], 1.0), "fp32", 3, rates=list(rates))


def test_the_whole_benchmark_on_the_toy_pair_in_json(at_embedded_home, capsys, monkeypatch):
    """Every key is there, numbers are finite, and each system and peer emits the plain greedy text."""
    monkeypatch.setattr(bench, "QUICK", bench.Scale(1, 2, 12, 2))
    threads = torch.get_num_threads()
    assert main(["bench", "--pair", "toy", "--k", "2,3", "--quick", "--peers", "--json"]) == 0
    assert torch.get_num_threads() == threads
    found = json.loads(capsys.readouterr().out)
    assert {"plain_tokens_per_second", "best_speculative", "speedup_vs_plain", "speedup_vs_transformers_plain",
            "speedup_vs_transformers_assisted", "verify_over_decode", "limit_ratio", "overhead_fraction", "rows",
            "machine", "precision"} <= found.keys()
    assert found["speedup_vs_transformers_assisted"]["median"] > 0
    assert {row["system"] for row in found["rows"]} == {"specviz", "transformers"}
    assert all(row["same_text"] == row["texts"] == 2 for row in found["rows"])


def test_no_winner_is_named_inside_the_noise():
    assert "no winner" in winner([system("a", [10, 11, 10, 12]), system("b", [10, 10.5, 10.2, 11.9])])
    assert winner([system("a", [20, 21, 22, 20]), system("b", [10, 11, 10, 10])]) == "specviz a, K = 3"


def test_ratios_are_taken_prompt_by_prompt():
    found = ratio(system("a", [2, 40, 6, 8]), system("b", [1, 10, 2, 2]))
    assert found["median"] == 3.5
    assert 2 <= found["low"] <= found["high"] <= 4


@pytest.mark.parametrize("arguments, words", [
    (["--k", "0..3"], "--k"), (["--k", "banana"], "banana"), (["--drafters", "oracle"], "oracle"),
    (["--pair", "nope"], "no pair called"),
])
def test_bad_arguments_are_one_sentence(capsys, arguments, words):
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
