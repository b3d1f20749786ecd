"""The hybrid drafter: q is what its tokens were drawn from, first guess and confidence per slot, its files."""

import json

import pytest
import torch
from test_parallel import PROMPT, make, ready, request, target  # noqa: F401 (a fixture)
from test_training import DRAFT_IDS, LAYERS, SIZE, VOCAB, block_net, module

from specviz.drafters import checkpoints, trained_autoregressive
from specviz.drafters.base import Request
from specviz.drafters.block_net import BlockConfig
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.names import trained
from specviz.drafters.parallel import ParallelDrafter
from specviz.errors import FetchError, PairError
from specviz.models.causal import CausalModel
from specviz.sampling.distributions import dense
from specviz.trace.records import Settings
from specviz.training import causal, closed_form


def test_each_token_is_drawn_from_the_q_that_is_reported_for_its_prefix(target):  # noqa: F811
    drafter = ready(make(HybridDrafter, target, temperature=1.0), target)
    drawn = [
        drafter.propose([Request(0, PROMPT[-1], 2, (u, 0.5))]).on_host() for u in torch.linspace(0, 0.999, 300).tolist()
    ]
    counts = torch.bincount(torch.tensor([d.tokens[0][0] for d in drawn]), minlength=VOCAB) / 300
    assert torch.allclose(counts.double(), dense(drawn[0].draft_probs[0])[0], atol=0.01)
    by_first = {d.tokens[0][0]: dense(d.draft_probs[0])[1] for d in drawn}
    q = list(by_first.values())
    assert len(q) > 3 and not torch.allclose(q[0], q[1])  # the second slot knows the first one's token


def test_first_guess_is_the_parallel_drafters_and_confidence_lies_between_0_and_1(target):  # noqa: F811
    hybrid = ready(make(HybridDrafter, target), target).propose([request(0, PROMPT[-1], 5)]).on_host()
    parallel = ready(make(ParallelDrafter, target), target).propose([request(0, PROMPT[-1], 5)]).on_host()
    assert hybrid.first_guess == parallel.tokens
    assert len(hybrid.confidence[0]) == 5 and all(0 < c < 1 for c in hybrid.confidence[0])


def test_a_live_serial_pass_equals_the_teacher_forced_one(target):  # noqa: F811
    drafter = ready(make(HybridDrafter, target), target)
    out = drafter.propose([request(0, PROMPT[-1], 4)]).on_host()
    text = [*PROMPT, *out.tokens[0]]
    n = len(PROMPT)
    with torch.inference_mode():
        hidden, *_ = drafter.fused.draft(drafter._cache, drafter._inputs([request(0, PROMPT[-1], 4)], [4]))
    with torch.no_grad():
        refined = drafter.net.serial(
            hidden, target.embedding[text[n - 1 : n + 3]], target.embedding[text[n - 2 : n + 2]]
        )
    refined[0] = hidden[0]  # the first slot is not refined
    assert torch.allclose(drafter.fused.head(refined), dense(out.draft_logits[0])[:, DRAFT_IDS], atol=1e-4)


def test_the_token_before_the_anchor_is_tracked_through_commits(target):  # noqa: F811
    drafter = ready(make(HybridDrafter, target), target)
    taps = torch.zeros(2, 2 * SIZE)
    drafter.commit(0, [4], taps[:1])
    assert drafter._before[0] == PROMPT[-1]
    drafter.commit(0, [6, 7], taps)
    assert drafter._before[0] == 6


def test_without_a_serial_head_it_is_refused(target):  # noqa: F811
    with pytest.raises(PairError, match="serial head"):
        HybridDrafter(block_net(serial=0), target, Settings())


def test_files_round_trip_within_the_int8_step_and_parallel_leaves_the_head_out(tmp_path):
    config = BlockConfig(
        hidden_size=96,
        vocab_size=VOCAB,
        layers=1,
        heads=3,
        kv_heads=1,
        head_dim=32,
        ffn=96,
        taps=(0, 2),
        block=8,
        serial=96,
    )
    from specviz.drafters.block_net import BlockNet

    torch.manual_seed(0)
    net = BlockNet(config, DRAFT_IDS)
    for kind in ("parallel", "hybrid"):
        checkpoints.save(tmp_path / kind, kind, net, {"note": "a test"})
        read = checkpoints.load_block_net(tmp_path / kind)
        for name, tensor in read.state_dict().items():
            original = net.state_dict()[name]
            step = original.abs().max() / 127 if original.is_floating_point() else 0
            assert (tensor - original).abs().max() <= 0.51 * step + 1e-3
    assert checkpoints.load_block_net(tmp_path / "parallel").config.serial == 0


def test_a_damaged_or_foreign_folder_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(FetchError, match="cannot be read"):
        checkpoints.read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(FetchError, match="not a drafter that SpecViz trained"):
        checkpoints.read(tmp_path)


def test_the_trained_autoregressive_drafter_loads_and_its_export_is_a_stock_model(tmp_path, target):  # noqa: F811
    net = causal.CausalNet(
        BlockConfig(
            hidden_size=SIZE, vocab_size=VOCAB, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, taps=(), block=16
        ),
        DRAFT_IDS,
    )
    closed_form.start_from_layers(net, module(), (0, LAYERS - 1))
    checkpoints.save(tmp_path / "ar", "autoregressive", net, {})
    small, ids = trained_autoregressive.load_module(tmp_path / "ar", target)
    tokens = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        expected = net(target.embedding[tokens]) @ target.head[DRAFT_IDS].T
    drafter = CausalModel(small)
    cache = drafter.new_cache()
    cache.add(0, 3)
    assert torch.allclose(drafter.forward(cache, [0], tokens.tolist()).logits[0], expected[0], atol=2e-3)

    class Tokenizer:
        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{}")

    from transformers import AutoModelForCausalLM

    trained_autoregressive.export(tmp_path / "ar", target, Tokenizer(), tmp_path / "standard")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "standard")
    assert torch.allclose(exported(tokens).logits[..., DRAFT_IDS], expected, atol=2e-3)

    drafter = trained_autoregressive.TrainedAutoregressiveDrafter(CausalModel(small), ids, target, Settings())
    drafter.start(0, PROMPT, None, 40)
    out = drafter.propose([request(0, PROMPT[-1], 3)]).on_host()
    assert set(out.tokens[0]) <= set(DRAFT_IDS.tolist()) and dense(out.draft_probs[0]).shape == (3, VOCAB)


def test_shipped_drafters_read_and_keep_to_16_megabytes():
    for kind, folder in trained().items():
        read_kind, config, weights, about = checkpoints.read(folder)
        assert read_kind == kind and config.vocab_size == 49152 and about["licence"] == "Apache-2.0"
        assert (folder / "model.safetensors").stat().st_size < 16 * 2**20
        assert (weights["draft_ids"].diff() > 0).all() and (folder / "README.md").is_file()
        if kind != "autoregressive":
            assert checkpoints.load_block_net(folder).config == config
