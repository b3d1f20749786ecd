"""Timing real steps of a small model: which steps come out, what they cost, what is refused; the two commands."""

import argparse
import json

import pytest
import torch
import transformers

from specviz.bench import monitor_overhead, step_times
from specviz.cli import bottleneck, roofline
from specviz.cli import ceilings as ceilings_command
from specviz.errors import MemoryBudgetError, SettingsError
from specviz.hardware import ceilings
from specviz.hardware.costs import pass_cost
from specviz.models.causal import CausalModel
from specviz.trace.records import Ceilings
from specviz.worker import Job, Stopped

ROOFS = Ceilings(
    device="cpu",
    precision="fp32",
    bandwidth=1e13,
    flops=1e15,
    bandwidth_spread=(1e13, 1e13),
    flops_spread=(1e15, 1e15),
    measured_at="2026-01-01T00:00:00+00:00",
)


@pytest.fixture(scope="module")
def model() -> CausalModel:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=50,
        max_position_embeddings=64,
    )
    return CausalModel(transformers.AutoModelForCausalLM.from_config(config))


def test_plain_is_always_there_and_each_step_carries_its_counted_cost(model):
    found = step_times.measure(model, [2, 4], [1, 3], context=8, repeats=2)
    assert [(s.kind, s.k, s.batch) for s in found] == [
        ("prefill", 0, 1),
        ("plain", 0, 1),
        ("verify", 2, 1),
        ("verify", 4, 1),
        ("prefill", 0, 3),
        ("plain", 0, 3),
        ("verify", 2, 3),
        ("verify", 4, 3),
    ]
    assert found[-1].cost == pass_cost(model.shape, [5] * 3, [8] * 3, 15)
    assert all(s.spread[0] <= s.seconds <= s.spread[1] and s.seconds > 0 and s.context == 8 for s in found)


def test_as_many_tokens_are_forwarded_as_are_counted(model):
    before = model.tokens_forwarded
    step_times.measure(model, [3], [2], context=5, repeats=1)
    prefill, passes = 2 * 2 * 5, 2 * 2 * (1 + 4)  # each twice: once to warm up
    assert model.tokens_forwarded - before == prefill + passes


def test_an_empty_context_has_no_prefill(model):
    assert [s.kind for s in step_times.measure(model, [1], [1], context=0, repeats=1)] == ["plain", "verify"]


@pytest.mark.parametrize(
    "ks,batches,context",
    [
        ([], [1], 8),
        ([65], [1], 8),
        ([-1], [1], 8),
        ([1], [0], 8),
        ([1], [], 8),
        ([1], [257], 8),
        ([40], [200], 8),
        ([1], [1], 64),
        ([1], [1], -1),
    ],
)
def test_sizes_out_of_range_are_refused(model, ks, batches, context):
    with pytest.raises(SettingsError):
        step_times.measure(model, ks, batches, context)


def test_a_cache_that_would_not_fit_is_refused(model, monkeypatch):
    monkeypatch.setattr(step_times, "free_memory_bytes", lambda device: 1000)
    with pytest.raises(MemoryBudgetError, match="lower the batch"):
        step_times.measure(model, [1], [4], 8)


def test_measuring_can_be_stopped(model):
    calls = iter([False, False, True])
    with pytest.raises(Stopped):
        step_times.measure(model, [1], [1], 8, job=Job(stop=lambda: next(calls, True)))


def test_the_busy_search_gives_the_closest_batch_and_its_verify_step(model):
    found = step_times.find_busy(model, ROOFS, target=0.12, k=4, context=8, repeats=1, largest=4)
    assert not found.reached, "on such roofs a small model is never busy"
    assert found.verify.batch == found.plain.batch and (found.verify.k, found.plain.k) == (4, 0)
    easy = Ceilings(
        device="cpu",
        precision="fp32",
        bandwidth=1e3,
        flops=1e3,
        bandwidth_spread=(1e3, 1e3),
        flops_spread=(1e3, 1e3),
        measured_at="2026-01-01T00:00:00+00:00",
    )
    assert step_times.find_busy(model, easy, context=8, repeats=1).reached


def test_json_of_a_step_says_which_roof_binds(model):
    step = step_times.measure(model, [4], [1], context=8, repeats=1)[-1]
    written = step_times.as_json(step, ROOFS)
    assert {
        "kind",
        "k",
        "batch",
        "context",
        "flops",
        "bytes",
        "seconds",
        "intensity",
        "bound",
        "busy_fraction",
        "overhead_fraction",
    } <= set(written)
    assert written["bound"] == "memory" and written["explained_by"] == "overhead"
    json.dumps(written, allow_nan=False)


