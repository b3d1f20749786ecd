"""Runs every function of kernels.c under the compiler's sanitizers, in a process started by test_kernel_build.py.

Arguments: the folder for the library, then compiler flags. "overrun" before the flags makes scratch memory too small.
"""

import os
import sys
from types import SimpleNamespace

import torch


def products() -> None:
    """Every kind of weight, by row counts below and above a tile, with and without a norm."""
    from specviz.kernels.packed import PackedLinear

    for bits in (4, 8, 16, 32):
        layer = PackedLinear(torch.randn(48, 96), bits, nearest=True)
        for rows in (1, 2, 7, 8, 9, 17):
            layer(torch.randn(rows, 96))
        layer(torch.randn(3, 96), torch.ones(96), 1e-5)


def layers() -> None:
    """Two layers over rows of different lengths that fill their cache to its last column; attention by itself."""
    from specviz.models.attention import PackedAttention
    from specviz.models.cache import RaggedCache
    from specviz.models.native_layers import NativeLayers

    norms = [(torch.ones(96), torch.ones(96)) for _ in range(2)]
    shapes = ((4 * 64, 96), (96, 2 * 64), (2 * 64, 96), (96, 64))
    weights = [[torch.randn(shape) for shape in shapes] for _ in range(2)]
    run = NativeLayers(norms, weights, 1e-5, 1, 64, 4, nearest=True)
    cache = RaggedCache(2, torch.device("cpu"), torch.float32)
    for row in range(2):
        cache.add(row, 32)
    for counts in ([20, 3], [1, 1], [11, 9]):
        plan = cache.plan([0, 1], counts)
        tables = torch.ones(sum(counts), 1, 64)
        run(torch.randn(sum(counts), 96), PackedAttention(plan), tables, tables, (1,))
    plan = cache.plan([1], [4])
    PackedAttention(plan)(0, torch.randn(4, 4, 64), torch.ones(4, 1, 64), torch.ones(4, 1, 64), 1)


def drafts() -> None:
    """Rounds of a block drafter with and without new context, and a slot of its serial head."""
    from specviz.drafters import block_weights
    from specviz.drafters.block_net import BlockConfig, BlockNet
    from specviz.drafters.fused_block import FusedBlock
    from specviz.drafters.slots import BlockInputs

    block_weights.SMALL_BYTES = 0
    for dtype in (torch.float32, torch.bfloat16):
        target = SimpleNamespace(embedding=torch.randn(64, 96, dtype=dtype), head=torch.randn(64, 96))
        net = BlockNet(
            BlockConfig(
                hidden_size=96,
                vocab_size=64,
                layers=2,
                heads=2,
                kv_heads=1,
                head_dim=64,
                ffn=96,
                taps=(0, 1),
                block=16,
                serial=32,
            ),
            torch.arange(0, 64, 2),
        )
        fused = FusedBlock(net.requires_grad_(False), target)
        assert fused._native is not None
        cache = fused.new_cache()
        for row in range(2):
            cache.add(row, 32)
        last = [torch.zeros(96), torch.zeros(96)]
        for taps in ([torch.randn(16, 192), None], [None, torch.randn(1, 192)], [None, None]):
            texts = [[0, 0], [63, 63]]
            inputs = BlockInputs(rows=[0, 1], taps=taps, last_states=last, texts=texts, counts=[16, 1])
            states, _, last = fused.draft(cache, inputs)
        fused.refine(fused.serial.prepare(states[:3]), torch.tensor([0, 5, 63]), torch.tensor([63, 1, 0]))


def main(home: str, *flags: str) -> None:
    os.environ["SPECVIZ_HOME"] = home
    from specviz.kernels import binding, build

    if flags[0] == "overrun":
        flags, binding.input_scratch = flags[1:], lambda rows, inputs: torch.empty(64, dtype=torch.uint8)
    build.FLAGS = (*build.FLAGS, *flags)
    torch.set_num_threads(2)
    assert not binding.missing_requirement(), binding.missing_requirement()
    read = torch.ones(128, dtype=torch.int64)
    assert binding.kernels().stream(read.data_ptr(), read.nbytes, 2) == 128
    with torch.inference_mode():
        products()
        layers()
        drafts()
    print("all functions ran")


main(*sys.argv[1:])
