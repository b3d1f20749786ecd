"""The packed, ragged forward equals one plain Hugging Face forward per row."""

import pytest
import torch
import transformers

from specviz.models.causal import CausalModel

SMALL = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
LLAMA = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 128}
CONFIGS = {
    "llama": transformers.LlamaConfig(**LLAMA),
    "mistral with a window of 16": transformers.MistralConfig(**LLAMA, sliding_window=16),
    "qwen2": transformers.Qwen2Config(**LLAMA),
    "qwen3": transformers.Qwen3Config(**LLAMA),
    "gpt2": transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=4, n_positions=128),
    "gpt_neox": transformers.GPTNeoXConfig(**SMALL, intermediate_size=48, max_position_embeddings=128),
    "gemma3 with mixed windows": transformers.Gemma3TextConfig(
        **LLAMA,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=8,
    ),
}


def random_model(config) -> torch.nn.Module:
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module.eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_packed_ragged_forward_equals_plain_forward_per_row(name):
    """Rows of 40, 23 and 31 tokens fed in uneven pieces, some rows absent from a pass, junk appended and
    rolled back each time: logits and taps are those of a plain forward over each whole row."""
    module = random_model(CONFIGS[name])
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(0, 61, (n,), generator=generator).tolist() for n in (40, 23, 31)]
    taps = (0, 2)
    plain = []
    with torch.inference_mode():
        for text in texts:
            out = module(torch.tensor([text]), output_hidden_states=True)
            # the last entry of hidden_states is final-normed, so only the first tap can be compared with it
            plain.append((out.logits[0], out.hidden_states[1][0]))

    model = CausalModel(module)
    cache = model.new_cache()
    for row, text in enumerate(texts):
        cache.add(row, len(text) + 2)
    fed = [0, 0, 0]
    pieces = [[7, 5, 1], [6, 0, 9], [1, 1, 1], [13, 6, 2], [5, 5, 5], [8, 6, 13]]
    for piece in pieces:
        rows = [r for r in range(3) if piece[r]]
        tokens = [[*texts[r][fed[r] : fed[r] + piece[r]], 3, 4] for r in rows]
        out = model.forward(cache, rows, tokens, taps=taps)
        for row, logits, tapped in zip(rows, out.logits, out.taps):
            n = piece[row]
            torch.testing.assert_close(logits[:n], plain[row][0][fed[row] : fed[row] + n], atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(tapped[:n, :32], plain[row][1][fed[row] : fed[row] + n], atol=2e-5, rtol=2e-5)
            fed[row] += n
            cache.truncate(row, fed[row])
    assert fed == [len(t) for t in texts]


def test_logits_can_be_left_out_or_limited():
    """A prefill returns no logits; asking for the last n of each row returns exactly those."""
    model = CausalModel(random_model(CONFIGS["llama"]))
    cache = model.new_cache()
    for row in (5, 9):
        cache.add(row, 20)
    assert [t.shape[0] for t in model.forward(cache, [5, 9], [[1, 2, 3], [4]], logits=False).logits] == [0, 0]
    for row, length in ((5, 0), (9, 0)):
        cache.truncate(row, length)
    whole = model.forward(cache, [5, 9], [[1, 2, 3], [4, 5]]).logits
    cache.truncate(5, 0)
    cache.truncate(9, 0)
    some = model.forward(cache, [5, 9], [[1, 2, 3], [4, 5]], logits=[1, 2]).logits
    torch.testing.assert_close(some[0], whole[0][-1:])
    torch.testing.assert_close(some[1], whole[1])


def test_a_dropped_rows_slot_is_reused_without_leaking():
    """A new row in a freed slot, and a row that grows the store, give what they give alone."""
    model = CausalModel(random_model(CONFIGS["llama"]))
    alone = model.new_cache()
    alone.add(0, 30)
    expected = model.forward(alone, [0], [[7, 8, 9]]).logits[0]
    cache = model.new_cache()
    cache.add(0, 10)
    cache.add(1, 10)
    model.forward(cache, [0, 1], [[1, 2, 3, 4, 5, 6], [1, 1]])
    cache.drop(0)
    cache.add(2, 30)
    torch.testing.assert_close(model.forward(cache, [2], [[7, 8, 9]]).logits[0], expected, atol=1e-6, rtol=1e-6)
    assert cache.lengths == {1: 2, 2: 3}
    cache.truncate(1, 0)
    torch.testing.assert_close(model.forward(cache, [1], [[7, 8, 9]]).logits[0], expected, atol=1e-6, rtol=1e-6)


def test_cache_refuses_what_would_corrupt_it():
    """Outgrowing a row, cutting to more than there is and adding a row twice are errors, not corruption."""
    model = CausalModel(random_model(CONFIGS["llama"]))
    cache = model.new_cache()
    cache.add(0, 3)
    with pytest.raises(ValueError, match="outgrow"):
        model.forward(cache, [0], [[1, 2, 3, 4]])
    with pytest.raises(ValueError, match="already"):
        cache.add(0, 3)
    with pytest.raises(ValueError, match="cannot be cut"):
        cache.truncate(0, 9)


def test_the_lean_forward_is_the_stock_forward():
    """Same logits and taps as the module's own forward, on the same cache; every other model runs as it is."""
    model = CausalModel(random_model(CONFIGS["llama"]))
    assert model._fused is not None
    tokens = [[5, 6, 7, 8, 9], [1, 2, 3]]
    outs = []
    for fused in (model._fused, None):
        model._fused = fused
        cache = model.new_cache()
        cache.add(0, 9)
        cache.add(1, 9)
        outs.append(model.forward(cache, [0, 1], tokens, taps=(1, 0)))
    for fused, stock in zip(outs[0].logits + outs[0].taps, outs[1].logits + outs[1].taps):
        torch.testing.assert_close(fused, stock, atol=1e-5, rtol=1e-5)
    for name in ("qwen2", "gpt2", "gemma3 with mixed windows"):
        assert CausalModel(random_model(CONFIGS[name]))._fused is None


def test_merged_weights_are_held_once_and_shared():
    """The module's own matrices become views of the merged ones; a second model of the same layers reuses them."""
    module = random_model(CONFIGS["llama"])
    first, second = CausalModel(module), CausalModel(module)
    block = first._fused.layers._layers[0]
    assert block._qkv.weight.data_ptr() == module.model.layers[0].self_attn.q_proj.weight.data_ptr()
    assert block._qkv.weight.data_ptr() == second._fused.layers._layers[0]._qkv.weight.data_ptr()
