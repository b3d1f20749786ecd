"""Compiles kernels.c with the machine's gcc, keeps the library in SPECVIZ_HOME, and loads it.

The file's name holds hashes of what it was built from: sources, flags, torch, C library and compiler. Its last 32 bytes
are a checksum of the others: loading a damaged library could end the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz import paths
from specviz.errors import SettingsError, SpecVizError


@dataclass(frozen=True)
class InstructionSet:
    """Processor instructions that the kernels are compiled for."""

    name: str
    capabilities: tuple[str, ...]
    """As torch.cpu.get_capabilities names them."""
    flags: tuple[str, ...]
    """The compiler's."""

    def is_supported(self) -> bool:
        """Whether this processor has them."""
        available = torch.cpu.get_capabilities()
        return all(available.get(name) for name in self.capabilities)


AVX512 = InstructionSet(
    "AVX-512 VNNI",
    ("avx512_f", "avx512_bw", "avx512_vnni"),
    ("-mavx512f", "-mavx512bw", "-mavx512vnni", "-mfma", "-mf16c"),
)
BF16 = InstructionSet("AVX-512 BF16", ("avx512_bf16",), ("-mavx512bf16",))
AMX = InstructionSet("AMX", ("amx_tile", "amx_bf16"), ("-mamx-tile", "-mamx-bf16"))
EXTENSIONS = (BF16, AMX)
"""Used in addition where the processor has them and the compiler knows them; the last is left out first."""

FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC", "-fopenmp")
SOURCE = Path(__file__).with_name("kernels.c")
SOURCES = (SOURCE, *(SOURCE.with_name(f"{part}.h") for part in ("products", "attention", "block")))
SWITCH = "SPECVIZ_KERNELS"
_LIBRARIES_KEPT = 3
_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = 32
_TIMEOUT_S = 60
_LOG = logging.getLogger(__name__)


class BuildError(Exception):
    """The library could not be built or loaded. The message is what is missing, in words that follow "it needs"."""


def instruction_set() -> InstructionSet:
    """The instructions to compile for; further instruction sets would be added here, the fastest first.

    $SPECVIZ_KERNELS is auto (the default) or off. Raises BuildError if there are no kernels for this machine or they
    are off, and SettingsError for another value.
    """
    chosen = os.environ.get(SWITCH, "").strip().lower() or "auto"
    if chosen not in ("auto", "off"):
        raise SettingsError(f"{SWITCH}={chosen[:40]} is not known: set it to auto or off.")
    if chosen == "off":
        raise BuildError(f"the environment variable {SWITCH} to be auto, not off")
    if sys.platform != "linux" or platform.machine() != "x86_64" or not AVX512.is_supported():
        raise BuildError("Linux on a processor with AVX-512 VNNI units")
    return AVX512


def load() -> ctypes.CDLL:
    """The library; compiled if there is none, or if it is damaged or cannot be loaded. Raises BuildError."""
    base = instruction_set()
    extensions = [e for e in EXTENSIONS if e.is_supported()]
    compiler = shutil.which("gcc")
    try:
        path = _library_path((base, *extensions), compiler)
        if _is_intact(path):
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(path))
        _compile(path, base, extensions, compiler)
    except (OSError, SpecVizError) as error:
        raise BuildError(f"a folder in which its compiled kernels can be kept ({_first_line(error)})") from error
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            "a folder from which programs can be loaded, for its compiled kernels: set SPECVIZ_HOME to "
            f"one ({_first_line(error)})"
        ) from error


def _library_path(sets: tuple[InstructionSet, ...], compiler: str | None) -> Path:
    """Where the library of these sources, flags, torch, C library and compiler is kept. Without a compiler: the newest
    of any compiler."""
    made_of = repr((FLAGS, sets, torch.__version__, platform.libc_ver())).encode()
    made_of += b"".join(source.read_bytes() for source in SOURCES)
    folder, name = paths.home() / "kernels", f"native-{hashlib.sha256(made_of).hexdigest()[:16]}"
    if compiler is None:
        return max(folder.glob(f"{name}-*.so"), key=lambda path: path.stat().st_mtime, default=folder / f"{name}.so")
    return folder / f"{name}-{hashlib.sha256(_version(compiler).encode()).hexdigest()[:8]}.so"


def _version(compiler: str) -> str:
    """The output of the compiler's --version; "" if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            [compiler, "--version"], check=True, capture_output=True, text=True, timeout=_TIMEOUT_S
        ).stdout
    return ""


def _is_intact(path: Path) -> bool:
    """Whether the file is there and ends in the checksum of the rest."""
    if not path.exists():
        return False
    content = path.read_bytes()
    return content[-_CHECKSUM_BYTES:] == _CHECKSUM(content[:-_CHECKSUM_BYTES]).digest()


def _compile(to: Path, base: InstructionSet, extensions: list[InstructionSet], compiler: str | None) -> None:
    """Compile the library with as many of the extensions as the compiler knows. Raises BuildError, or OSError if the
    folder cannot be written to."""
    if compiler is None:
        raise BuildError("the compiler gcc, to compile its kernels once")

    def write(library: Path) -> None:
        reason = ""
        for flags in _attempts(base, extensions):
            reason = _run_compiler([compiler, *FLAGS, *flags, str(SOURCE), *_openmp(), "-lm", "-o", str(library)])
            if not reason:
                break
            _LOG.info("kernels.c was not compiled with %s: %s", " ".join(flags), reason)
        else:
            raise BuildError(f"the compiler gcc, to compile its kernels once ({reason})")
        library.write_bytes((content := library.read_bytes()) + _CHECKSUM(content).digest())

    paths.write_atomically(to, write)
    _remove_old(to.parent)


def _attempts(base: InstructionSet, extensions: list[InstructionSet]) -> Iterator[tuple[str, ...]]:
    """The flags with all extensions, then with fewer and fewer."""
    for count in range(len(extensions), -1, -1):
        yield sum((part.flags for part in (base, *extensions[:count])), ())


def _openmp() -> list[str]:
    """torch's own OpenMP library: a second one would add its own threads, which wait by spinning."""
    return [str(path) for path in sorted(Path(torch.__file__).with_name("lib").glob("libgomp*"))]


def _run_compiler(command: list[str]) -> str:
    """The first error that the compiler reports, or "" where it succeeded."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S, env={**os.environ, "LC_ALL": "C"}
        )
    except (OSError, subprocess.SubprocessError) as error:
        return _first_line(error)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return _first_line([*errors, *lines, f"exit code {done.returncode}"][0])


def _first_line(said: object) -> str:
    return next(iter(str(said).splitlines()), "")[:200]


def _remove_old(folder: Path) -> None:
    """Keep the libraries that were compiled last: of this version, and of others that share the folder."""
    with contextlib.suppress(OSError):
        for old in sorted(folder.glob("native-*.so"), key=lambda path: path.stat().st_mtime)[:-_LIBRARIES_KEPT]:
            old.unlink(missing_ok=True)
