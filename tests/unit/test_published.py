"""Published drafters in the layouts of DFlash (z-lab) and DSpark (DeepSpec, speculators).

Proof against the authors' own code: `tests/unit/published/*` holds random checkpoints of a few kB with what the PyPI
packages `dflash` 0.1.0 and `speculators` 0.9.0 compute from them, two rounds each, recorded by
`tests/record_published.py` (random weights that float16 holds exactly; the package's own module, cache and masks).
Where `dflash` is installed it is also asked directly.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import write_dflash
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters import from_folder, published_config
from specviz.drafters.base import Request
from specviz.drafters.published import PublishedDrafter
from specviz.drafters.published_net import load_net
from specviz.engine.loop import decode
from specviz.engine.model_store import ModelStore
from specviz.engine.request import RunRequest
from specviz.engine.run import Run
from specviz.errors import FetchError, PairError
from specviz.models.causal import CausalModel
from specviz.trace.records import Settings

CASES = Path(__file__).parent / "published"
NAMES = sorted(p.name for p in CASES.iterdir())
CONTEXT, MORE = 7, 3


def target_of(embedding, head, layers=6):
    """A tiny target whose embedding and head are those of a recorded case."""
    torch.manual_seed(0)
    module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=embedding.shape[0],
            hidden_size=embedding.shape[1],
            intermediate_size=32,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    module.model.embed_tokens.weight.data, module.lm_head.weight.data = embedding.clone(), head.clone()
    return CausalModel(module)


def case(name):
    given = load_file(CASES / name / "expected.safetensors")
    return given, target_of(given["embedding"], given["head"])


def request(row, anchor, k, u=0.5):
    return Request(row, anchor, k, (u,) * k)


def two_rounds(drafter, given, k):
    """(block states, proposal) before and after a second commit, as in the recording."""
    drafter.start(0, [1] * (CONTEXT + 1), given["taps"][:CONTEXT], 64)
    for i in (0, 1):
        if i:
            drafter.commit(0, [2] * MORE, given["taps"][CONTEXT:])
        wish = [request(0, int(given["anchors"][i]), k)]
        yield drafter.hidden(wish)[0], drafter.propose(wish).on_host()


@pytest.mark.parametrize("name", NAMES)
def test_states_and_logits_equal_those_of_the_authors_package(name):
    """Block states, logits, drafts and confidences agree to float tolerance, in two rounds with a growing context."""
    given, target = case(name)
    net = load_net(CASES / name, target)
    drafter = PublishedDrafter(net, target, Settings(temperature=0.0))
    first = net.config.first_slot
    ids = given.get("draft_ids", torch.arange(24))
    worst = 0.0
    for i, (hidden, proposal) in enumerate(two_rounds(drafter, given, drafter.max_k)):
        expected = given[f"logits{i}"][first:]
        logits = proposal.draft_logits[0][:, ids]
        worst = max(worst, float((hidden - given[f"hidden{i}"]).abs().max()), float((logits - expected).abs().max()))
        assert proposal.tokens[0] == ids[expected.argmax(-1)].tolist()
        if f"tokens{i}" in given:
            assert proposal.tokens[0] == given[f"tokens{i}"].tolist()
            assert proposal.confidence[0] == pytest.approx(given[f"confidence{i}"].tolist(), abs=1e-5)
    assert worst < 2e-5, worst
    assert drafter.max_k == 6 - first


@pytest.mark.parametrize("name", ["dflash", "dflash_sliding"])
def test_the_installed_package_gives_the_same(name):
    """The same comparison against the package itself, at other anchors and another context, where it is installed."""
    package = pytest.importorskip("dflash")
    given, target = case(name)
    model = package.DFlashDraftModel.from_pretrained(CASES / name, dtype=torch.float32).eval()
    drafter = PublishedDrafter(load_net(CASES / name, target), target, Settings())
    drafter.start(0, [1] * 5, given["taps"][:4], 64)
    ids = torch.tensor([[8] + [23] * 5])
    with torch.inference_mode():
        theirs = model(
            target_hidden=given["taps"][None, :4],
            noise_embedding=given["embedding"][ids],
            position_ids=torch.arange(10)[None],
        )
    assert torch.allclose(drafter.hidden([request(0, 8, 3)])[0], theirs[0], atol=2e-5)


def test_deepspec_and_speculators_packagings_of_one_net_agree(tmp_path):
    """DeepSpec counts layers from the first's output, names its fields at the top level and repeats the target's
    embedding and head; the drafts are the same."""
    given, target = case("dspark_vanilla")
    theirs = json.loads((CASES / "dspark_vanilla" / "config.json").read_text())
    layers = {
        k: v
        for k, v in load_net(CASES / "dspark_vanilla", target).config.backbone.to_dict().items()
        if k != "architectures"
    }
    about = layers | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 6,
        "mask_token_id": 23,
        "target_layer_ids": [1, 3],
        "num_target_layers": 6,
        "num_anchors": 512,
        "markov_rank": 4,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(about))
    weights = load_file(CASES / "dspark_vanilla" / "model.safetensors")
    save_file(
        weights | {"embed_tokens.weight": given["embedding"].half(), "lm_head.weight": given["head"].half()},
        tmp_path / "model.safetensors",
    )
    assert theirs["aux_hidden_state_layer_ids"] == [2, 4]
    net = load_net(tmp_path, target)
    assert net.embedding.data_ptr() == target.embedding.data_ptr()  # the copy in the file was let go
    assert net.head.data_ptr() == target.head.data_ptr()
    proposals = [
        list(two_rounds(PublishedDrafter(load_net(f, target), target, Settings(temperature=1.0)), given, 6))
        for f in (tmp_path, CASES / "dspark_vanilla")
    ]
    for (_, one), (_, other) in zip(*proposals):
        assert one.tokens == other.tokens
        assert torch.equal(one.draft_probs[0], other.draft_probs[0]) and one.confidence == other.confidence


def test_a_head_of_its_own_is_used(tmp_path):
    """Untied or retrained: where the file's head differs from the target's, the file's counts."""
    given, target = case("dspark_vanilla")
    shutil.copytree(CASES / "dspark_vanilla", tmp_path / "own")
    weights = load_file(tmp_path / "own" / "model.safetensors")
    save_file(weights | {"lm_head.weight": 2 * given["head"].half()}, tmp_path / "own" / "model.safetensors")
    assert torch.equal(load_net(tmp_path / "own", target).head, 2 * given["head"])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_is_lossless_and_rows_are_apart(name, temperature):
    """Through the decoding loop: greedy texts are those of plain decoding, and in a batch of three every row says what
    it says alone."""
    _, target = case(name)
    make = from_folder.opener(str(CASES / name), target)
    settings = Settings(k=6, temperature=temperature, max_new_tokens=24)
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]

    def texts(drafter, prompts, seeds):
        said = [[] for _ in prompts]
        for round_ in decode(target, drafter, prompts, settings, seeds=seeds, record=False):
            for v in round_.rows:
                said[v.row] += v.emitted
        return said

    together = texts(make(settings), prompts, [0, 1, 2])
    assert together == [texts(make(settings), [p], [i])[0] for i, p in enumerate(prompts)]
    if temperature == 0:
        assert together == texts(None, prompts, [0, 1, 2])


