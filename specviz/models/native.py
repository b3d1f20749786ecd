"""The kernels of native.c, compiled once with the machine's own compiler and kept in SPECVIZ_HOME.

Where that cannot be (another system, an older processor, no compiler) there are none, and torch's operators serve.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
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
_FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-fopenmp", "-mavx512f", "-mavx512bw", "-mavx512vnni", "-mfma",
          "-mf16c")
_SOURCE = Path(__file__).with_name("native.c")
_LOG = logging.getLogger(__name__)
_POINTER, _SIZE, _NUMBER, _FLAG = ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_int


@functools.lru_cache(maxsize=1)
def int4_product():
    """The function of that name in native.c; None where there is none."""
    return _function("int4_product", [_POINTER, _SIZE, _SIZE, _POINTER, _NUMBER, _FLAG, _POINTER, _SIZE, _POINTER,
                                      _POINTER, _POINTER, _FLAG])


@functools.lru_cache(maxsize=1)
def attend():
    """The function of that name in native.c; None where there is none."""
    return _function("attend", [_POINTER, _SIZE, _SIZE, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER,
                                _POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE, _FLAG])


def _function(name: str, types: list):
    if why_not():
        return None
    function = getattr(ctypes.CDLL(str(_library())), name)
    function.argtypes, function.restype = types, None
    return function


@functools.lru_cache(maxsize=1)
def why_not() -> str:
    """Why there are no kernels here, in words that follow "it needs"; "" where there are."""
    able = torch.cpu.get_capabilities()
    if sys.platform != "linux" or platform.machine() != "x86_64" or not all(able.get(unit) for unit in _UNITS):
        return "Linux on a processor with AVX-512 VNNI units"
    try:
        if not (library := _library()).exists():
            _compile(library)
    except (OSError, subprocess.SubprocessError, SpecVizError) as error:
        _LOG.info("native.c was not compiled: %s", getattr(error, "stderr", None) or error)
        return "the compiler gcc, to compile its kernel once"
    return ""


def _library() -> Path:
    """Where the compiled kernel lies: by what it is made of."""
    made_of = repr((_FLAGS, torch.__version__)).encode() + _SOURCE.read_bytes()
    return paths.home() / "kernels" / f"native-{hashlib.sha256(made_of).hexdigest()[:16]}.so"


def _compile(to: Path) -> None:
    if (compiler := shutil.which("gcc")) is None:
        raise FileNotFoundError("gcc")
    to.parent.mkdir(exist_ok=True)
    # torch's own OpenMP: a second one would have threads of its own, which wait by spinning
    openmp = sorted(Path(torch.__file__).with_name("lib").glob("libgomp*"))
    with tempfile.TemporaryDirectory(dir=to.parent) as work:
        made = Path(work) / to.name
        subprocess.run([compiler, *_FLAGS, str(_SOURCE), *map(str, openmp), "-lm", "-o", str(made)], check=True,
                       capture_output=True, text=True, timeout=60)
        os.replace(made, to)
