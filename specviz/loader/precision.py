"""Precisions: those that a device and a source allow, and the default."""

from __future__ import annotations

import torch

from specviz.errors import SettingsError
from specviz.hardware.machine import has_bf16_units
from specviz.hardware.options import PRECISIONS
from specviz.kernels import binding
from specviz.loader.pairs import Source

_DTYPES = {"fp32": torch.float32, "int4": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(name: str, device: str, source: Source | None = None) -> str:
    """fp32, bf16, fp16 or int4. auto is bf16 on a GPU that has it and fp16 on others; on a CPU fp32, or what a source
    allows where the processor has units for it. Raises SettingsError for int4 where it cannot be had."""
    if name not in PRECISIONS:
        raise SettingsError(f"There is no precision {str(name)[:40]!r}: choose one of {', '.join(PRECISIONS)}.")
    if name == "int4" and device != "cpu":
        raise SettingsError(f"int4 is for processors: on {device} choose bf16, fp16 or fp32.")
    if name == "int4" and (lacking := binding.missing_requirement()):
        raise SettingsError(f"There is no int4 here, as it needs {lacking}: choose bf16 or fp32.")
    if name != "auto":
        return name
    if device.startswith("cuda"):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device == "mps":
        return "fp16"
    return next(iter(() if source is None else usable(source)), "fp32")


def usable(source: Source) -> tuple[str, ...]:
    """The precisions that a source allows on a processor and that this one has units for, the default first."""
    has_units = {"int4": lambda: not binding.missing_requirement(), "bf16": has_bf16_units}
    return tuple(p for p in source.on_cpu if has_units[p]())
