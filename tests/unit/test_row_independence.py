"""Without the C kernels, too, a row of a 16-bit product does not depend on the rows beside it, on any instruction set.

That is why greedy speculative text equals greedy plain text there. torch's product in float32 makes no such promise:
its rounding depends on the number of rows (docs/proof.md).
"""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from specviz.models import weight_storage
from specviz.models.weight_storage import Fp16Linear, fits_fp16, independent_block

SHAPES = ((640, 96), (576, 1536), (96, 4096))
"""Of weights [out, in]: with fewer inputs, and with more, than one cache block of the libraries' kernels."""
AVX2 = {"FBGEMM_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def product(dtype: torch.dtype, weight: torch.Tensor):
    """The product that a head in float16, or layers in a 16-bit type, use without the C kernels."""
    if dtype is None:
        return Fp16Linear(weight)
    return lambda x: functional.linear(x.to(dtype), weight.to(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=["fp16 head", "bf16", "fp16"])
def test_a_row_of_a_16_bit_product_does_not_depend_on_the_other_rows(dtype, shape):
    multiply, x = product(dtype, noise(*shape)), noise(40, shape[1])
    whole = multiply(x)
    assert all(torch.equal(multiply(x[:n]), whole[:n]) for n in range(1, 41))
    assert torch.equal(multiply(x.flip(0)), whole.flip(0))


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("FBGEMM_ENABLE_INSTRUCTIONS") == "AVX2", reason="this is the child process")
def test_it_does_not_on_a_processor_with_avx2_alone():
    """In a process that is held to AVX2, which any x86 processor here can be."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | AVX2, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_the_float16_head_is_within_rounding_of_the_float32_product():
    weight, x = noise(640, 96), noise(7, 96)
    assert fits_fp16(weight) and independent_block() in (1, 6)
    assert torch.allclose(Fp16Linear(weight)(x), functional.linear(x, weight), atol=0.02)


def test_a_head_is_not_stored_in_float16_where_no_block_makes_rows_independent(monkeypatch):
    monkeypatch.setattr(weight_storage, "independent_block", lambda: 0)
    assert not fits_fp16(noise(64, 96))
