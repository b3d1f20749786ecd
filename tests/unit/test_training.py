"""Training of drafters: losses, closed-form starts, blocks without leaks or off-by-ones, resuming."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.errors import SpecVizError
from specviz.models.causal import CausalModel
from specviz.trace.calibration import expected_error
from specviz.training import block, causal, closed_form, confidence, features, loop, losses, target_parts
from specviz.training.corpus import Corpus, distinct4

VOCAB, SIZE, LAYERS, TAPS = 60, 32, 4, (0, 2)
DRAFT_IDS = torch.arange(0, VOCAB, 2)


def module(seed=0):
    torch.manual_seed(seed)
    return (
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=SIZE,
                intermediate_size=48,
                num_hidden_layers=LAYERS,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                rms_norm_eps=1e-5,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
        .eval()
        .requires_grad_(False)
    )


def block_net(serial=24, seed=1):
    torch.manual_seed(seed)
    net = BlockNet(
        BlockConfig(
            hidden_size=SIZE,
            vocab_size=VOCAB,
            layers=2,
            heads=4,
            kv_heads=2,
            head_dim=8,
            ffn=48,
            taps=TAPS,
            block=8,
            serial=serial,
        ),
        DRAFT_IDS,
    )
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.3) if p.ndim > 1 else None
    return net.eval()


def corpus(rows=12, seed=0):
    chance = np.random.default_rng(seed)
    length = chance.integers(14, 24, rows).astype(np.uint16)
    tokens = chance.integers(0, VOCAB, int(length.sum())).astype(np.uint16)
    return Corpus(
        tokens,
        length,
        chance.integers(5, 9, rows).astype(np.uint16),
        np.zeros(rows, np.float32),
        np.full(rows, -1, np.int16),
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    features.compute(CausalModel(module()), corpus(), folder / "s0", batch_tokens=50)
    return features.TapStore(folder)


def distil_logits(logits, p, weights, kl_share=None):
    """The loss of logits [N, V] against p [N, V]: with the identity as the head, states are logits."""
    eye = torch.eye(logits.shape[1])
    loss, overlap, _ = losses.distil([logits], p.log(), eye, weights[None], kl_share, torch.float32)
    return loss, overlap[0]


@pytest.mark.parametrize("rows", [5, 2 * losses.ROWS + 3])
def test_the_written_out_gradient_is_that_of_the_loss(rows):
    torch.manual_seed(0)
    logits = torch.randn(rows, 7, requires_grad=True)
    p, weights = torch.randn(rows, 7).softmax(-1), torch.rand(rows)
    loss, overlap = distil_logits(logits, p, weights)
    loss.backward()
    other = logits.detach().clone().requires_grad_()
    q = other.softmax(-1)
    same = torch.minimum(p, q).sum(-1)
    share = torch.exp(-3 * same.detach())
    expected = (weights * (share * -(p * q.log()).sum(-1) + (1 - share) * (1 - same))).sum()
    expected.backward()
    assert torch.allclose(loss, expected, rtol=1e-5) and torch.allclose(overlap, same, atol=1e-6)
    assert torch.allclose(logits.grad, other.grad, atol=1e-6)


def test_the_gradient_reaches_the_states_of_several_drafters_through_the_head():
    torch.manual_seed(0)
    states = [torch.randn(9, 4, requires_grad=True) for _ in range(2)]
    targets, head, weights = torch.randn(9, 4), torch.randn(6, 4), torch.rand(2, 9)
    loss, overlap, log_peak = losses.distil(states, targets, head, weights, 0.5, torch.float32)
    (3 * loss).backward()
    for i, state in enumerate(states):
        alone = (state.detach() @ head.T).requires_grad_()
        part, same = distil_logits(alone, (targets @ head.T).softmax(-1), weights[i], 0.5)
        part.backward()
        assert torch.allclose(state.grad, 3 * alone.grad @ head, atol=1e-5) and torch.allclose(overlap[i], same)
        assert torch.allclose(log_peak[i], alone.detach().log_softmax(-1).amax(-1), atol=1e-5)


def test_pure_total_variation_and_pure_kl_are_the_ends_of_the_mixture():
    logits, p = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.9, 0.1]])
    assert distil_logits(logits, p, torch.ones(1), 0.0)[0] == pytest.approx(0.4)
    assert distil_logits(logits, p, torch.ones(1), 1.0)[0] == pytest.approx(0.6931, abs=1e-4)


def test_position_weights_decay():
    assert losses.position_weights(3, 2.0).tolist() == pytest.approx([1, 0.60653, 0.36788], abs=1e-4)


def test_sequential_temperatures_calibrate_overconfident_logits():
    torch.manual_seed(0)
    truth = torch.rand(4000, 3) * 0.8 + 0.1
    accepted = (torch.rand(4000, 3) < truth).float()
    logits = 3 * torch.logit(truth)  # three times too sure
    found = losses.sequential_temperatures(logits, accepted)
    survived = accepted.cumprod(-1)
    for k in range(3):
        raw = torch.sigmoid(logits[:, : k + 1]).prod(-1)
        calibrated = torch.sigmoid(logits / found)[:, : k + 1].prod(-1)
        assert expected_error(calibrated, survived[:, k]) < 0.03
        assert expected_error(raw, survived[:, k]) > 0.05


def test_ridge_finds_a_linear_map():
    torch.manual_seed(0)
    weight, bias, x = torch.randn(3, 5), torch.randn(3), torch.randn(400, 5)
    ridge = closed_form.Ridge(5, 3)
    for part in x.split(100):
        ridge.add(part, part @ weight.T + bias)
    found, offset, explained = ridge.solve(1e-9)
    assert torch.allclose(found, weight, atol=1e-3) and torch.allclose(offset, bias, atol=1e-3)
    assert explained == pytest.approx(1, abs=1e-5)


def test_corpus_round_trip_join_and_split(tmp_path):
    made = corpus(40)
    made.save(tmp_path / "c.npz")
    read = Corpus.load(tmp_path / "c.npz")
    assert (read.token_ids == made.token_ids).all() and read.answer_tokens == made.answer_tokens
    both = Corpus.join([made, read])
    assert len(both) == 40  # a prompt that occurred before is left out
    assert [made.held_out(i) for i in range(40)] == [read.held_out(i) for i in range(40)]


def test_a_file_that_is_no_corpus_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"nothing")
    with pytest.raises(SpecVizError, match="no corpus"):
        Corpus.load(tmp_path / "x.npz")
    with pytest.raises(SpecVizError, match="no shards"):
        features.TapStore(tmp_path / "empty")


def test_distinct4():
    assert distinct4([1, 2, 3]) == 1.0
    assert distinct4([1, 2] * 10) == pytest.approx(2 / 17)


def test_stored_taps_are_the_layers_outputs(store):
    batch = store.batch([3])
    n = int(batch.lengths[0])
    out = module()(batch.tokens[:, :n], output_hidden_states=True)
    layers = features.stored_layers(LAYERS)
    assert layers == (0, 1, 2, 3)
    for place, layer in enumerate(layers[:-1]):
        assert torch.allclose(batch.taps[0, :n, place].float(), out.hidden_states[layer + 1][0], atol=2e-3)
    parts = target_parts.TargetParts.of(module())
    logits = parts.states(batch.taps[0, :n, -1]) @ parts.head.T
    assert torch.allclose(logits, out.logits[0], atol=1e-2)


def test_labels_follow_their_anchor_and_p_belongs_to_them(store):
    batch = store.batch([0, 1])
    blocks = block.blocks_at(batch, torch.tensor([[7, 9], [8, 8]]), 3)
    assert blocks.labels[0, 1].tolist() == batch.tokens[0, 10:13].tolist()
    assert blocks.previous[0, 1].tolist() == batch.tokens[0, 9:12].tolist()
    assert blocks.before[0, 1].tolist() == batch.tokens[0, 8:11].tolist()
    parts = target_parts.TargetParts.of(module())
    p = torch.softmax(block.block_targets(parts, batch, blocks) @ parts.head[DRAFT_IDS].T, -1)
    exact = module()(batch.tokens[:1]).logits[0, 9, DRAFT_IDS].softmax(-1)  # after the anchor: the first slot's p
    assert torch.allclose(p.view(2, 2, 3, -1)[0, 1, 0], exact, atol=5e-3)  # (the head is run in bfloat16)


def test_slots_past_the_end_of_a_conversation_are_not_trained_on(store):
    batch = store.batch([0])
    end = int(batch.lengths[0])
    blocks = block.blocks_at(batch, torch.tensor([[end - 3]]), 4)
    assert blocks.valid.tolist() == [[[True, True, False, False]]]


def test_a_block_sees_nothing_from_its_anchor_on_and_no_other_block(store):
    net, embedding = block_net(), module().get_input_embeddings().weight
    batch = store.batch([0])
    blocks = block.blocks_at(batch, torch.tensor([[7, 9]]), 4)
    with torch.no_grad():
        before = block.block_states(net, embedding, batch, blocks, (0, 2))
        batch.taps[:, 7:] = 9.0  # of the first anchor and all after it
        after = block.block_states(net, embedding, batch, blocks, (0, 2))
        batch.tokens[0, 8:] = 1
        moved = block.block_states(net, embedding, batch, block.blocks_at(batch, torch.tensor([[7, 12]]), 4), (0, 2))
    assert torch.allclose(before[0, 0], after[0, 0], atol=1e-5) and not torch.allclose(before[0, 1], after[0, 1])
    assert torch.allclose(before[0, 0], moved[0, 0], atol=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss_and_resumes_from_its_checkpoint(store, tmp_path):
    parts, net = target_parts.TargetParts.of(module()), block_net()
    head = parts.head[DRAFT_IDS]
    recipe = block.BlockRecipe(rows=4, learning_rate=3e-3)
    seen = []

    def step_loss(batch, step, generator):
        blocks = block.draw_blocks(batch, 4, 3, generator)
        loss, measures = block.block_loss(net, parts, head, batch, blocks, (0, 2), recipe)
        seen.append(float(loss.detach()))
        return loss, measures

    def run(steps):
        return loop.train(
            net,
            store,
            lambda: list(range(12)),
            step_loss,
            recipe,
            share_done=lambda at: at.step / steps,
            checkpoint=tmp_path / "c.pt",
        )

    assert run(12).step == 12
    resumed = run(40)
    assert resumed.step == 40 and len(seen) == 40
    assert np.mean(seen[-5:]) < np.mean(seen[:5])
    assert set(resumed.alphas) <= {"parallel", "hybrid"}


def test_an_interrupted_run_sees_the_very_batches_that_an_uninterrupted_one_sees():
    known = list(range(100, 113))

    def run(at, count):
        chosen = loop.batches(at, lambda: known, lambda i: i * 7 % 11, 4, seed=3)
        return [list(next(chosen)) for _ in range(count)]

    whole = run(loop.Progress(), 8)
    first = loop.Progress()
    parts = run(first, 2) + run(loop.Progress(epoch=first.epoch, batch=first.batch, epoch_size=first.epoch_size), 6)
    assert parts == whole
    for epoch in range(2):  # each epoch goes over 12 of the 13 once, in an order of its own
        assert len({i for batch in whole[3 * epoch : 3 * epoch + 3] for i in batch}) == 12
    assert whole[:3] != whole[3:6]


def test_conversations_of_similar_length_share_a_batch():
    lengths = np.random.default_rng(0).integers(10, 500, 640).tolist()
    found = loop.epoch_batches(lengths, 8, 0, 0)
    assert sorted(i for batch in found for i in batch) == list(range(640))
    padded = sum(8 * max(lengths[i] for i in batch) for batch in found)
    assert padded < 1.1 * sum(lengths), "at most a tenth of the batches is padding"


def test_a_corpus_that_grew_is_used_from_the_next_epoch_on_and_one_that_shrank_is_refused():
    known = list(range(8))
    at = loop.Progress()
    chosen = loop.batches(at, lambda: known, lambda i: 5, 4, seed=0)
    next(chosen)
    known += range(8, 16)
    assert max(next(chosen)) < 8 and {i for _ in range(4) for i in next(chosen)} == set(range(16))
    with pytest.raises(SpecVizError, match="16 conversations, the corpus has 8"):
        next(loop.batches(loop.Progress(batch=1, epoch_size=16), lambda: known[:8], lambda i: 5, 4, seed=0))


def test_a_damaged_checkpoint_is_refused_in_a_sentence(store, tmp_path):
    (tmp_path / "c.pt").write_bytes(b"no checkpoint")
    with pytest.raises(SpecVizError, match="cannot be continued"):
        loop.train(
            block_net(),
            store,
            lambda: [0],
            None,
            block.BlockRecipe(),
            share_done=lambda at: 1.0,
            checkpoint=tmp_path / "c.pt",
        )


def test_closed_form_starts_explain_the_target_and_lower_the_loss(store):
    parts, net = target_parts.TargetParts.of(module()), block_net()
    batches = [store.batch(list(range(i, i + 4))) for i in (0, 4, 8)]
    closed_form.start_from_layers(net, module(), (2, 3))
    closed_form.start_fusion(net, 2)
    assert 0 < closed_form.start_inputs(net, parts.embedding, iter(batches), (0, 2), 2) <= 1
    assert 0 < closed_form.start_serial(net, parts, iter(batches), (0, 2)) <= 1


def test_copied_layers_with_narrower_feed_forward_keep_the_largest_neurons():
    net = BlockNet(
        BlockConfig(
            hidden_size=SIZE, vocab_size=VOCAB, layers=1, heads=4, kv_heads=2, head_dim=8, ffn=16, taps=TAPS, block=8
        ),
        DRAFT_IDS,
    )
    closed_form.start_from_layers(net, module(), (1,))
    kept = {tuple(r) for r in module().model.layers[1].mlp.gate_proj.weight.tolist()}
    assert all(tuple(r) in kept for r in net.layers[0].gate_proj.weight.tolist())


def test_the_training_form_of_the_small_causal_model_is_a_stock_llama(store):
    net = causal.CausalNet(
        BlockConfig(
            hidden_size=SIZE,
            vocab_size=VOCAB,
            layers=LAYERS,
            heads=4,
            kv_heads=2,
            head_dim=8,
            ffn=48,
            taps=(),
            block=16,
        ),
        DRAFT_IDS,
    )
    target = module()
    closed_form.start_from_layers(net, target, range(LAYERS))
    tokens = torch.tensor([[3, 9, 4, 30, 2]])
    with torch.no_grad():
        mine = net(target.get_input_embeddings().weight[tokens]) @ target.get_output_embeddings().weight.T
    assert torch.allclose(mine, target(tokens).logits, atol=1e-4)


def test_the_bridge_makes_a_cut_model_better(store):
    target = module()
    parts = target_parts.TargetParts.of(target)
    head = parts.head[DRAFT_IDS]
    recipe = causal.CausalRecipe()
    net = causal.CausalNet(
        BlockConfig(
            hidden_size=SIZE, vocab_size=VOCAB, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, taps=(), block=16
        ),
        DRAFT_IDS,
    )
    closed_form.start_from_layers(net, target, (0, 3))
    batches = [store.batch(list(range(i, i + 4))) for i in (0, 4, 8)]
    with torch.no_grad():
        before = causal.causal_loss(net, parts, head, batches[0], recipe, skip=1)[0]
        explained = closed_form.start_bridge(net, parts, lambda: iter(batches), 2, skip=1)
        after = causal.causal_loss(net, parts, head, batches[0], recipe, skip=1)[0]
    assert 0 < explained <= 1 and after < before + 0.05


def test_refitting_the_last_layer_explains_more_of_the_targets_state(store):
    parts, target = target_parts.TargetParts.of(module()), module()
    net = causal.CausalNet(
        BlockConfig(
            hidden_size=SIZE, vocab_size=VOCAB, layers=2, heads=4, kv_heads=2, head_dim=8, ffn=48, taps=(), block=16
        ),
        DRAFT_IDS,
    )
    closed_form.start_from_layers(net, target, (0, 3))
    batches = [store.batch(list(range(i, i + 4))) for i in (0, 4, 8)]
    before, _ = closed_form.refit_last_layer(net, closed_form.causal_examples(net, parts.embedding, iter(batches), 1))
    after, _ = closed_form.refit_last_layer(net, closed_form.causal_examples(net, parts.embedding, iter(batches), 1))
    assert after > before
    net = block_net()
    examples = closed_form.block_examples(net, parts.embedding, iter(batches), (0, 2))
    closed_form.refit_last_layer(net, examples)


def test_the_label_of_a_confidence_counts_what_p_has_outside_the_draft_vocabulary(monkeypatch):
    """Against a plain computation in float64; a target that lies wholly outside is never accepted."""
    monkeypatch.setattr(confidence, "training_dtype", lambda: torch.float32)
    torch.manual_seed(0)
    head, states, targets = torch.randn(VOCAB, SIZE), torch.randn(130, SIZE), torch.randn(130, SIZE)
    chance, log_peak = confidence.acceptance(states, targets, head, DRAFT_IDS)
    p = torch.softmax((targets @ head.T).double(), -1)
    q = torch.softmax((states @ head[DRAFT_IDS].T).double(), -1)
    exact = torch.minimum(p[:, DRAFT_IDS], q).sum(-1)
    assert (chance - exact).abs().max() < 1e-4 and (log_peak.exp() - q.amax(-1)).abs().max() < 1e-4
    outside = 100 * head[1:2] / head[1:2].norm()  # token 1 is no draft
    assert confidence.acceptance(states[:1], outside, head, DRAFT_IDS)[0] < 1e-3
