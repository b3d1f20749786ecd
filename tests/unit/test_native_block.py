"""A block drafter's round by one call of kernels.c is the same round by LeanBlock's own steps, row by row."""

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.drafters import fused_block
from specviz.drafters.fused_block import LeanBlock
from specviz.drafters.parallel import BlockConfig, BlockNet
from specviz.kernels import build
from specviz.models.causal import CausalModel

pytestmark = pytest.mark.skipif(bool(build.why_not()), reason=f"the kernels need {build.why_not()}")

SIZE, VOCAB, TAPS = 128, 320, (0, 1)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(dtype, monkeypatch, kv_heads=1):
    """A LeanBlock with weights of 4 bits, small as they are, and an embedding of that type."""
    monkeypatch.setattr(fused_block, "SMALL_BYTES", 0)
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
        BlockConfig(SIZE, VOCAB, 2, 2, kv_heads, 64, 96, TAPS, 16, serial=32), torch.arange(0, VOCAB, 2)
    ).eval()
    for p in net.parameters():
        torch.nn.init.normal_(p, 1.0 if p.ndim == 1 else 0.0, 0.1)
    lean = LeanBlock(net.requires_grad_(False), target)
    assert lean._native is not None
    return lean


class Texts:
    """Contexts of some rows, fed to a LeanBlock by kernels.c or by its own steps."""

    def __init__(self, lean, by_native, rows):
        self.lean, self.native = lean, lean._native if by_native else None
        self.cache, self.last = lean.new_cache(), {row: torch.zeros(SIZE) for row in rows}
        for row in rows:
            self.cache.add(row, 80)

    @torch.inference_mode()
    def draft(self, rows, taps, anchors, counts):
        held, self.lean._native = self.lean._native, self.native
        states, logits, last = self.lean.draft(self.cache, rows, taps, [self.last[r] for r in rows], anchors, counts)
        self.lean._native = held
        self.last |= zip(rows, last)
        return states.split(counts), logits.split(counts)


def plays():
    """Rounds over three rows: who drafts, how much new context each has, its anchor and its K."""
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
    """Equal but for a rounding of inputs to 8 bits that fell the other way here and there."""
    assert float((one - other).norm() / other.norm()) < 0.03


@pytest.mark.parametrize("dtype, kv_heads", [(torch.float32, 1), (torch.bfloat16, 2), (torch.float16, 1)])
def test_it_drafts_what_the_steps_draft(dtype, kv_heads, monkeypatch):
    lean = make(dtype, monkeypatch, kv_heads)
    one, other = Texts(lean, True, range(3)), Texts(lean, False, range(3))
    for play in plays():
        for a, b in zip(itertools.chain(*one.draft(*play)), itertools.chain(*other.draft(*play))):
            close(a, b)
        assert one.cache.lengths == other.cache.lengths
        for row in range(3):
            close(one.last[row] + 1e-9, other.last[row] + 1e-9)


def test_a_row_does_not_depend_on_its_neighbours(monkeypatch):
    """Bit for bit: all rows together, and each by itself."""
    lean = make(torch.float32, monkeypatch)
    together, alone = Texts(lean, True, range(3)), [Texts(lean, True, [row]) for row in range(3)]
    for rows, taps, anchors, counts in plays():
        states, logits = together.draft(rows, taps, anchors, counts)
        for i, row in enumerate(rows):
            own = alone[row].draft([row], taps[i : i + 1], anchors[i : i + 1], counts[i : i + 1])
            assert torch.equal(own[0][0], states[i]) and torch.equal(own[1][0], logits[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_mends_as_the_steps_mend_and_each_row_by_itself(dtype, monkeypatch):
    lean = make(dtype, monkeypatch)
    previous, before = torch.tensor([[5, 9, 1, 0, 319], [7, 5, 9, 1, 0]])
    with torch.inference_mode():
        prepared = lean.serial.prepare(noise(5, SIZE))
        found = lean.mend(prepared, previous, before)
        for row in range(5):
            one = lean.mend(prepared[row : row + 1], previous[row : row + 1], before[row : row + 1])
            assert all(torch.equal(a[0], b[row]) for a, b in zip(one, found))
        lean._native_serial = None
        for a, b in zip(found, lean.mend(prepared, previous, before)):
            close(a, b)


def test_a_row_that_would_outgrow_its_room_is_refused_before_anything_is_written(monkeypatch):
    texts = Texts(make(torch.float32, monkeypatch), True, [0])
    with pytest.raises(ValueError, match="capacity"):
        texts.draft([0], [noise(78, len(TAPS) * SIZE)], [1], [3])
    assert texts.cache.lengths[0] == 0 and texts.cache.keys[0] is None


def test_a_store_that_grows_is_found_again(monkeypatch):
    """More rows than before, and longer ones: what was read stays, and is read at its new place."""
    lean = make(torch.float32, monkeypatch)
    texts, roomy = Texts(lean, True, [0]), Texts(lean, True, range(9))
    first = next(plays())[1][0]
    for those in (texts, roomy):
        those.draft([0], [first], [3], [4])
    for row in range(1, 9):
        texts.cache.add(row, 300)
        texts.last[row] = torch.zeros(SIZE)
    for rows in ([8, 0], [0]):
        given = [noise(2, len(TAPS) * SIZE, seed=r) for r in rows]
        a, b = (those.draft(rows, given, rows, [5] * len(rows)) for those in (texts, roomy))
        assert all(torch.equal(x, y) for x, y in zip(itertools.chain(*a), itertools.chain(*b)))
