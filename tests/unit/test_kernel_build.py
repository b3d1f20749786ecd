"""The build of kernels.c falls back with a reason, its library is checked, and so is every tensor that C is given.

Most tests replace gcc by a script that copies a library compiled once, so that they are quick.
"""

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from specviz.errors import SettingsError
from specviz.kernels import binding, build
from specviz.kernels.packed import PackedLinear, pack
from specviz.loader.precision import resolve_precision
from specviz.models.attention import attention_metadata
from specviz.models.cache import RaggedCache

here = pytest.mark.skipif(
    bool(binding.missing_requirement()), reason=f"the kernels need {binding.missing_requirement()}"
)
FAKE = """#!/bin/sh
case "$*" in *--version*) echo "{version}"; exit 0;; esac
echo "$*" >> {folder}/calls
{body}
while [ $# -gt 1 ]; do [ "$1" = -o ] && cp {library} "$2"; shift; done
exit 0
"""
REJECT = 'case "$*" in *{flag}*) echo "gcc: error: unrecognized option {flag}" >&2; exit 1;; esac'


def clear_cache() -> None:
    """Clear the cached library and reasons."""
    binding.missing_requirement.cache_clear()
    binding._library.cache_clear()


@pytest.fixture
def fresh(empty_home, monkeypatch):
    """An empty home, with the cached library cleared before and after."""
    clear_cache()
    yield empty_home
    monkeypatch.undo()
    clear_cache()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, Path]:
    """kernels.c compiled without optimisation, with and without BF16."""
    folder = tmp_path_factory.mktemp("compiled")
    libraries = {"bf16": folder / "bf16.so", "base": folder / "base.so"}
    base = build.AVX512.flags
    for name, flags in (("bf16", (*base, *build.BF16.flags)), ("base", base)):
        subprocess.run(
            [
                "gcc",
                "-O0",
                *build.FLAGS[1:],
                *flags,
                build.SOURCE,
                *build._openmp(),
                "-lm",
                "-o",
                libraries[name],
            ],
            check=True,
        )
    return libraries


