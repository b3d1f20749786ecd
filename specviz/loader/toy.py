"""The toy pair: two tiny trained models over six tokens, so that all of p, q and the leftover fits on the screen.

Both models are real Llama models, trained (by `make`, in seconds) on sentences such as "the cat sees the
dog and the dog sees the cat." The target has two layers and sees the text; the drafter is smaller and was
trained for less long, so the two differ enough to be interesting. Shipped in assets/toy.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch

from specviz.paths import ASSETS

FOLDER = ASSETS / "toy"
WORDS = ("Ġthe", "Ġcat", "Ġdog", "Ġsees", "Ġand", ".")
"""Ġ stands for the leading space, as in every byte-level tokenizer."""


def sentence(chance: random.Random) -> list[int]:
    """Token ids of one sentence of the toy language."""
    the, cat, dog, sees, and_, stop = range(6)
    text = []
    while True:
        subject = cat if chance.random() < 0.6 else dog
        other = (dog if subject == cat else cat) if chance.random() < 0.7 else subject
        text += [the, subject, sees, the, other]
        if chance.random() < 0.55:
            return [*text, stop]
        text.append(and_)


def make(folder: Path = FOLDER, seed: int = 0) -> dict[str, float]:
    """Train both models and write them with their tokenizer. Returns the last loss of each."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    losses = {}
    for name, hidden, layers, steps in (("target", 24, 2, 600), ("draft", 8, 1, 150)):
        torch.manual_seed(seed)
        chance = random.Random(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(WORDS),
                hidden_size=hidden,
                intermediate_size=2 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=hidden // 2,
                max_position_embeddings=4352,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
        for _ in range(steps):
            batch = []
            for _ in range(32):
                text: list[int] = []
                while len(text) < 48:
                    text += sentence(chance)
                start = chance.randrange(8)  # texts start anywhere, so every token can be a first one
                batch.append(text[start : start + 40])
            ids = torch.tensor(batch)
            loss = model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.save_pretrained(folder / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / name)
        os.chmod(folder / name / "model.safetensors", 0o644)
        losses[name] = loss.item()
    return losses
