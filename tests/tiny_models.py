"""Tiny models and tokenizers made on the spot, in milliseconds, for tests that need real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def byte_level_tokenizer(words: tuple[str, ...] = ("the", "cat"), eos: str = "<|end|>"):
    """A byte-level tokenizer: the 256 bytes, `words` with their merges, and an end token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(eos, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos)


def tiny_model(vocabulary: int = 300, tied: bool = True):
    """A random Llama of one layer, small enough to make in milliseconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    ).eval()


def write_tiny_gguf(path: Path, more: Callable | None = None, model=None) -> None:
    """A real GGUF file of a tiny Llama (or `model`, of its sizes) with a byte-level tokenizer, its weights in fp32.
    more(writer) adds to it."""
    import gguf
    import numpy

    tokenizer, model = byte_level_tokenizer(), model or tiny_model()
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    names = {i: text for text, i in tokenizer.get_vocab().items()}
    tokens = [names.get(i, f"<unused{i}>") for i in range(config.vocab_size)]
    special = tokenizer.eos_token_id
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i == special or i not in names else 1 for i in range(len(tokens))])
    writer.add_token_merges(["t h", "th e", "c a", "ca t"])
    writer.add_eos_token_id(special)
    writer.add_bos_token_id(special)
    renamed = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
    }
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:  # GGUF pairs neighbouring rows for rotary positions, transformers pairs the two halves of a head
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        for theirs, ours in renamed.items():
            name = name.replace(theirs, ours)
        writer.add_tensor(name, tensor.numpy().astype(numpy.float32))
    if more is not None:
        more(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_dflash(folder: Path, target) -> Path:
    """A random drafter in the published DFlash layout for a target (a CausalModel): one layer, block of 8, one tap."""
    import json

    import torch
    from safetensors.torch import save_file

    from specviz.drafters import published_config, published_net

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["DFlashDraftModel"],
                "model_type": "qwen3",
                "hidden_size": target.hidden_size,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "vocab_size": target.vocab_size,
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "block_size": 8,
                "num_target_layers": target.layers,
                "dflash_config": {"mask_token_id": 0, "target_layer_ids": [0]},
            }
        ),
        encoding="utf-8",
    )
    torch.manual_seed(0)
    net = published_net.PublishedNet(published_config.read(folder))
    save_file(net.state_dict(), folder / "model.safetensors")
    return folder