def test_k_only_cuts_and_proposing_leaves_no_trace():
    given, target = case("dspark_rnn")
    drafter = PublishedDrafter(load_net(CASES / "dspark_rnn", target), target, Settings(temperature=1.0))
    drafter.start(0, [1] * 8, given["taps"][:7], 64)
    long, short, again = (drafter.propose([request(0, 5, k)]).on_host() for k in (6, 2, 6))
    assert long.tokens == again.tokens and short.tokens[0] == long.tokens[0][:2]
    assert len(drafter.propose([request(0, 5, 16)]).on_host().tokens[0]) == drafter.max_k == 6
    assert long.draft_tokens == 6 and long.cost.flops > short.cost.flops > 0


def test_a_run_takes_a_folder_and_reads_it_anew_when_it_has_changed(tmp_path, toy_target):
    """From `RunRequest` to `Trace`; weights that were written anew under the same path are not taken from memory."""
    folder = write_dflash(tmp_path / "drafter", toy_target)
    store = ModelStore()

    def run(drafter, k):
        done = Run(
            RunRequest("toy", str(drafter), "the cat", Settings(k=k, max_new_tokens=16), raw=True), store
        ).execute()
        assert done.status == "complete", done.error
        return done.trace

    trace = run(folder, 7)
    assert trace.texts == run("ngram", 0).texts and trace.draft_parallel
    assert "a published DFlash drafter (DFlash layout)" in trace.drafter_label
    first = [v.positions[0].draft_token for r in trace.rounds for v in r.rows]
    weights = load_file(folder / "model.safetensors")
    save_file({k: -v for k, v in weights.items()}, folder / "model.safetensors")
    assert [v.positions[0].draft_token for r in run(folder, 7).rounds for v in r.rows] != first


# ------------------------------------------------------------------------------------------- what is refused


def changed(tmp_path, name="dflash", drop=(), **fields):
    """A copy of a recorded case whose config.json is changed."""
    folder = tmp_path / "changed"
    shutil.copytree(CASES / name, folder)
    about = json.loads((folder / "config.json").read_text())
    about |= fields
    for field in drop:
        about.pop(field, None)
    (folder / "config.json").write_text(json.dumps(about))
    return folder


