"""The benchmark on the toy pair: its keys, equal texts, and that it names no winner inside the noise."""

import json
import sys

import pytest
import torch

from specviz.bench import benchmark, peers, systems
from specviz.bench.peers import Generation
from specviz.bench.report import winner
from specviz.bench.systems import System
from specviz.cli.bench import table
from specviz.cli.main import main
from specviz.errors import SettingsError, SpecVizError

KEYS = {
    "plain_tokens_per_second",
    "best_speculative",
    "speedup_vs_plain",
    "speedup_vs_transformers_plain",
    "speedup_vs_transformers_assisted",
    "verify_over_decode",
    "limit_ratio",
    "overhead_fraction",
    "precision",
}
SMALL = systems.Scale(picking=1, prompts=3, tokens=12, steps=2, picking_tokens=8, seconds=60, least=2, assisted=2)


def system(name, rates):
    return System("specviz", name, "fp32", lambda group, tokens: Generation([[]], 1.0), 3, rates=dict(enumerate(rates)))


def test_the_whole_benchmark_on_the_toy_pair_in_json(at_embedded_home, capsys, monkeypatch):
    """Every key is there, numbers are finite, and each system and peer emits the plain greedy text."""
    monkeypatch.setattr(systems, "QUICK", SMALL)
    threads = torch.get_num_threads()
    assert main(["bench", "--pair", "toy", "--k", "2,3", "--quick", "--peers", "--json"]) == 0
    assert torch.get_num_threads() == threads
    found = json.loads(capsys.readouterr().out)
    assert KEYS | {"rows", "machine", "torch", "transformers", "winner", "notes"} <= found.keys()
    assert found["equal_precision"].keys() >= KEYS
    assert found["best_speculative"].keys() == {"drafter", "k", "tokens_per_second"}
    assert found["speedup_vs_transformers_assisted"] > 0
    low, high = found["intervals"]["speedup_vs_plain"]
    assert low <= found["speedup_vs_plain"] <= high
    timed = found["precisions"]["fp32"]
    assert found["limit_ratio"] == timed["limit_ratio"] >= 1
    assert timed["verify_over_decode"] == timed["step_seconds"]["6"] / min(timed["step_seconds"][n] for n in "124")
    rows = found["rows"]
    assert [row["system"] for row in rows].count("transformers") == 4
    assert all(row["same_text"] == row["texts"] == 3 for row in rows if row["system"] in ("specviz", "transformers"))
    assert all(row["tokens_per_pass"] == 1 for row in rows if (row["system"], row["setting"]) == ("specviz", "plain"))


def test_another_default_precision_is_held_against_fp32_too(at_embedded_home):
    """Against our reduced precision on a processor the peers run in fp32, with an fp32 block of ours beside it, and
    transformers' plain decoding in 16 bits too."""
    found = benchmark.bench("toy", ["ngram", "autoregressive"], [2], "bf16", "cpu", True, SMALL)
    assert (found["precision"], found["peer_precision"]) == ("bf16", "fp32")
    assert (found["equal_precision"]["precision"], found["equal_precision"]["peer_precision"]) == ("fp32", "fp32")
    assert {"bf16", "fp32"} == found["precisions"].keys()
    assert (found["rows"][0]["setting"], found["rows"][0]["precision"]) == ("plain", "bf16")
    assert sum(r["precision"] == "fp32" and r["system"] == "specviz" for r in found["rows"]) == 2
    assert sum(r["precision"] == "bf16" and r["system"] == "transformers" for r in found["rows"]) == 1
    assert "In fp32 on both sides" in table(found)


def test_a_batch_of_three_emits_the_texts_of_each_alone(at_embedded_home):
    found = benchmark.bench("toy", ["ngram"], [2], "fp32", "cpu", True, SMALL, batch=3)
    assert {r["system"] for r in found["rows"]} >= {"specviz", "transformers"}
    assert all(r["same_text"] == r["texts"] for r in found["rows"])
    assert any("one text at a time" in note for note in found["notes"])


def test_a_run_without_time_keeps_the_least_prompts_and_says_so(at_embedded_home):
    scale = systems.Scale(picking=1, prompts=6, tokens=8, steps=1, picking_tokens=4, seconds=0.0, least=2, assisted=0)
    found = benchmark.bench("toy", ["ngram"], [2], "fp32", "cpu", False, scale)
    assert all(row["prompts"] == 2 for row in found["rows"])
    assert any("in its time" in note or "had taken its time" in note for note in found["notes"])