def test_the_commands_print_one_json_object(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    monkeypatch.setitem(ceilings._BUFFER_BYTES, "cpu", 2**22)
    monkeypatch.setitem(ceilings._WIDEST, "cpu", 256)
    monkeypatch.setattr(ceilings, "_SECONDS", {False: 0.1, True: 0.05})
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for module in (ceilings_command, roofline):
        module.add_parsers(commands)
    for command in (
        ["ceilings", "--json", "--device", "cpu"],
        [
            "roofline",
            "--json",
            "--device",
            "cpu",
            "--pair",
            "toy",
            "--k",
            "1..2",
            "--batch",
            "1,2",
            "--context",
            "8",
            "--repeats",
            "1",
        ],
    ):
        arguments = parser.parse_args(command)
        assert arguments.handler(arguments) == 0
        printed = json.loads(capsys.readouterr().out)
    assert {p["kind"] for p in printed["points"]} == {"plain", "verify", "draft", "prefill"}
    assert printed["ceilings"]["ridge"] > 0


def test_widths_are_timed_with_what_explains_them(model):
    found = step_times.by_width(model, [1, 3], context=8, repeats=1)
    assert [w.positions for w in found] == [1, 3]
    assert found[1].cost == pass_cost(model.shape, [3], [8], 3)
    assert all(w.linear_seconds > 0 and w.dispatch_seconds > 0 for w in found)
    linears = 2 * (model.shape.parameters - model.vocab_size * 32 - model.shape.small_weights)
    assert found[0].linear_cost.flops == linears, "every linear layer and the head, and nothing else"
    parts = step_times.explain(found[0], ROOFS)
    assert parts.seconds == pytest.approx(found[0].seconds)
    written = step_times.width_json(found[0], ROOFS)
    json.dumps(written, allow_nan=False)
    assert written["error"] == pytest.approx((parts.roofs + parts.dispatch) / found[0].seconds - 1)


def test_repetitions_that_differ_widely_are_told(model):
    cost = pass_cost(model.shape, [1], [4], 1)
    calm, wild = (
        step_times.Step(kind="plain", k=0, batch=1, context=4, cost=cost, seconds=0.1, spread=spread)
        for spread in ((0.09, 0.11), (0.05, 0.2))
    )
    assert step_times.spread_warning([calm, calm, wild]) is None and step_times.spread_warning([]) is None
    assert "4.0 times as long" in step_times.spread_warning([wild])


def test_widths_are_refused_and_stopped_like_all_else(model):
    with pytest.raises(SettingsError):
        step_times.by_width(model, [0, 1])
    with pytest.raises(Stopped):
        step_times.by_width(model, [1], context=8, repeats=1, job=Job(stop=lambda: True))


def test_an_architecture_that_cannot_be_made_small_has_no_dispatch_time():
    gpt2 = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=32, bos_token_id=0, eos_token_id=1
    )
    assert step_times.dispatch_seconds(CausalModel(transformers.AutoModelForCausalLM.from_config(gpt2)), 8, 1) is None


def test_watching_costs_less_than_one_per_cent(model):
    """With the usual two samples a second, on steps of a real module."""
    told = monitor_overhead.measure(model, seconds=2.0, context=8)
    assert told.samples >= 1 and told.share < 0.01
    assert told.step_watched > 0 and told.step_alone > 0


def test_the_bottleneck_command_prints_widths_busy_batch_and_the_cost_of_watching(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    monkeypatch.setitem(ceilings._BUFFER_BYTES, "cpu", 2**22)
    monkeypatch.setitem(ceilings._WIDEST, "cpu", 256)
    monkeypatch.setattr(ceilings, "_SECONDS", {False: 0.1, True: 0.05})
    monkeypatch.setattr(monitor_overhead, "BLOCK_SECONDS", 0.6)
    parser = argparse.ArgumentParser()
    bottleneck.add_parsers(parser.add_subparsers(required=True))
    call = [
        "bottleneck",
        "--device",
        "cpu",
        "--pair",
        "toy",
        "--widths",
        "1..3",
        "--context",
        "4",
        "--repeats",
        "1",
        "--largest",
        "2",
        "--watch",
        "0.1",
    ]
    for more in (["--json"], []):
        arguments = parser.parse_args([*call, *more])
        assert arguments.handler(arguments) == 0
        printed = capsys.readouterr().out
        if more:
            found = json.loads(printed)
            assert [w["positions"] for w in found["widths"]] == [1, 2, 3]
            assert found["twelve_per_cent"]["verify"]["k"] == 4 and 0 <= found["monitor"]["share"] < 1
        else:
            assert "verify of 5" in printed and "Monitor:" in printed


def test_the_help_of_every_command_here_can_be_printed():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(required=True)
    for module in (ceilings_command, roofline, bottleneck):
        module.add_parsers(commands)
    assert "12 % busy" in " ".join(parser.format_help().split())
    for command in commands.choices.values():
        assert command.format_help()