CONFIG_FAULTS = [
    ({"drop": ["hidden_size"]}, "lacks the field hidden_size"),
    ({"drop": ["rms_norm_eps"]}, "lacks the field rms_norm_eps"),
    ({"drop": ["rope_parameters"]}, "lacks the field rope_theta"),
    ({"drop": ["block_size"]}, "lacks the field block_size"),
    ({"dflash_config": {"target_layer_ids": [1, 3]}}, "lacks the field mask_token_id"),
    ({"dflash_config": {"mask_token_id": 23}, "drop": ["num_target_layers"]}, "lacks the field target_layer_ids"),
    ({"dflash_config": {"mask_token_id": 23, "target_layer_ids": [-1, 3]}}, "embedding or a negative layer"),
    ({"dflash_config": {"mask_token_id": -4, "target_layer_ids": [1, 3]}}, "mask_token_id is -4"),
    ({"block_size": "six"}, "block_size is six"),
    ({"num_attention_heads": True}, "num_attention_heads is True"),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "dynamic"),
    ({"rope_is_neox_style": False}, "interleaved"),
    ({"markov_rank": 4}, "labelled DFlash but brings a DSpark head"),
    ({"architectures": ["DFlash2DraftModel"]}, "DFlash 2"),
    ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel is not known"),
    ({"architectures": ["LlamaForCausalLM"], "dflash_config": {}}, "LlamaForCausalLM is not known"),
    ({"speculators_model_type": "eagle3"}, "eagle3"),
    ({"speculators_model_type": "dspark"}, "lacks the field transformer_layer_config"),
    ({"layer_types": ["linear_attention", "full_attention"]}, "do not make a model|not known"),
]


@pytest.mark.parametrize(("change", "words"), CONFIG_FAULTS, ids=[w for _, w in CONFIG_FAULTS])
def test_a_config_that_is_not_understood_is_refused(tmp_path, change, words):
    _, target = case("dflash")
    with pytest.raises(FetchError, match=words) as refused:
        load_net(changed(tmp_path, **change), target)
    assert "\n" not in str(refused.value)


def test_layers_that_are_not_listed_follow_from_the_rule(tmp_path):
    """z-lab: evenly from the second layer to the third but last; of 36 layers five are 1, 9, 17, 25, 33."""
    assert published_config._spread(36, 5) == (1, 9, 17, 25, 33)
    folder = changed(tmp_path, dflash_config={"mask_token_id": 23})
    assert published_config.read(folder).taps == (1, 3)


def test_another_target_is_refused(tmp_path):
    given, target = case("dflash")
    net = CASES / "dflash"
    for other, words in [
        (target_of(torch.randn(24, 32), torch.randn(24, 32)), "width 16 and 24 tokens; this target has 32 and 24"),
        (target_of(torch.randn(25, 16), torch.randn(25, 16)), "width 16 and 24 tokens; this target has 16 and 25"),
        (target_of(given["embedding"], given["head"], layers=7), "a target of 6 layers; this target has 7"),
    ]:
        with pytest.raises(PairError, match=words):
            load_net(net, other)
    with pytest.raises(PairError, match="reads target layer 5"):
        load_net(changed(tmp_path, dflash_config={"mask_token_id": 23, "target_layer_ids": [1, 5]}), target)


@pytest.mark.parametrize(("mask", "words"), [(24, "uses token 24 as its mask")])
def test_a_mask_outside_the_vocabulary_is_refused(tmp_path, mask, words):
    _, target = case("dflash")
    with pytest.raises(PairError, match=words):
        load_net(changed(tmp_path, dflash_config={"mask_token_id": mask, "target_layer_ids": [1, 3]}), target)


def rewritten(tmp_path, change, name="dflash"):
    folder = changed(tmp_path, name)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("layers.1.self_attn.q_norm.weight"), "lacks layers.1.self_attn.q_norm.weight"),
        (lambda w: w.update(extra=torch.zeros(2)), "whose use is not known: extra"),
        (lambda w: w.update({"fc.weight": torch.zeros(16, 48)}), "fc.weight has the shape 16 x 48 where 16 x 32"),
        (lambda w: w.update({"fc.weight": torch.zeros(16, 32, dtype=torch.int8)}), "quantised"),
    ],
)
def test_missing_unknown_and_misshapen_weights_are_named(tmp_path, change, words):
    _, target = case("dflash")
    with pytest.raises(FetchError, match=words):
        load_net(rewritten(tmp_path, change), target)


def test_a_vocabulary_table_that_points_nowhere_is_refused(tmp_path):
    _, target = case("dspark_gated")
    with pytest.raises(FetchError, match="d2t"):
        load_net(rewritten(tmp_path, lambda w: w.update(d2t=w["d2t"] + 20), "dspark_gated"), target)


def test_a_truncated_file_is_refused(tmp_path):
    _, target = case("dflash")
    folder = changed(tmp_path)
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(FetchError, match="bytes where its header promises"):
        load_net(folder, target)
    (folder / "model.safetensors").unlink()
    (folder / "expected.safetensors").unlink()
    with pytest.raises(FetchError, match="no safetensors file"):
        load_net(folder, target)


def test_folders_that_hold_no_drafter_are_refused(tmp_path):
    _, target = case("dflash")
    for text, words in [
        (None, "no config.json"),
        ("{", "cannot be read"),
        ('{"model_type": "llama"}', "names neither"),
        ("[1]", "names neither"),
    ]:
        if text is not None:
            (tmp_path / "config.json").write_text(text)
        with pytest.raises(FetchError, match=words):
            from_folder.opener(str(tmp_path), target)
