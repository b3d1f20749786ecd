"""The sweep: cells that are what runs are, stop and resume, contexts, refusals, the best K, settings, the model."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specviz.bench.sweep import Cell, Sweep, SweepRequest, best_k, bring_to, serving_settings
from specviz.bench.sweep import modelled as modelled_map
from specviz.checks import lossless
from specviz.cli import main
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.model_store import STORE
from specviz.errors import PairError, SettingsError
from specviz.hardware import catalogue, shapes
from specviz.hardware.roofline import modelled_seconds, step_cost
from specviz.loader.pairs import find_pair
from specviz.serving import step_table
from specviz.serving.load_test import LoadTest, LoadTestRequest
from specviz.serving.step_table import ModelledPass, modelled, tokens_by_row
from specviz.trace.records import Settings
from specviz.views.figures import speedup_map

TEXT = "the cat sees the dog and"


def order(**more):
    return SweepRequest(
        pair="toy",
        drafter="autoregressive",
        text=TEXT,
        **{"ks": (0, 2), "batches": (1, 2), "rounds": 4, "device": "cpu", **more},
    )


@pytest.fixture
def at_home(empty_home):
    return empty_home


@pytest.mark.slow
def test_cells_are_measured_and_their_counts_add_up(at_home):
    sweep = Sweep(order()).execute()
    assert sweep.status == "complete" and sweep.error is None and not sweep.missing
    assert list(sweep.cells) == [(0, 1, 0), (2, 1, 0), (0, 2, 0), (2, 2, 0)]
    plain, cell = sweep.cells[0, 2, 0], sweep.cells[2, 2, 0]
    assert plain.acceptance_rate is None and plain.wasted_flops_per_token == 0
    assert 0 <= cell.acceptance_rate <= 1 and 1 <= cell.mean_acceptance_length <= 3
    assert cell.speedup == pytest.approx(cell.tokens_per_second / cell.plain_tokens_per_second)
    parts = speedup_map.ledger_table(cell)
    assert parts[parts.decoding == "speculative"].flops_per_token.sum() == pytest.approx(cell.flops_per_token)
    assert (parts.flops_per_token >= 0).all()
    assert {p.kind for p in cell.points(sweep.ceilings)} == {"plain", "verify", "draft"}
    played = sweep.run_order(cell)
    assert (played.rows, played.settings.k, played.text) == (2, 2, TEXT)


def test_stop_and_resume(at_home):
    sweep = Sweep(order())
    report = sweep.report

    def stop_at_the_second(stage, *share):
        report(stage, *share)
        if "cell 2" in stage:
            sweep.stop()

    sweep.report = stop_at_the_second
    sweep.execute()
    assert sweep.status == "stopped" and 1 <= len(sweep.cells) < 4
    first = sweep.cells[0, 1, 0]
    sweep.report = report
    sweep._halt.clear()
    sweep.execute()
    assert sweep.status == "complete" and not sweep.missing and sweep.cells[0, 1, 0] is first


def test_prompts_are_brought_to_a_context(at_home):
    tokenizer = STORE.open(find_pair("toy").target, "cpu", "fp32").tokenizer
    for tokens in (50, 1000):
        text, ids = bring_to(tokenizer, TEXT, tokens, True)
        assert len(ids) == tokens and text.endswith(TEXT)
    assert bring_to(tokenizer, TEXT, 0, True)[0] == TEXT
    sweep = Sweep(order(ks=(1,), batches=(1,), contexts=(200,))).execute()
    assert sweep.cells[1, 1, 200].context == 200


def test_what_cannot_be_is_a_sentence(at_home):
    for bad in ({"ks": (99,)}, {"batches": (0,)}, {"contexts": (10**6,)}, {"rounds": 1}, {"ks": ()}):
        with pytest.raises(SettingsError, match=r"must be|needs"):
            order(**bad)
    with pytest.raises(PairError, match="choose one of"):
        Sweep(SweepRequest(pair="toy", drafter="other", text=TEXT))
    sweep = Sweep(order(ks=(8,), batches=(1,), contexts=(4096,), rounds=100)).execute()
    assert "positions" in sweep.cells[8, 1, 4096].note and sweep.cells[8, 1, 4096].speedup is None


CELLS = [
    Cell(k=k, batch=b, context=6, speedup=s)
    for b, line in ((1, (1.0, 1.4, 1.6)), (4, (1.0, 1.2, 0.9)), (16, (1.0, 0.8, 0.5)))
    for k, s in enumerate(line)
]


def test_the_best_k_and_the_line():
    assert [best_k(CELLS, b).k if best_k(CELLS, b) else None for b in (1, 4, 16)] == [2, 1, None]
    data = speedup_map.verdicts(CELLS)
    assert data.verdict.tolist() == ["K = 2", "K = 1", "do not speculate here"]
    text = serving_settings(CELLS, "ngram")
    config = json.loads(text["vLLM"].split("'")[1])
    assert config["num_speculative_tokens"] == 2 and config["method"] == "ngram"
    assert "from 16 requests at once on, do not speculate" in text["vLLM"]
    assert "--speculative-num-draft-tokens 3" in text["SGLang"]
    assert serving_settings([], "ngram") == {}


def test_the_map_draws_its_line_between_paying_and_losing():
    data = speedup_map.table(CELLS)
    figure = speedup_map.figure(data, (0, 1, 2), (1, 4, 16), "here", "measured", (1, 4))
    line = next(t for t in figure.data if t.name and t.name.startswith("break-even"))
    sides = {(line.x[i], line.y[i], line.x[i + 1], line.y[i + 1]) for i in range(0, len(line.x), 3)}
    assert sides == {(1.5, 0.5, 1.5, 1.5), (0.5, 1.5, 1.5, 1.5), (1.5, 0.5, 2.5, 0.5)}
    assert "From batch 16 on, no K pays on here" in figure.layout.meta["title"]
    assert "#0000" not in figure.to_json()
    empty = speedup_map.figure(speedup_map.table([]), (0, 1), (1,), "here", "measured")
    assert "no cell yet" in empty.layout.meta["title"]


def test_the_modelled_map_loses_where_compute_is_full():
    shape, roofs = shapes.shape("Llama-3.1-8B"), catalogue.device("H100 SXM").ceilings("bf16")
    cells = modelled_map(shape, roofs, (0, 4), (1, 256), 128, 0.7, 0.05, False)
    found = {(c.k, c.batch): c for c in cells}
    assert found[4, 1].speedup > 2 and found[4, 256].speedup < 1
    assert found[0, 1].speedup == pytest.approx(1) and found[4, 1].flops_per_token > found[0, 1].flops_per_token
    long = {(c.k, c.batch): c for c in modelled_map(shape, roofs, (4,), (256,), 8192, 0.7, 0.05, False)}
    assert long[4, 256].speedup > found[4, 256].speedup  # long caches move the line


def test_the_modelled_pass_is_the_roofline_of_the_same_pass():
    for name in ("Llama-3.1-8B", "gpt-oss-20b"):
        shape, roofs = shapes.shape(name), catalogue.device("H100 SXM").ceilings("bf16")
        for batch, k in ((1, 0), (16, 4), (300, 7)):
            whole = modelled_seconds(step_cost(shape, batch, k, 512), roofs)
            assert ModelledPass(shape, roofs, 512)(batch * (k + 1), batch) == pytest.approx(whole, rel=0.03)
    costs = modelled(shape, roofs, 512, 0.05, True)
    assert costs.drafting([3]) == pytest.approx(3 * 0.05 * costs.target(1, 1), rel=1e-6)


def test_a_step_table_is_measured_and_kept(at_home):
    target, settings = STORE.open(find_pair("toy").target, "cpu", "fp32"), Settings()
    pair = find_pair("toy")
    for name in ("autoregressive", "ngram"):
        key = step_table.key(target, "toy", name, settings)
        assert step_table.cached(key) is None
        table = step_table.measure(
            target,
            lambda name=name: make_drafter(name, pair, target, settings),
            settings,
            key,
            context=16,
            repeats=2,
            counts=(1, 2, 8),
            draft_rows=(1, 4),
        )
        assert step_table.cached(key) == table
        assert table.costs.round([2, 0]) > 0
        assert bool(table.draft_tokens) == bool(table.draft_more_seconds) == (name == "autoregressive")
    assert [sum(tokens_by_row(n)) for n in range(1, 100)] == list(range(1, 100)) and len(tokens_by_row(200)) == 32


@pytest.mark.slow
def test_the_commands_print_their_keys(at_home, capsys):
    assert main.main(["sweep", "--pair", "toy", "--k", "0,1", "--batch", "1", "--rounds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"k", "batch", "tokens_per_second", "speedup", "acceptance_rate"} <= set(found["cells"][0])
    assert [c["acceptance_rate"] is None for c in found["cells"]] == [True, False]
    for cell in found["cells"]:
        # rates are those of whole rounds and steps; forward passes are shorter and go by their own names
        assert cell["plain_tokens_per_second"] == pytest.approx(cell["batch"] / cell["plain_step_seconds"])
        assert 0 < cell["plain_forward_seconds"] < cell["plain_step_seconds"]
        assert 0 < cell["verify_forward_seconds"] < cell["round_seconds"]
        assert cell["plain_seconds"] == cell["plain_forward_seconds"]
        assert cell["verify_seconds"] == cell["verify_forward_seconds"]
    assert (
        main.main(
            [
                "load",
                "--pair",
                "toy",
                "--policy",
                "none,fixed:2",
                "--rate",
                "20",
                "--seconds",
                "0.5",
                "--length",
                "4..8",
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)["policies"]
    assert [f["policy"] for f in found] == ["none", "fixed K = 2"]
    assert {
        "rate",
        "tokens_per_second",
        "tokens_per_second_per_user",
        "mean_verify_length",
        "wasted_verify_fraction",
        "requests",
        "identical",
    } <= set(found[0])
    assert all(f["identical"] is True for f in found)
    for bad in (
        ["sweep", "--k", "0..99"],
        ["sweep", "--batch", "0"],
        ["load", "--rate", "x"],
        ["load", "--policy", "other"],
        ["load", "--pair", "toy", "--length", "9..1"],
    ):
        assert main.main(bad) == 2
        out, err = capsys.readouterr()
        assert not out and "Traceback" not in err


def test_a_text_that_parts_from_its_text_alone_is_a_defect_unless_two_tokens_were_nearly_tied(at_home, monkeypatch):
    run = LoadTest(
        LoadTestRequest(pair="toy", drafter="autoregressive", policies=("none",), rate=20, seconds=0.3, lengths=(6, 6))
    ).execute()
    summary, (record, *_) = run.results[0].summary, run.results[0].records
    assert (summary.identical, summary.near_ties, summary.differing, summary.widest_gap) == (True, 0, 0, None)
    target = STORE.open(find_pair("toy").target, "cpu", "fp32")
    other = [*record.tokens[:2], record.tokens[2] ^ 1, *record.tokens[3:]]
    changed = SimpleNamespace(records={0: replace(record, tokens=other)})
    assert run._compare_alone(target, changed) == {
        "identical": False,
        "near_ties": 0,
        "differing": 1,
        "widest_gap": None,
    }
    gap = lossless.top_gap(target.model, [*record.request.prompt, *record.tokens[:2]])
    monkeypatch.setattr(lossless, "NEAR_TIE", {"fp32": gap})
    assert run._compare_alone(target, changed) == {
        "identical": False,
        "near_ties": 1,
        "differing": 0,
        "widest_gap": gap,
    }
    shorter = SimpleNamespace(records={0: replace(record, tokens=record.tokens[:3])})
    assert run._compare_alone(target, shorter)["differing"] == 1, "a text that ends too early is no near-tie"


def test_a_load_is_simulated_on_a_device_of_the_catalogue(capsys):
    """No model runs: the same arrivals under two policies, labelled as simulated, and the same figures again."""
    command = [
        "load",
        "--simulate",
        "H100 SXM",
        "--policy",
        "fixed:2,prefix",
        "--rate",
        "20",
        "--seconds",
        "0.5",
        "--rows",
        "8",
        "--json",
    ]
    assert main.main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["simulated"] and first["device"] == "H100 SXM" and first["table"] is None
    assert [p["policy"] for p in first["policies"]] == ["fixed K = 2", "prefix scheduler"]
    assert all(p["finished"] == p["requests"] > 0 for p in first["policies"])
    assert main.main(command) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert main.main(["load", "--simulate", "Abacus"]) == 2
    assert "no device 'Abacus'" in capsys.readouterr().err
