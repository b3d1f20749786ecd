"""Numbers that are none: every way of decoding ends with a sentence, and weights are looked through at loading."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_loop import make
from test_training import block_net, module
from tiny_models import byte_level_tokenizer, tiny_model
from transformers import AutoModelForCausalLM

from specviz.checks import lossless
from specviz.cli.main import main
from specviz.drafters import checkpoints
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.engine.loop import decode
from specviz.errors import NotFiniteError
from specviz.loader.load_model import load_module
from specviz.loader.toy import FOLDER
from specviz.models.causal import CausalModel
from specviz.models.finite import first_faulty_layer
from specviz.sampling.rejection import draw, draws
from specviz.trace.records import Settings

GREEDY, SAMPLED = Settings(k=3, max_new_tokens=12), Settings(k=3, max_new_tokens=12, temperature=1.0)
CUT = Settings(k=3, max_new_tokens=12, temperature=0.8, top_k=3, top_p=0.9)


def toy(part="target"):
    return AutoModelForCausalLM.from_pretrained(FOLDER / part)


def broken(part="target", layer=1, value=math.nan):
    """A toy model one of whose layers gives such numbers."""
    found = toy(part)
    found.model.layers[layer].mlp.down_proj.weight.data[0, 0] = value
    return CausalModel(found)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("drafter", [None, "ngram", "first-layers", "autoregressive"])
def test_a_target_at_fault_ends_the_run_and_its_first_layer_at_fault_is_named(toy_draft, drafter, record, settings):
    target = broken()
    given = make(drafter, target, toy_draft, settings) if drafter else None
    prompts = [[0, 1, 3, 0, 1, 3], [0, 2]]
    with pytest.raises(NotFiniteError, match=r"The target target in fp32 .* layer 2 is the first .* fetch them again"):
        list(decode(target, given, prompts, settings, record=record))


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_numbers_are_faults_too(value):
    with pytest.raises(NotFiniteError, match="layer 1 is the first"):
        list(decode(broken(layer=0, value=value), None, [[0, 1]], GREEDY))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
def test_a_head_at_fault_is_told_from_the_layers(settings):
    target = CausalModel(toy())
    target.head.data[:] = math.nan
    target._fused.head = lambda kept, *_: torch.full((len(kept), target.vocab_size), math.nan)
    target.embedding.data[:] = 1.0  # it may be the head's
    assert first_faulty_layer(target, [0, 1, 2]) is None
    with pytest.raises(NotFiniteError, match="none has such an output"):
        list(decode(target, None, [[0, 1]], settings))


class Masking(CausalModel):
    """A target that masks all tokens but some, and says at which of a pass' positions."""

    kept: tuple[int, ...] = (1, 2)

    def forward(self, cache, rows, tokens, taps=(), logits=True):
        out = super().forward(cache, rows, tokens, taps, logits)
        masked = [t for t in range(self.vocab_size) if t not in self.kept]
        packed = out.packed.clone()
        packed[:, masked] = -torch.inf
        return type(out)(packed, out.starts, out.counts, out.taps)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
@pytest.mark.parametrize("drafter", ["ngram", "autoregressive"])
def test_masked_tokens_are_no_fault_and_can_be_written_down(toy_draft, drafter, settings):
    """Logits of -inf at some tokens: the run goes on, draws none of them, and its record is valid JSON."""
    target = Masking(toy())
    rounds = list(decode(target, make(drafter, target, toy_draft, settings), [[0, 1, 3, 0, 1]], settings))
    assert {t for r in rounds for v in r.rows for t in v.emitted} <= {1, 2}
    positions = [p for r in rounds for v in r.rows for p in v.positions]
    json.dumps([p.target_logits for p in positions], allow_nan=False)
    assert any(len(p.support) > 2 for p in positions)


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_target_that_masks_every_token_is_at_fault(settings):
    target = Masking(toy())
    target.kept = ()
    with pytest.raises(NotFiniteError):
        list(decode(target, None, [[0, 1]], settings))