@pytest.fixture
def compiler(fresh, compiled, tmp_path, monkeypatch):
    """Puts a replacement for gcc on the PATH. Returns a function that sets what it does; `.calls()` lists its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def use(body: str = "", version: str = "gcc 1", library: str = "bf16") -> None:
        script = FAKE.format(version=version, folder=tmp_path, body=body, library=compiled[library])
        (folder / "gcc").write_text(script)
        (folder / "gcc").chmod(0o755)
        clear_cache()

    def calls() -> list[str]:
        return (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []

    use()
    use.calls = calls
    return use


def libraries(home: Path) -> list[Path]:
    return sorted((home / "kernels").glob("*.so"))


def pretend(monkeypatch, *extensions: build.InstructionSet) -> None:
    """A processor with the base instructions and these, whatever this one has; the kernels are not switched off."""
    monkeypatch.delenv(build.SWITCH, raising=False)
    names = [name for part in (build.AVX512, *extensions) for name in part.capabilities]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))
    monkeypatch.setattr(build.sys, "platform", "linux")
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    clear_cache()


@pytest.mark.parametrize(
    "failure", [FileNotFoundError("gcc"), subprocess.TimeoutExpired("gcc", 60), PermissionError("gcc")]
)
def test_without_a_working_compiler_there_are_no_kernels_and_a_sentence_says_so(fresh, monkeypatch, failure):
    """A compiler that vanishes, hangs or may not be run: never an error, and int4 says what it needs."""

    def fail(*_, **__):
        raise failure

    pretend(monkeypatch, build.BF16)
    monkeypatch.setattr(build.shutil, "which", lambda name: name)
    monkeypatch.setattr(build.subprocess, "run", fail)
    assert "gcc" in binding.missing_requirement() and binding.kernels() is None and binding.kernels(16) is None
    with pytest.raises(SettingsError, match=r"it needs the compiler gcc.*choose bf16 or fp32"):
        resolve_precision("int4", "cpu")
    assert not list((fresh / "kernels").iterdir())


def test_without_gcc_or_the_instructions_the_reason_names_them(fresh, monkeypatch):
    pretend(monkeypatch)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert binding.missing_requirement() == "the compiler gcc, to compile its kernels once"
    assert "AVX-512 BF16 units" not in binding.missing_requirement(16)  # gcc comes first
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    clear_cache()
    assert "AVX-512 VNNI units" in binding.missing_requirement() and binding.kernels() is None


@here
def test_the_compilers_first_error_is_the_reason(compiler):
    compiler(body='echo "kernels.c: warning: x" >&2; echo "kernels.c:7:1: fatal error: no omp.h" >&2; exit 1')
    assert binding.missing_requirement() == (
        "the compiler gcc, to compile its kernels once (kernels.c:7:1: fatal error: no omp.h)"
    )
    assert not libraries(Path(os.environ["SPECVIZ_HOME"]))


@here
def test_a_home_that_cannot_be_written_to_is_the_reason(compiler, fresh):
    (fresh / "kernels").parent.mkdir(parents=True, exist_ok=True)
    (fresh / "kernels").write_text("a file where the folder should be")
    assert binding.missing_requirement().startswith("a folder in which its compiled kernels can be kept")


@here
def test_flags_that_the_compiler_does_not_know_are_left_out_one_set_at_a_time(compiler, monkeypatch):
    """First AMX, then BF16; without BF16 there are kernels for 4, 8 and 32 bits, but none for 16."""
    pretend(monkeypatch, build.BF16, build.AMX)
    compiler(body=REJECT.format(flag="-mamx-tile"))
    assert binding.kernels(16) is not None and len(compiler.calls()) == 2
    compiler(
        body=REJECT.format(flag="-mamx-tile") + "\n" + REJECT.format(flag="-mavx512bf16"),
        version="gcc 2",
        library="base",
    )
    assert binding.kernels(4) is not None and binding.kernels(16) is None
    assert binding.missing_requirement(16) == "a compiler that knows AVX-512 BF16 (gcc 10 or later)"
    flags = [("-mamx-tile" in call, "-mavx512bf16" in call) for call in compiler.calls()]
    assert flags == [(True, True), (False, True), (True, True), (False, True), (False, False)]
    with pytest.raises(ValueError, match="AVX-512 BF16"):
        PackedLinear(torch.randn(16, 32), 16)
    clear_cache()
    assert binding.kernels(4) is not None and len(compiler.calls()) == 5  # found again, not compiled again


@here
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not a library" * 1000,
        lambda content: content[:4000] + bytes([content[4000] ^ 1]) + content[4001:],
        lambda content: Path(torch._C.__file__).read_bytes(),
    ],
    ids=["truncated", "empty", "text", "one bit", "another library"],
)
def test_a_damaged_library_is_compiled_again(compiler, fresh, damage):
    assert binding.kernels() is not None
    (path,) = libraries(fresh)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(content))
    clear_cache()
    assert binding.kernels() is not None and len(compiler.calls()) == 2
    assert path.read_bytes() == content


@here
@pytest.mark.parametrize("failures, compiled_times", [(1, 2), (99, 2)])
def test_a_library_that_cannot_be_loaded_is_compiled_once_more_and_then_reported(
    compiler, fresh, monkeypatch, failures, compiled_times
):
    """As on a file system mounted noexec: once, or always."""
    assert binding.kernels() is not None
    clear_cache()
    tries, load = [], ctypes.CDLL

    def refuse(path, *rest):
        tries.append(path)
        if len(tries) <= failures:
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path, *rest)

    monkeypatch.setattr(build.ctypes, "CDLL", refuse)
    missing = binding.missing_requirement()
    assert (missing == "") == (failures == 1) and len(compiler.calls()) == compiled_times
    if missing:
        assert "set SPECVIZ_HOME" in missing and "failed to map segment" in missing and binding.kernels() is None


@here
def test_each_compiler_and_c_library_has_a_library_of_its_own_and_old_ones_are_removed(compiler, fresh, monkeypatch):
    for version in range(5):
        compiler(version=f"gcc {version}")
        assert binding.kernels() is not None
        for age, path in enumerate(reversed(libraries(fresh))):
            os.utime(path, (10**9, path.stat().st_mtime - 100 - age))
    assert len(compiler.calls()) == 5 and len(libraries(fresh)) == build._LIBRARIES_KEPT
    monkeypatch.setattr(build.platform, "libc_ver", lambda: ("glibc", "9.99"))
    clear_cache()
    assert binding.kernels() is not None and len(compiler.calls()) == 6


@here
def test_an_existing_library_is_loaded_without_a_compiler(compiler, fresh, monkeypatch):
    assert binding.kernels() is not None
    clear_cache()
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert binding.kernels() is not None and len(compiler.calls()) == 1


def test_allocation_falls_back_to_small_pages_without_transparent_huge_pages(monkeypatch):
    """madvise then fails with EINVAL."""

    class Plain(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(binding.mmap, "mmap", Plain)
    memory = binding.alloc_huge_pages(5000)
    assert memory.fill_(3).sum() == 15000 and memory.data_ptr() % 2**21 == 0


@here
@pytest.mark.parametrize("index", range(4))
def test_a_structure_that_differs_from_the_c_is_refused_at_load(compiler, monkeypatch, index):
    structures = list(binding._STRUCTURES)
    fields = [("extra", ctypes.c_long), *structures[index]._fields_]
    structures[index] = type("Changed", (ctypes.Structure,), {"_fields_": fields})
    monkeypatch.setattr(binding, "_STRUCTURES", structures)
    with pytest.raises(RuntimeError, match="struct_layouts"):
        binding.kernels()


def test_an_address_is_given_only_for_a_tensor_of_the_right_shape_type_layout_and_device():
    good = torch.zeros(4, 6)
    assert binding.address("x", good, (4, 6)) == good.data_ptr()
    for bad in (good[:3], good.double(), good.t().contiguous().t(), good.to("meta"), good.flatten()):
        with pytest.raises(ValueError, match=r"^x: kernels.c needs \[4, 6\], torch.float32, contiguous, on cpu"):
            binding.address("x", bad, (4, 6))


@here
def test_products_and_attention_refuse_tensors_of_other_shapes_and_types():
    layer = PackedLinear(torch.randn(16, 64), 8, nearest=True)
    with pytest.raises(ValueError, match=r"^x:"):
        layer(torch.zeros(2, 32))
    for gain in (torch.ones(32), torch.ones(64, dtype=torch.bfloat16), torch.ones(128)[::2]):
        with pytest.raises(ValueError, match=r"^gain:"):
            layer(torch.zeros(2, 64), gain, 1e-5)
    layer.packed = pack(torch.randn(16, 64), 4, nearest=True)
    with pytest.raises(ValueError, match=r"^weight:"):
        layer(torch.zeros(2, 64))
    index, table = torch.zeros(3, dtype=torch.int64), torch.zeros(3, 1, 64)
    for arguments, name in (
        ((index.int(), index, index, table, table), "slots"),
        ((index, index[:2], index, table, table), "positions"),
        ((index, index, index, table.double(), table), "cos"),
        ((index, index, index, table, table[:2]), "sin"),
    ):
        with pytest.raises(ValueError, match=f"^{name}:"):
            attention_metadata(*arguments, 1, 1, 16)


@here
def test_layers_refuse_a_cache_of_another_type_and_hidden_states_of_another_width():
    from specviz.models.attention import PackedAttention
    from specviz.models.native_layers import NativeLayers

    shapes = ((192, 96), (96, 64), (128, 96), (96, 64))
    run = NativeLayers(
        [(torch.ones(96), torch.ones(96))], [[torch.randn(shape) for shape in shapes]], 1e-5, 1, 64, 8, nearest=True
    )
    tables = torch.zeros(2, 1, 64)
    for dtype, width, name in ((torch.bfloat16, 96, "keys"), (torch.float32, 64, "hidden")):
        cache = RaggedCache(1, torch.device("cpu"), dtype)
        cache.add(0, 16)
        with pytest.raises(ValueError, match=f"^{name}:"):
            run(torch.zeros(2, width), PackedAttention(cache.plan([0], [2])), tables, tables)


@here
@pytest.mark.parametrize("extensions", [(), (build.BF16,), build.EXTENSIONS], ids=["base", "bf16", "amx"])
def test_the_c_compiles_without_a_warning(extensions, tmp_path):
    flags = [flag for part in (build.AVX512, *extensions) for flag in part.flags]
    done = subprocess.run(
        [
            "gcc",
            *build.FLAGS,
            *flags,
            "-Wall",
            "-Wextra",
            "-Werror",
            build.SOURCE,
            "-lm",
            "-o",
            tmp_path / "native.so",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def sanitized(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    """native_sanitized.py in a process of its own, with the address sanitizer in front of the memory allocator."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(runtime).is_absolute():
        pytest.skip("this gcc has no address sanitizer")
    script, root = Path(__file__).with_name("native_sanitized.py"), Path(__file__).parents[2]
    return subprocess.run(
        [
            sys.executable,
            script,
            home,
            *arguments,
            "-O1",
            "-g",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=all",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(root)},
    )


@here
def test_no_function_reads_or_writes_outside_its_memory(tmp_path):
    """Under the address and undefined-behaviour sanitizers; with scratch memory that is too small they do stop it."""
    done = sanitized(tmp_path)
    assert done.returncode == 0 and "all functions ran" in done.stdout, done.stderr[:3000]
    overrun = sanitized(tmp_path, "overrun")
    assert overrun.returncode != 0 and "heap-buffer-overflow" in overrun.stderr, overrun.stderr[:3000]


def test_the_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(build.SWITCH, "off")
    with pytest.raises(build.BuildError, match="SPECVIZ_KERNELS to be auto"):
        build.instruction_set()


def test_an_unknown_value_of_the_switch_is_refused(monkeypatch):
    monkeypatch.setenv(build.SWITCH, "avx9")
    with pytest.raises(SettingsError, match="set it to auto or off"):
        build.instruction_set()
