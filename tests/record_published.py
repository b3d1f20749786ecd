"""Records what the authors' own packages compute, for tests/unit/test_published.py: run with an empty folder's name.

Needs `pip install dflash==0.1.0 speculators==0.9.0`, which the tests do not. Each case is a random checkpoint of a few
kB in a published layout, written by the package itself or in its names, and `expected.safetensors`: the inputs (the
target's embedding and head, taps, anchors) and the hidden states and logits that the package's own modules give.
"""

import json
import sys
from pathlib import Path

import torch
from dflash import DFlashDraftModel
from dflash.model import _crop_to, _make_cache
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dspark.config import DSparkSpeculatorConfig
from speculators.models.dspark.core import DSparkDraftModel
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config

VOCAB, SIZE, LAYERS, BLOCK, MASK = 24, 16, 2, 6, 23
CONTEXT, MORE = 7, 3
"""Context tokens of the first round, and how many the second has more."""
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": SIZE,
    "intermediate_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}


def fill(module, seed):
    """Random weights that float16 holds exactly, gains around 1."""
    chance = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        noise = 0.3 * torch.randn(p.shape, generator=chance)
        p.data = (1 + noise if p.ndim == 1 and "bias" not in name else noise).half().float()


def inputs(seed):
    chance = torch.Generator().manual_seed(seed)
    draw = {"embedding": (VOCAB, SIZE), "head": (VOCAB, SIZE), "taps": (CONTEXT + MORE, 2 * SIZE)}
    return {name: torch.randn(shape, generator=chance).half().float() for name, shape in draw.items()}


def write(folder, config, weights, expected):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file({k: v.half() if v.is_floating_point() else v for k, v in weights.items()}, folder / "model.safetensors")
    save_file({k: v.contiguous() for k, v in expected.items()}, folder / "expected.safetensors")


@torch.inference_mode()
def dflash(folder, seed, **more):
    config = Qwen3Config(
        **SHAPE,
        block_size=BLOCK,
        num_target_layers=6,
        **more,
        dflash_config={"mask_token_id": MASK, "target_layer_ids": [1, 3]},
    )
    model = DFlashDraftModel(config).eval()
    fill(model, seed)
    given = inputs(seed + 1)
    anchors = [5, 11]
    cache, out, start = _make_cache(config), {}, 0
    for i, (end, anchor) in enumerate(zip((CONTEXT, CONTEXT + MORE), anchors)):
        ids = torch.full((1, BLOCK), MASK)
        ids[0, 0] = anchor
        hidden = model(
            target_hidden=given["taps"][None, start:end],
            noise_embedding=given["embedding"][ids],
            position_ids=torch.arange(start, end + BLOCK)[None],
            past_key_values=cache,
            use_cache=True,
        )
        _crop_to(cache, end)
        start = end
        head = torch.nn.Linear(SIZE, VOCAB, bias=False)
        head.weight.data = given["head"]
        out[f"hidden{i}"], out[f"logits{i}"] = hidden[0], model.compute_logits(hidden, head)[0]
    model.save_pretrained(folder / "package")
    about = json.loads((folder / "package" / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "package" / "model.safetensors")
    write(folder / "case", about, weights, given | out | {"anchors": torch.tensor(anchors)})


@torch.inference_mode()
def dspark(folder, seed, kind, draft_vocab):
    layers = Qwen3Config(
        **SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="eager"
    )
    config = DSparkSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=draft_vocab,
        block_size=BLOCK,
        mask_token_id=MASK,
        aux_hidden_state_layer_ids=[2, 4],
        markov_rank=4,
        markov_head_type=kind,
        speculators_config=SpeculatorsConfig(
            algorithm="dspark",
            default_proposal_method="greedy",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK)],
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    model = DSparkDraftModel(config).eval()
    fill(model, seed)
    given = inputs(seed + 1)
    model.embed_tokens.weight.data = given["embedding"]
    chosen = (
        torch.arange(VOCAB)
        if draft_vocab == VOCAB
        else torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:draft_vocab].sort().values
    )
    if draft_vocab < VOCAB:
        model.load_vocab_mappings(
            torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, chosen, True), chosen - torch.arange(draft_vocab)
        )
    model.lm_head.weight.data = given["head"][chosen]
    text = torch.randint(0, VOCAB, (1, CONTEXT + MORE + BLOCK + 4), generator=torch.Generator().manual_seed(seed + 2))
    taps = torch.zeros(1, text.shape[1], 2 * SIZE)
    taps[0, : CONTEXT + MORE] = given["taps"]
    out, anchors = {}, []
    for i, at in enumerate((CONTEXT, CONTEXT + MORE)):
        only = torch.zeros(text.shape)
        only[0, at] = 1
        hidden, logits, *_ = model._backbone_forward(
            taps,
            text,
            only,
            torch.zeros(1, text.shape[1], SIZE),
            torch.zeros(text.shape, dtype=torch.long),
            max_anchors=1,
        )
        hidden, logits = hidden.view(1, BLOCK, SIZE), logits.view(BLOCK, draft_vocab)
        before = [int(text[0, at])]
        for k in range(BLOCK):
            bias = model.markov_head.block_bias(prev_token_ids=torch.tensor([before]), hidden_states=hidden[:, : k + 1])
            logits[k] += bias[0, -1]
            before.append(int(chosen[logits[k].argmax()]))
        features = torch.cat([hidden, model.markov_head.prev_embeddings(torch.tensor([before[:-1]]))], -1)
        anchors.append(before[0])
        out |= {
            f"hidden{i}": hidden[0],
            f"logits{i}": logits,
            f"tokens{i}": torch.tensor(before[1:]),
            f"confidence{i}": model.confidence_head(features)[0].sigmoid(),
        }
    weights = {
        k: v for k, v in model.state_dict().items() if not k.startswith("verifier_") and k != "embed_tokens.weight"
    }
    if draft_vocab == VOCAB:
        weights.pop("lm_head.weight")
    about = json.loads(config.to_json_string()) if hasattr(config, "to_json_string") else config.model_dump()
    write(folder / "case", about, weights, given | out | {"anchors": torch.tensor(anchors), "draft_ids": chosen})


if __name__ == "__main__":
    torch.set_num_threads(1)
    to = Path(sys.argv[1])
    for name, make in {
        "dflash": lambda f: dflash(f, 10, rope_theta=1e6),
        "dflash_sliding": lambda f: dflash(
            f,
            20,
            rope_parameters=YARN,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=5,
            use_sliding_window=True,
            final_logit_softcapping=3.0,
            output_multiplier=0.5,
        ),
        "dspark_vanilla": lambda f: dspark(f, 30, "vanilla", VOCAB),
        "dspark_gated": lambda f: dspark(f, 40, "gated", 9),
        "dspark_rnn": lambda f: dspark(f, 50, "rnn", 9),
    }.items():
        make(to / ".made" / name)
        (to / ".made" / name / "case").rename(to / name)