@pytest.mark.parametrize("settings", [GREEDY, SAMPLED, CUT], ids=["greedy", "sampled", "cut"])
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("prompts", [[[0, 1, 3]], [[0, 1, 3], [0], [5, 0, 1]]], ids=["alone", "batch"])
def test_a_drafter_at_fault_is_named_with_its_layer(toy_target, settings, record, prompts):
    drafter = make("autoregressive", toy_target, broken("draft", 0), settings)
    with pytest.raises(NotFiniteError, match=r"The drafter autoregressive \(draft\) in fp32 .* layer 1 is the first"):
        list(decode(toy_target, drafter, prompts, settings, record=record))


@pytest.mark.parametrize("kind", [ParallelDrafter, HybridDrafter])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_block_drafter_at_fault_is_named(kind, sampled, value):
    target, net = CausalModel(module()), block_net()
    net.norm.weight.data[0] = value
    settings = SAMPLED if sampled else GREEDY
    drafter = kind(net, target, settings, sampled=True) if kind is ParallelDrafter else kind(net, target, settings)
    with pytest.raises(NotFiniteError, match=f"The drafter {kind.name} in fp32"):
        list(decode(target, drafter, [[3, 14, 15, 9], [7, 8]], settings))


def test_draws_from_rows_that_are_no_numbers_stay_inside_the_vocabulary():
    """Until the fault is seen nothing may be read past the end of a table, which ends a GPU's context."""
    rows = torch.full((2, 5), math.nan, dtype=torch.float64)
    assert draws(rows, torch.tensor([0.1, 0.9], dtype=torch.float64)).tolist() == [4, 4]
    assert draw(rows[0], 0.5) == 4


def folder_of(tmp_path, change, name="model.safetensors"):
    """A model folder with one tensor changed."""
    tiny_model().save_pretrained(tmp_path)
    byte_level_tokenizer().save_pretrained(tmp_path)
    weights = load_file(tmp_path / name)
    change(weights)
    save_file(weights, tmp_path / name, metadata={"format": "pt"})
    return tmp_path


@pytest.mark.parametrize("stock", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused_by_the_tensors_name(tmp_path, value, stock):
    folder = folder_of(tmp_path, lambda w: w["model.layers.0.mlp.up_proj.weight"].view(-1)[7:8].fill_(value))
    with pytest.raises(
        NotFiniteError, match=r"are damaged: model\.layers\.0\.mlp\.up_proj\.weight has numbers that are"
    ):
        load_module(folder, "cpu", "fp32", stock)


def test_weights_that_do_not_fit_the_precision_are_told_from_damaged_ones(tmp_path, capsys):
    """And a check of them is inconclusive, in words, in JSON and by its exit code."""
    folder = folder_of(tmp_path, lambda w: w["model.layers.0.mlp.down_proj.weight"].mul_(1e7))
    load_module(folder, "cpu", "fp32"), load_module(folder, "cpu", "bf16")
    with pytest.raises(NotFiniteError, match=r"do not fit fp16: .*down_proj\.weight .* Choose bf16 or fp32"):
        load_module(folder, "cpu", "fp16")
    asked = ["--pair", str(folder), "--drafter", "ngram", "--precision", "fp16"]
    assert main(["check", *asked, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "inconclusive" and "do not fit fp16" in found["fault"]
    assert main(["check", *asked]) == 3 and "inconclusive" in capsys.readouterr().out
    assert main(["run", *asked, "--prompt", "the cat", "--raw"]) == 2
    assert "do not fit fp16" in capsys.readouterr().err


def test_a_trained_drafter_with_such_weights_is_refused(tmp_path):
    net = copy.deepcopy(block_net())
    net.masks.data[0, 0] = math.nan
    checkpoints.save(tmp_path, "hybrid", net, {})
    with pytest.raises(NotFiniteError, match=r"the drafter in .* are damaged: masks"):
        checkpoints.load_block_net(tmp_path)


def test_a_check_whose_target_fails_while_it_decodes_is_inconclusive(empty_home, monkeypatch, capsys):
    """Plain and speculative decoding would agree on nonsense: that proves nothing."""
    monkeypatch.setattr("specviz.engine.model_store.CausalModel", lambda module, **_: broken(layer=0))
    store = lossless.ModelStore()
    found = lossless.check("toy", "ngram", 2, samples=0, prompts=1, store=store)
    assert found.verdict == "inconclusive" and "NaN or infinite" in found.fault
    assert found.plain()["fault"] == found.fault and found.plain()["greedy_identical"] is None
