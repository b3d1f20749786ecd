"""kernels.c computes what torch's operators compute, and each row independently of the others."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from specviz.kernels import binding
from specviz.kernels.packed import GROUP, PackedLinear, bytes_per_weight, move_to_huge_pages, pack, supports
from specviz.models.attention import PackedAttention
from specviz.models.cache import RaggedCache
from specviz.models.fused import FusedLayer, FusedLayers, RotaryTables
from specviz.models.native_layers import NativeLayers

here = pytest.mark.skipif(
    bool(binding.missing_requirement()), reason=f"the kernels need {binding.missing_requirement()}"
)


def q4_1(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """A weight in llama.cpp's Q4_1: every group reaches levels 0 and 15, scale and minimum are float16."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(0, 16, (outputs, inputs // GROUP, GROUP), generator=generator)
    level[..., 3], level[..., 20] = 0, 15
    scale = (0.01 * torch.rand(outputs, inputs // GROUP, 1, generator=generator) + 0.001).half().float()
    minimum = (-8 * scale * (1 + 0.1 * torch.rand(scale.shape, generator=generator))).half().float()
    return (level * scale + minimum).flatten(1)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error."""
    return float((found - wanted).norm() / wanted.norm())


def q8_0(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """A weight in llama.cpp's Q8_0: every group reaches level 127 or -127, the scale is float16."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(-126, 127, (outputs, inputs // GROUP, GROUP), generator=generator)
    level[..., 5] = torch.where(level[..., 0] > 0, 127, -127)
    scale = (0.001 * torch.rand(outputs, inputs // GROUP, 1, generator=generator) + 1e-4).half().float()
    return (level * scale).flatten(1)


def bf16(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    return noise(outputs, inputs, seed=seed).bfloat16()


PUBLISHED = {4: q4_1, 8: q8_0, 16: bf16, 32: lambda outputs, inputs, seed=0: noise(outputs, inputs, seed=seed)}
CLOSE = 4e-3
"""Allowed error of a product with 8-bit activations, relative to the norms of row and weight"""


def distance(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """The largest error of found against x @ weight.t(), relative to the norms of row and weight."""
    x, weight = x.double(), weight.double()
    return float(((found - x @ weight.t()).abs() / (x.norm(dim=1)[:, None] * weight.norm(dim=1))).max())


def needs(bits: int):
    return pytest.param(
        bits,
        marks=pytest.mark.skipif(
            bool(binding.missing_requirement(bits)), reason=f"{bits} bits need {binding.missing_requirement(bits)}"
        ),
    )


@pytest.fixture(params=[False, True], ids=["AVX-512", "AMX"])
def amx(request):
    """With and without AMX, where the processor has it."""
    if binding.kernels() is None or binding.kernels().enable_amx(request.param) != request.param:
        pytest.skip("it needs a processor with AMX")
    yield
    binding.kernels().enable_amx(True)


@pytest.mark.parametrize("bits", [needs(4), needs(8), needs(16), needs(32)])
@pytest.mark.parametrize("outputs, inputs", [(16, 32), (576, 1536), (960, 576)])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 16, 40])
def test_a_product_equals_the_product_with_the_published_weight(bits, outputs, inputs, rows, amx):
    """The weight keeps its exact values: one-hot rows return its columns. The fused RMS norm equals torch's."""
    weight, x = PUBLISHED[bits](outputs, inputs), noise(rows, inputs)
    product, exact = PackedLinear(weight, bits), weight.double()
    assert distance(product(x), x, exact) < CLOSE
    columns = torch.eye(inputs)[:40]
    torch.testing.assert_close(product(columns).double(), exact.t()[:40], atol=1e-6, rtol=1e-5)
    gain = noise(inputs, seed=2).abs()
    normed = functional.rms_norm(x.double(), (inputs,), gain.double(), 1e-5)
    assert distance(product(x, gain=gain, eps=1e-5), normed, exact) < CLOSE


@here
@pytest.mark.parametrize("bits", [4, 8])
def test_a_large_activation_does_not_reduce_the_precision_of_its_neighbours(bits):
    """Models have activations a hundred times as large as their neighbours; a plain 8-bit group would lose these."""
    weight, x = PUBLISHED[bits](64, 256), noise(5, 256)
    x[:, 17] = 200.0
    exact = x.double() @ weight.double().t()
    apart = (x.double().index_fill(1, torch.tensor([17]), 0)) @ weight.double().t()
    error = (PackedLinear(weight, bits)(x).double() - exact).norm() / apart.norm()
    assert error < 6e-3
    group = x[:, :GROUP]
    rounded = (group / group.abs().amax(1, keepdim=True) * 127).round() * group.abs().amax(1, keepdim=True) / 127
    plain = torch.cat([rounded, x[:, GROUP:]], 1).double() @ weight.double().t()
    assert (plain - exact).norm() / apart.norm() > 5 * error  # the error of plain 8-bit groups


@here
def test_zero_tiny_huge_and_nan_activations_leave_other_rows_correct():
    product, weight = PackedLinear(q4_1(32, 64), 4), q4_1(32, 64).double()
    assert torch.equal(product(torch.zeros(2, 64)), torch.zeros(2, 32))
    x = noise(4, 64) * torch.tensor([1e-20, 1.0, 1e6, 1e20])[:, None]
    assert distance(product(x), x, weight) < CLOSE
    x[1, 40] = torch.nan
    assert torch.isfinite(product(x)[[0, 2, 3]]).all()


@pytest.mark.parametrize("bits", [needs(4), needs(8), needs(16), needs(32)])
def test_a_row_of_a_product_does_not_depend_on_the_others(bits, amx):
    product, x = PackedLinear(PUBLISHED[bits](48, 96), bits), noise(40, 96)
    whole = product(x)
    assert all(torch.equal(product(x[:n]), whole[:n]) for n in range(1, 41))
    assert torch.equal(product(x.flip(0)), whole.flip(0))


@pytest.mark.parametrize(
    "weight, bits",
    [
        (noise(16, 64), 4),
        (q4_1(16, 64) * 1.0001 + 1e-4, 4),
        (q4_1(16, 64)[:, :33], 4),
        (q4_1(16, 64)[:15], 4),
        (noise(4, 4, 4), 4),
        (noise(16, 64), 8),
        (q8_0(16, 64) * 1.0001 + 1e-5, 8),
        (q8_0(16, 64)[:, :33], 8),
        (bf16(16, 64), 8),
    ],
    ids=[
        "noise",
        "scales not in float16",
        "half a group",
        "half a block",
        "no matrix",
        "noise in 8",
        "scales not in float16, 8 bits",
        "half a group in 8",
        "noise in bfloat16",
    ],
)
def test_a_weight_that_was_not_published_in_the_format_is_refused(weight, bits):
    assert pack(weight, bits) is None
    with pytest.raises(ValueError, match="needs"):
        PackedLinear(weight, bits)


@here
def test_a_quantized_weight_is_recognised_after_rounding_to_bfloat16():
    weight, x = q8_0(64, 96), noise(3, 96)
    found = PackedLinear(weight.bfloat16(), 8)
    assert distance(found(x), x, weight.bfloat16()) < 2 * CLOSE


@here
@pytest.mark.parametrize("bits, width", [(4, 0.502), (8, 0.51)])
def test_nearest_rounds_any_weight_to_the_nearest_levels(bits, width):
    weight, x = noise(32, 64), noise(5, 64)
    groups = weight.unflatten(1, (-1, GROUP))
    step = (groups.amax(-1) - groups.amin(-1)) / 15 if bits == 4 else groups.abs().amax(-1) / 127
    columns = PackedLinear(weight, bits, nearest=True)(torch.eye(64)).t()  # the packed weight
    assert bool(((columns - weight).unflatten(1, (-1, GROUP)).abs().amax(-1) <= width * step).all())
    assert distance(PackedLinear(weight, bits, nearest=True)(x), x, columns) < CLOSE
    published = PUBLISHED[bits](32, 64)
    assert torch.equal(pack(published, bits, nearest=True), pack(published, bits))
    assert supports(weight, bits) and not supports(noise(33, 64), bits) and not supports(noise(32, 65), bits)


def test_bytes_per_weight_are_those_of_the_packed_tensor():
    assert pack(q4_1(64, 128), 4).numel() * 8 == 5 * 64 * 128 == bytes_per_weight(4) * 8 * 64 * 128
    assert pack(q8_0(64, 128), 8).numel() * 8 == 9 * 64 * 128 == bytes_per_weight(8) * 8 * 64 * 128
    assert pack(bf16(64, 128), 16).numel() * 8 == 16 * 64 * 128 == bytes_per_weight(16) * 8 * 64 * 128


@here
def test_moving_weights_to_huge_pages_changes_no_result():
    weights = [q4_1(48, 96), q4_1(32, 64, seed=1)]
    products, x = [PackedLinear(w, 4) for w in weights], [noise(3, 96), noise(3, 64)]
    before = [product(rows) for product, rows in zip(products, x)]
    move_to_huge_pages(products)
    assert all(torch.equal(product(rows), was) for product, rows, was in zip(products, x, before))
    first, second = (product.packed for product in products)
    assert second.data_ptr() == first.data_ptr() + first.nbytes and first.data_ptr() % (2 * 2**20) == 0


@pytest.mark.parametrize("bits", [needs(4), needs(16), needs(32)])
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_layers_in_one_call_equal_the_layers_one_by_one(bits, tokens, amx):
    """Norms, SwiGLU, residuals, attention and taps; bit for bit the same however the text is split into passes."""
    width, heads, kv_heads, dim, inner, layers = 128, 4, 2, 64, 192, 3
    norms = [[noise(width, seed=s).abs(), noise(width, seed=s + 1).abs()] for s in range(layers)]
    shapes = [((heads + 2 * kv_heads) * dim, width), (width, heads * dim), (2 * inner, width), (width, inner)]
    scale = 5.0 if bits == 4 else 0.05
    weights = [
        [
            (PUBLISHED[bits](*shape, seed=10 * i + j).float() * scale).to(
                torch.bfloat16 if bits == 16 else torch.float32
            )
            for j, shape in enumerate(shapes)
        ]
        for i in range(layers)
    ]
    ours = NativeLayers(norms, weights, 1e-5, kv_heads, dim, bits, nearest=True)
    exact = [[PackedLinear(w, bits, nearest=True)(torch.eye(w.shape[1])).t() for w in of] for of in weights]
    plain = FusedLayers(
        [
            FusedLayer(gains, [partial(functional.linear, weight=w) for w in of], 1e-5)
            for gains, of in zip(norms, exact)
        ],
        kv_heads,
        dim,
    )
    rotary = RotaryTables(
        lambda positions: (
            torch.cos(positions[:, None] * torch.ones(dim) / 7),
            torch.sin(positions[:, None] * torch.ones(dim) / 7),
        )
    )
    x = noise(tokens, width)

    def run(layers_of, cuts):
        cache, out = RaggedCache(layers, torch.device("cpu"), torch.float32), []
        cache.add(0, 60)
        for part in x.split(cuts):
            plan = cache.plan([0], [len(part)])
            hidden, tapped = layers_of(part, PackedAttention(plan), *rotary.rows(plan.position_of, 60), taps=(1,))
            out.append(torch.cat([hidden, tapped[1]], -1))
        return torch.cat(out)

    whole = run(ours, [tokens])
    assert off(whole, run(plain, [tokens])) < 0.02
    assert torch.equal(run(ours, [1] * tokens), whole)
    assert torch.equal(run(ours.first(2), [tokens])[:, width:], whole[:, width:])
    with pytest.raises(ValueError, match="heads of 64"):
        NativeLayers(norms, weights, 1e-5, kv_heads, 32, bits)


@here
def test_stream_reads_every_byte():
    numbers = torch.arange(32 * 1000)
    assert binding.kernels().stream(numbers.data_ptr(), numbers.nbytes, 2) == int(numbers.sum())


def passes(use_kernel: bool, plans, dim: int, causal: bool, monkeypatch) -> list[torch.Tensor]:
    """The attention of passes with these rows and lengths, over one cache."""
    if not use_kernel:
        monkeypatch.setattr(binding, "kernels", lambda: None)
    heads, kv_heads = 6, 2
    cache = RaggedCache(1, torch.device("cpu"), torch.float32)
    rotary = RotaryTables(
        lambda positions: (
            torch.cos(positions[:, None] * torch.ones(dim) / 7),
            torch.sin(positions[:, None] * torch.ones(dim) / 7),
        )
    )
    for row in (4, 7, 9):
        cache.add(row, 90)
    out = []
    for i, (rows, counts) in enumerate(plans):
        plan = cache.plan(rows, counts, causal)
        packed = noise(sum(counts), heads + 2 * kv_heads, dim, seed=i)
        cos, sin = rotary.rows(plan.position_of, 90)
        out.append(PackedAttention(plan)(0, packed, cos, sin, kv_heads))
    monkeypatch.undo()
    return out


@here
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_torch_for_rows_of_any_length(dim, causal, monkeypatch):
    plans = [([4], [40]), ([7, 9], [1, 33]), ([4, 7, 9], [1, 1, 1]), ([9, 4], [5, 6]), ([4, 7, 9], [3, 3, 3])]
    ours, torchs = (passes(kernel, plans, dim, causal, monkeypatch) for kernel in (True, False))
    for found, wanted in zip(ours, torchs):
        torch.testing.assert_close(found, wanted, atol=3e-6, rtol=1e-5)
