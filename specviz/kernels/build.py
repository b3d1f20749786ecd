"""The kernels of kernels.c, compiled once with the machine's own compiler and kept in SPECVIZ_HOME.

Where that cannot be (another system, an older processor, no compiler) there are none, and torch's operators serve.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from specviz import paths
from specviz.errors import SpecVizError

_UNITS = ("avx512_f", "avx512_bw", "avx512_vnni")
_UNITS_16 = "avx512_bf16"
"""For weights of 16 bits alone"""
_FLAGS = (
    "-O3",
    "-std=c11",
    "-shared",
    "-fPIC",
    "-fopenmp",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vnni",
    "-mfma",
    "-mf16c",
)
_FLAGS_16 = ("-mavx512bf16",)
_UNITS_MATRIX = ("amx_tile", "amx_bf16")
"""Which serve those, where they are"""
_FLAGS_MATRIX = ("-mamx-tile", "-mamx-bf16")
_SOURCE = Path(__file__).with_name("kernels.c")
_PARTS = (_SOURCE, *(_SOURCE.with_name(f"{part}.h") for part in ("products", "attention", "block")))
_LARGE_PAGE = 2 * 2**20
_LOG = logging.getLogger(__name__)
_POINTER, _SIZE, _NUMBER, _FLAG = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int

QUERIES = 8
"""As in kernels.c: tokens that attend together"""


class Pass(ctypes.Structure):
    """The Pass of kernels.c."""

    _fields_ = (
        [(n, _SIZE) for n in ("tokens", "heads", "kv_heads", "dim")]
        + [(n, _POINTER) for n in ("cos", "sin", "slots", "positions", "last_seen")]
        + [("capacity", _SIZE), ("queries", _POINTER), ("scores", _POINTER)]
    )


class Layer(ctypes.Structure):
    """The Layer of kernels.c."""

    _fields_ = [(n, _POINTER) for n in ("norm_1", "norm_2", "qkv", "out", "gate_up", "down", "keys", "values", "tap")]


class Block(ctypes.Structure):
    """The Block of block.h."""

    _fields_ = (
        [(n, _SIZE) for n in ("hidden", "inner", "taps", "layers", "outputs")]
        + [("eps", _NUMBER), ("embedding_bits", _FLAG)]
        + [
            (n, _POINTER)
            for n in ("embedding", "fuse_gain", "gain", "ones", "masks", "fuse", "context", "inputs", "head")
        ]
    )


class Serial(ctypes.Structure):
    """The Serial of block.h."""

    _fields_ = (
        [(n, _SIZE) for n in ("hidden", "inner", "outputs")]
        + [("eps", _NUMBER), ("embedding_bits", _FLAG)]
        + [(n, _POINTER) for n in ("embedding", "gain", "of_tokens", "outer", "head")]
    )


_ARGUMENTS = {
    "product": [_POINTER, _SIZE, _SIZE, _POINTER, _NUMBER, _FLAG, _POINTER, _SIZE, _POINTER, _POINTER, _FLAG],
    "attend": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _FLAG],
    "draft_block": [*[_POINTER] * 5, _SIZE, *[_POINTER] * 9, _FLAG],
    "mend": [_POINTER, _SIZE, *[_POINTER] * 7, _FLAG],
    "decode_layers": [_POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _SIZE, _NUMBER, _FLAG, _POINTER, _POINTER, _FLAG],
}


def kernels(bits: int = 4) -> ctypes.CDLL | None:
    """The functions of kernels.c, for weights of so many bits; None where there are none."""
    return None if why_not(bits) else _loaded()


@functools.lru_cache(maxsize=1)
def _loaded() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_library()))
    for name, types in _ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    library.stream.argtypes, library.stream.restype = [_POINTER, _SIZE, _FLAG], ctypes.c_int64
    library.use_matrix_unit(True)
    return library


def large_pages(size: int) -> torch.Tensor:
    """So many bytes, in pages of two megabytes where the system has them: what is read from one end to the other is
    then read without a search for every fourth kilobyte."""
    memory = mmap.mmap(-1, size + _LARGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _LARGE_PAGE
    return whole[start : start + size]


def _has(*units: str) -> bool:
    able = torch.cpu.get_capabilities()
    return all(able.get(unit) for unit in units)


@functools.lru_cache
def why_not(bits: int = 4) -> str:
    """What is missing here for kernels over weights of `bits` bits, to follow "it needs"; "" if nothing is."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or not _has(*_UNITS):
        return "Linux on a processor with AVX-512 VNNI units"
    if bits == 16:
        return why_not() or ("" if _has(_UNITS_16) else "a processor with AVX-512 BF16 units")
    try:
        if not (library := _library()).exists():
            _compile(library)
    except (OSError, subprocess.SubprocessError, SpecVizError) as error:
        _LOG.info("kernels.c was not compiled: %s", getattr(error, "stderr", None) or error)
        return "the compiler gcc, to compile its kernel once"
    return ""


def _flags() -> tuple[str, ...]:
    return _FLAGS + (_FLAGS_16 if _has(_UNITS_16) else ()) + (_FLAGS_MATRIX if _has(*_UNITS_MATRIX) else ())


def _library() -> Path:
    """Where the compiled kernel lies: by what it is made of."""
    made_of = repr((_flags(), torch.__version__)).encode() + b"".join(part.read_bytes() for part in _PARTS)
    return paths.home() / "kernels" / f"native-{hashlib.sha256(made_of).hexdigest()[:16]}.so"


def _compile(to: Path) -> None:
    if (compiler := shutil.which("gcc")) is None:
        raise FileNotFoundError("gcc")
    to.parent.mkdir(exist_ok=True)
    # torch's own OpenMP: a second one would have threads of its own, which wait by spinning
    openmp = sorted(Path(torch.__file__).with_name("lib").glob("libgomp*"))
    with tempfile.TemporaryDirectory(dir=to.parent) as work:
        made = Path(work) / to.name
        subprocess.run(
            [compiler, *_flags(), str(_SOURCE), *map(str, openmp), "-lm", "-o", str(made)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        os.replace(made, to)
