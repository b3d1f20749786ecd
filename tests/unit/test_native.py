"""The kernels of native.c compute what torch's operators compute, row by row, and are done without where need be."""

import subprocess

import pytest
import torch
from torch.nn import functional

from specviz.errors import SettingsError
from specviz.models import attention, native
from specviz.models.cache import RaggedCache
from specviz.models.int4 import GROUP, Int4Linear, fits, pack
from specviz.models.lean import Turns
from specviz.models.load import resolve_precision
from specviz.models.narrow import Fp16Linear, can_hold_fp16

here = pytest.mark.skipif(bool(native.why_not()), reason=f"the kernels need {native.why_not()}")


def q4_1(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    """A weight as llama.cpp's Q4_1 stores it: every group reaches level 0 and 15, scale and lowest in 16 bits."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(0, 16, (outputs, inputs // GROUP, GROUP), generator=generator)
    level[..., 3], level[..., 20] = 0, 15
    scale = (0.01 * torch.rand(outputs, inputs // GROUP, 1, generator=generator) + 0.001).half().float()
    lowest = (-8 * scale * (1 + 0.1 * torch.rand(scale.shape, generator=generator))).half().float()
    return (level * scale + lowest).flatten(1)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error."""
    return float((found - wanted).norm() / wanted.norm())


@here
@pytest.mark.parametrize("outputs, inputs", [(16, 32), (576, 1536), (960, 576)])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
def test_a_product_with_4_bits_is_the_product_with_the_weight(outputs, inputs, rows):
    """With norm, gates and a sum it is what torch makes of them; the weight itself loses nothing."""
    weight, x = q4_1(outputs, inputs), noise(rows, inputs)
    product, exact = Int4Linear(weight), weight.double()
    assert off(product(x), x.double() @ exact.t()) < 4e-5
    gain, onto = noise(inputs, seed=2).abs(), noise(rows, outputs, seed=3)
    normed = functional.rms_norm(x.double(), (inputs,), gain.double(), 1e-5)
    assert off(product(x, gain=gain, eps=1e-5), normed @ exact.t()) < 5e-5
    both = 3 * noise(rows, 2 * inputs, seed=4)
    gate, up = both.double().chunk(2, -1)
    wanted = (functional.silu(gate) * up) @ exact.t() + onto
    assert off(product(both, gated=True, onto=onto), wanted) < 1e-4


@here
def test_the_inputs_a_person_never_sees_are_survived():
    """Zeros, numbers of very different size, and gates whose exponential overflows."""
    product, weight = Int4Linear(q4_1(32, 64)), q4_1(32, 64).double()
    assert torch.equal(product(torch.zeros(2, 64)), torch.zeros(2, 32))
    x = noise(4, 64) * torch.tensor([1e-20, 1.0, 1e6, 1e20])[:, None]
    for row, found in zip(x, product(x)):
        assert off(found, row.double() @ weight.t()) < 4e-5
    extreme = torch.cat([torch.tensor([[-1e4], [1e4], [0.0]]).expand(3, 64), torch.ones(3, 64)], dim=1)
    wanted = torch.tensor([0.0, 1e4, 0.0])[:, None].expand(3, 64).double() @ weight.t()
    torch.testing.assert_close(product(extreme, gated=True).double(), wanted, atol=1e-3, rtol=1e-4)


@here
def test_a_row_of_a_product_does_not_depend_on_the_others():
    product, x = Int4Linear(q4_1(48, 96)), noise(40, 96)
    whole = product(x)
    assert all(torch.equal(product(x[:n]), whole[:n]) for n in range(1, 41))
    head = Fp16Linear(noise(640, 96))
    whole = head(x)
    assert can_hold_fp16(noise(2, 2)) and all(torch.equal(head(x[:n]), whole[:n]) for n in range(1, 41))


@pytest.mark.parametrize("weight", [
    noise(16, 64), q4_1(16, 64) * 1.0001 + 1e-4, q4_1(16, 64)[:, :33], q4_1(16, 64)[:15], noise(4, 4, 4),
], ids=["noise", "scales of more bits", "half a group", "half a block", "no matrix"])
def test_a_weight_that_was_not_published_in_4_bits_is_refused(weight):
    assert pack(weight) is None
    with pytest.raises(ValueError, match="needs"):
        Int4Linear(weight)


@here
def test_a_weight_is_rounded_to_the_nearest_levels_where_that_is_asked_for():
    weight, x = noise(32, 64), noise(5, 64)
    groups = weight.unflatten(1, (-1, GROUP))
    step = (groups.amax(-1) - groups.amin(-1)) / 15
    columns = Int4Linear(weight, nearest=True)(torch.eye(64)).t()  # the weight that it multiplies by
    assert bool(((columns - weight).unflatten(1, (-1, GROUP)).abs().amax(-1) <= 0.502 * step).all())
    assert off(Int4Linear(weight, nearest=True)(x), x.double() @ columns.double().t()) < 4e-5
    assert torch.equal(pack(q4_1(32, 64), nearest=True), pack(q4_1(32, 64)))
    assert fits(weight) and not fits(noise(33, 64)) and not fits(noise(32, 65))


def test_a_weight_in_4_bits_takes_5_bits_a_weight():
    assert pack(q4_1(64, 128)).numel() * 8 == 5 * 64 * 128


def passes(use_kernel: bool, plans, dim: int, causal: bool, monkeypatch) -> list[torch.Tensor]:
    """What attention gives in passes of these rows and lengths, over one cache."""
    if not use_kernel:
        monkeypatch.setattr(native, "attend", lambda: None)
    heads, kv_heads = 6, 2
    cache = RaggedCache(1, torch.device("cpu"), torch.float32)
    turns = Turns(lambda positions: (torch.cos(positions[:, None] * torch.ones(dim) / 7),
                                     torch.sin(positions[:, None] * torch.ones(dim) / 7)))
    for row in (4, 7, 9):
        cache.add(row, 90)
    out = []
    for i, (rows, counts) in enumerate(plans):
        plan = cache.plan(rows, counts, causal)
        packed = noise(sum(counts), heads + 2 * kv_heads, dim, seed=i)
        cos, sin = turns.rows(plan.position_of, 90)
        out.append(attention.attend_packed(plan, 0, packed, cos, sin, kv_heads))
    monkeypatch.undo()
    return out


@here
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_that_of_torch_for_rows_of_any_length(dim, causal, monkeypatch):
    plans = [([4], [40]), ([7, 9], [1, 33]), ([4, 7, 9], [1, 1, 1]), ([9, 4], [5, 6]), ([4, 7, 9], [3, 3, 3])]
    ours, torchs = (passes(kernel, plans, dim, causal, monkeypatch) for kernel in (True, False))
    for found, wanted in zip(ours, torchs):
        torch.testing.assert_close(found, wanted, atol=3e-6, rtol=1e-5)


def test_without_a_compiler_there_are_no_kernels_and_a_sentence_says_so(empty_home, monkeypatch):
    """A compiler that is missing, fails, or hangs: never an error, and int4 says what it needs."""
    caches = (native.why_not, native.attend, native.int4_product)
    able = dict.fromkeys(native._UNITS, True)
    monkeypatch.setattr(native.torch.cpu, "get_capabilities", lambda: able)
    monkeypatch.setattr(native.sys, "platform", "linux")
    monkeypatch.setattr(native.platform, "machine", lambda: "x86_64")
    failures = [FileNotFoundError("gcc"), subprocess.CalledProcessError(1, "gcc", stderr="no"),
                subprocess.TimeoutExpired("gcc", 60)]
    try:
        for failure in failures:
            def fail(*_, failure=failure, **__):
                raise failure

            for kept in caches:
                kept.cache_clear()
            monkeypatch.setattr(native.shutil, "which", lambda name: name)
            monkeypatch.setattr(native.subprocess, "run", fail)
            assert "gcc" in native.why_not() and native.attend() is None and native.int4_product() is None
            with pytest.raises(SettingsError, match=r"it needs the compiler gcc.*choose bf16 or fp32"):
                resolve_precision("int4", "cpu")
            assert not list((empty_home / "kernels").iterdir())
        able.clear()
        native.why_not.cache_clear()
        assert "AVX-512" in native.why_not()
    finally:
        monkeypatch.undo()
        for kept in caches:
            kept.cache_clear()