def test_no_winner_is_named_inside_the_noise():
    assert "no winner" in winner([system("a", [10, 11, 10, 12]), system("b", [10, 10.5, 10.2, 11.9])])
    assert winner([system("a", [20, 21, 22, 20]), system("b", [10, 11, 10, 10])]) == "specviz a, K = 3 (fp32)"


def test_a_winner_must_lead_all_others_not_the_second_alone():
    """The second by its median may lose clearly while the third, which varies, may not."""
    found = winner([system("a", [20, 21, 22, 20]), system("b", [18, 18, 18, 18]), system("c", [40, 9, 9, 9])])
    assert "no winner" in found and "c" in found


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--k", "0..3"], "--k"),
        (["--k", "banana"], "banana"),
        (["--drafters", "oracle"], "oracle"),
        (["--pair", "nope"], "no pair called"),
        (["--batch", "0", "--pair", "toy"], "batch"),
        (["--prompts", "nowhere.txt", "--pair", "toy"], "nowhere.txt"),
    ],
)
def test_bad_arguments_are_one_sentence(capsys, arguments, words):
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_a_shape_is_timed_with_random_weights(empty_home, monkeypatch, capsys):
    """Steps and plain decoding of a shape, against transformers on the same shape; no text is told."""
    from specviz.hardware import shapes

    monkeypatch.setitem(shapes.CONFIGS, "Nano", shapes._dense("llama", 2, 32, 2, 1, 16, 64, 300))
    monkeypatch.setattr(systems, "QUICK", SMALL)
    assert main(["bench", "--shape", "Nano", "--device", "cpu", "--precision", "fp32", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plain_vs_transformers_plain"] > 0 and 0 < found["bandwidth_share"] <= 1
    assert found["weights"] == "random" and "text" not in found
    assert main(["bench", "--shape", "Nano", "--device", "cpu", "--precision", "fp32", "--quick"]) == 0
    assert "measured bandwidth" in capsys.readouterr().out


def test_prompts_come_from_a_file_or_the_presets(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("the cat sees\n\nthe dog and\n", encoding="utf-8")
    assert benchmark.prompts_from(str(file), "toy") == ["the cat sees", "the dog and"]
    assert benchmark.prompts_from("presets", "toy") and benchmark.prompts_from("heldout", "toy") is None
    file.write_text("\n")
    with pytest.raises(SettingsError, match="no prompt"):
        benchmark.prompts_from(str(file), "toy")


FAKE_VLLM = """
class _Out:
    def __init__(self, ids): self.outputs = [type("T", (), {"token_ids": ids})()]; self.metrics = None
class SamplingParams:
    def __init__(self, temperature, max_tokens, detokenize, repetition_penalty, stop_token_ids):
        assert (temperature, repetition_penalty, stop_token_ids) == (0, 1, [99])
        self.n = max_tokens
class LLM:
    def __init__(self, folder, **options):
        print("noise on the output")
        assert options["generation_config"] == "vllm"
    def generate(self, prompts, settings, use_tqdm):
        import time; time.sleep(0.05 * settings.n)
        return [_Out([p["prompt_token_ids"][-1] + i for i in range(settings.n)]) for p in prompts]
__version__ = "0.0"
"""


def test_vllm_is_asked_line_by_line_in_a_process_of_its_own(tmp_path, monkeypatch):
    """The protocol, the noise on its output and the time of the prompt taken off, with a module in vLLM's place."""
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = peers.Vllm(sys.executable, tmp_path, "fp32", 64, 2, eos_ids=frozenset({99}))
    try:
        spoken = model.run([[5], [7, 8]], 4)
        assert spoken.texts == [[5, 6, 7, 8], [8, 9, 10, 11]] and model.setting == "compiled"
        assert 10 < spoken.rate < 80  # six tokens after the first ones, in 150 ms or, on a busy machine, more
    finally:
        model.close()


def test_vllm_that_cannot_compile_runs_eagerly(tmp_path, monkeypatch):
    fussy = FAKE_VLLM.replace('print("noise on the output")', 'assert options["enforce_eager"]')
    (tmp_path / "vllm.py").write_text(fussy)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = peers.Vllm(sys.executable, tmp_path, "fp32", 64, 2, eos_ids=frozenset({99}))
    try:
        assert model.setting == "eager" and model.run([[5]], 2).texts == [[5, 6]]
    finally:
        model.close()


def test_vllm_that_fails_says_its_last_line(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").write_text("raise RuntimeError('no such kernel')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SpecVizError, match="no such kernel"):
        peers.Vllm(sys.executable, tmp_path, "fp32", 64, 2)
