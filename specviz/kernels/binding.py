"""ctypes binding of kernels.c: structures, functions, and checks of the tensors passed to it.

`kernels` is None where the library cannot be built (another system, an older processor, no compiler): callers then use
torch's operators. `missing_requirement` says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Sequence

import torch

from specviz.kernels import build

_POINTER, _SIZE, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int
_HUGE_PAGE = 2 * 2**20

QUERY_TILE, KEY_TILE, GROUP, OUTPUTS, SCRATCH_ROWS = 8, 16, 32, 16, 16
"""As in the C: tokens that attend together, keys read at a time, inputs of a weight's group, outputs of its block, rows
that the input scratch is rounded up to."""
_QUANTIZED_GROUP_BYTES = 48
"""sizeof(QuantizedGroup)"""


def _fields(sizes: str, pointers: str) -> list[tuple[str, type]]:
    return [(name, _SIZE) for name in sizes.split()] + [(name, _POINTER) for name in pointers.split()]


class AttentionMetadata(ctypes.Structure):
    """attention.h's structure of this name."""

    _fields_ = [
        *_fields("tokens heads kv_heads head_dim", "cos sin slots positions last_seen"),
        *_fields("capacity", "queries scores"),
    ]


class DecoderLayer(ctypes.Structure):
    """kernels.c's structure of this name."""

    _fields_ = _fields("", "norm_1 norm_2 qkv out gate_up down keys values tap")


class BlockDrafter(ctypes.Structure):
    """block.h's structure of this name."""

    _fields_ = [
        *_fields("hidden inner taps layers outputs", ""),
        ("eps", _FLOAT),
        ("embedding_bits", _INT),
        *_fields("", "embedding fuse_gain gain ones masks fuse context inputs head"),
    ]


class SerialHead(ctypes.Structure):
    """block.h's structure of this name."""

    _fields_ = [
        *_fields("hidden inner outputs", ""),
        ("eps", _FLOAT),
        ("embedding_bits", _INT),
        *_fields("", "embedding gain from_tokens outer head"),
    ]


_STRUCTURES = (AttentionMetadata, DecoderLayer, BlockDrafter, SerialHead)
_ARGUMENTS = {
    "product": [_POINTER, _SIZE, _SIZE, _POINTER, _FLOAT, _INT, _POINTER, _SIZE, _POINTER, _POINTER, _INT],
    "attend": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT],
    "draft_block": [*[_POINTER] * 5, _SIZE, *[_POINTER] * 9, _INT],
    "refine": [_POINTER, _SIZE, *[_POINTER] * 7, _INT],
    "decode_layers": [_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _INT, _POINTER, _POINTER, _INT],
}


def kernels(bits: int = 4) -> ctypes.CDLL | None:
    """The functions of kernels.c for weights of 4, 8, 16 or 32 bits; None: see missing_requirement(bits)."""
    return None if missing_requirement(bits) else _library()[0]


def require(bits: int = 4) -> ctypes.CDLL:
    """As `kernels`. Raises ValueError with what is missing where there are none."""
    if (found := kernels(bits)) is None:
        raise ValueError(f"it needs {missing_requirement(bits)}.")
    return found


@functools.lru_cache
def missing_requirement(bits: int = 4) -> str:
    """What this machine lacks for kernels with weights of that many bits, in words that follow "it needs"; "" if
    nothing."""
    if bits == 16 and not build.BF16.is_supported():
        return missing_requirement() or f"a processor with {build.BF16.name} units"
    library, missing = _library()
    if bits == 16 and library is not None and not library.has_bf16():
        return f"a compiler that knows {build.BF16.name} (gcc 10 or later)"
    return missing


@functools.lru_cache(maxsize=1)
def _library() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and what is missing for it."""
    try:
        library = build.load()
    except build.BuildError as error:
        return None, str(error)
    _check_layouts(library)
    for name, types in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    library.stream.argtypes, library.stream.restype = [_POINTER, _SIZE, _INT], ctypes.c_int64
    library.enable_amx(True)
    return library, ""


def _check_layouts(library: ctypes.CDLL) -> None:
    """Raises RuntimeError if the structures or sizes of this file are not those of the C."""
    ours = [number for of in _STRUCTURES for number in (ctypes.sizeof(of), getattr(of, of._fields_[-1][0]).offset)]
    sizes = [QUERY_TILE, KEY_TILE, GROUP, OUTPUTS, SCRATCH_ROWS, _QUANTIZED_GROUP_BYTES]
    for name, expected in (("struct_layouts", ours), ("tile_sizes", sizes)):
        found = list((_SIZE * len(expected)).in_dll(library, name))
        if found != expected:
            raise RuntimeError(f"binding.py and kernels.c differ in {name}: {expected} and {found}")


def address(name: str, tensor: torch.Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> int:
    """The address of a tensor that C reads or writes. Raises ValueError unless it has this shape and type, and is
    contiguous and on the CPU."""
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_cpu or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name}: kernels.c needs {list(shape)}, {dtype}, contiguous, on cpu; this is "
            f"{list(tensor.shape)}, {tensor.dtype}, {layout}, on {tensor.device}"
        )
    return tensor.data_ptr()


def input_scratch(rows: int, inputs: int) -> torch.Tensor:
    """Memory for the activations [rows, inputs] of a product in any form: quantized, bfloat16 or float32."""
    return torch.empty(-(-rows // SCRATCH_ROWS) * SCRATCH_ROWS * inputs * 4, dtype=torch.uint8)


def alloc_huge_pages(size: int) -> torch.Tensor:
    """`size` bytes in 2 MiB pages if available (fewer TLB misses)."""
    memory = mmap.mmap(-1, size + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # EINVAL: a system without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE
    return whole[start : start + size]
