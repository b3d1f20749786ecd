"""A block drafter's round in one call of kernels.c equals FusedBlock's steps, and each row is independent."""

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters import block_weights
from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.drafters.fused_block import FusedBlock
from specviz.drafters.slots import BlockInputs
from specviz.kernels import binding
from specviz.models.causal import CausalModel

pytestmark = pytest.mark.skipif(
    bool(binding.missing_requirement()), reason=f"the kernels need {binding.missing_requirement()}"
)

SIZE, VOCAB, TAPS = 128, 320, (0, 1)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(dtype, monkeypatch, kv_heads=1):
    """A small FusedBlock with packed 4-bit weights and an embedding of that type."""
    monkeypatch.setattr(block_weights, "SMALL_BYTES", 0)
    torch.manual_seed(0)
    target = CausalModel(
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=SIZE,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        ).to(dtype)
    )
    net = BlockNet(
        BlockConfig(
            hidden_size=SIZE,
            vocab_size=VOCAB,
            layers=2,
            heads=2,
            kv_heads=kv_heads,
            head_dim=64,
            ffn=96,
            taps=TAPS,
            block=16,
            serial=32,
        ),
        torch.arange(0, VOCAB, 2),
    ).eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, 1.0 if p.ndim == 1 else 0.0, 0.1)
    fused = FusedBlock(net.requires_grad_(False), target)
    assert fused._native is not None
    return fused


class Texts:
    """The contexts of some rows, drafted for by kernels.c or by FusedBlock's steps."""

    def __init__(self, fused, by_native, rows):
        self.fused, self.native = fused, fused._native if by_native else None
        self.cache, self.last = fused.new_cache(), {row: torch.zeros(SIZE) for row in rows}
        for row in rows:
            self.cache.add(row, 80)

    @torch.inference_mode()
    def draft(self, rows, taps, anchors, counts):
        native_block, self.fused._native = self.fused._native, self.native
        last_states, texts = [self.last[r] for r in rows], [[anchor, anchor] for anchor in anchors]
        inputs = BlockInputs(rows=rows, taps=taps, last_states=last_states, texts=texts, counts=counts)
        states, logits, last = self.fused.draft(self.cache, inputs)
        self.fused._native = native_block
        self.last |= zip(rows, last)
        return states.split(counts), logits.split(counts)


def rounds():
    """Rounds over three rows: which draft, with how much new context, which anchor and which K."""
    for step in range(12):
        rows = [r for r in (2, 0, 1) if (r + step) % 3 or step % 2]
        fresh = [(r + step) % 4 for r in rows]
        yield (
            rows,
            [noise(n, len(TAPS) * SIZE, seed=100 * step + r) if n else None for r, n in zip(rows, fresh)],
            [(17 * r + step) % VOCAB for r in rows],
            [1 + (3 * r + step) % 16 for r in rows],
        )


def close(one, other):
    """Equal up to activations that were rounded to the neighbouring 8-bit level."""
    assert float((one - other).norm() / other.norm()) < 0.03


@pytest.mark.parametrize("dtype, kv_heads", [(torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 1)])
def test_a_native_round_equals_the_steps(dtype, kv_heads, monkeypatch):
    fused = make(dtype, monkeypatch, kv_heads)
    one, other = Texts(fused, True, range(3)), Texts(fused, False, range(3))
    for arguments in rounds():
        for a, b in zip(itertools.chain(*one.draft(*arguments)), itertools.chain(*other.draft(*arguments))):
            close(a, b)
        assert one.cache.lengths == other.cache.lengths
        for row in range(3):
            close(one.last[row] + 1e-9, other.last[row] + 1e-9)


def test_a_row_does_not_depend_on_its_neighbours(monkeypatch):
    """Bit for bit: all rows together, and each by itself."""
    fused = make(torch.float32, monkeypatch)
    together, alone = Texts(fused, True, range(3)), [Texts(fused, True, [row]) for row in range(3)]
    for rows, taps, anchors, counts in rounds():
        states, logits = together.draft(rows, taps, anchors, counts)
        for i, row in enumerate(rows):
            own = alone[row].draft([row], taps[i : i + 1], anchors[i : i + 1], counts[i : i + 1])
            assert torch.equal(own[0][0], states[i]) and torch.equal(own[1][0], logits[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_refinement_equals_the_steps_and_each_row_is_independent(dtype, monkeypatch):
    fused = make(dtype, monkeypatch)
    previous, before = torch.tensor([[5, 9, 1, 0, 319], [7, 5, 9, 1, 0]])
    with torch.inference_mode():
        prepared = fused.serial.prepare(noise(5, SIZE))
        found = fused.refine(prepared, previous, before)
        for row in range(5):
            one = fused.refine(prepared[row : row + 1], previous[row : row + 1], before[row : row + 1])
            assert all(torch.equal(a[0], b[row]) for a, b in zip(one, found))
        fused._native_serial = None
        for a, b in zip(found, fused.refine(prepared, previous, before)):
            close(a, b)


def test_a_row_that_would_outgrow_its_capacity_is_refused_before_anything_is_written(monkeypatch):
    texts = Texts(make(torch.float32, monkeypatch), True, [0])
    with pytest.raises(ValueError, match="capacity"):
        texts.draft([0], [noise(78, len(TAPS) * SIZE)], [1], [3])
    assert texts.cache.lengths[0] == 0 and texts.cache.keys[0] is None


def test_a_cache_that_grows_keeps_its_contents_and_its_new_addresses_are_used(monkeypatch):
    """More rows than before, and longer ones."""
    fused = make(torch.float32, monkeypatch)
    texts, roomy = Texts(fused, True, [0]), Texts(fused, True, range(9))
    first = next(rounds())[1][0]
    for those in (texts, roomy):
        those.draft([0], [first], [3], [4])
    for row in range(1, 9):
        texts.cache.add(row, 300)
        texts.last[row] = torch.zeros(SIZE)
    for rows in ([8, 0], [0]):
        given = [noise(2, len(TAPS) * SIZE, seed=r) for r in rows]
        a, b = (those.draft(rows, given, rows, [5] * len(rows)) for those in (texts, roomy))
        assert all(torch.equal(x, y) for x, y in zip(itertools.chain(*a), itertools.chain(*b)))


def test_a_round_and_a_refinement_refuse_tensors_of_other_shapes_and_tokens_outside_the_vocabulary(monkeypatch):
    """Before anything is written: C would read past the end."""
    texts = Texts(make(torch.float32, monkeypatch), True, [0])
    taps = noise(2, len(TAPS) * SIZE)
    for given, anchor, count, message in (
        (taps[:, 1:], 3, 4, r"^taps:"),
        (taps, VOCAB, 4, "tokens"),
        (taps, -1, 4, "tokens"),
        (taps, 3, 17, "16 slots"),
    ):
        with pytest.raises(ValueError, match=message):
            texts.draft([0], [given], [anchor], [count])
    texts.last[0] = torch.zeros(SIZE + 1)
    with pytest.raises(ValueError, match=r"^last states:"):
        texts.draft([0], [taps], [3], [4])
    assert texts.cache.lengths[0] == 0
    tokens = torch.tensor([1, 2])
    prepared = texts.fused.serial.prepare(noise(2, SIZE)).detach()
    for arguments in ((prepared[:1], tokens, tokens), (prepared, tokens.int(), tokens), (prepared, tokens, tokens[:1])):
        with pytest.raises(ValueError, match=r"^(prepared|previous|before):"):
            texts.fused.refine(*arguments)
