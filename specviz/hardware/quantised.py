"""Bytes per weight of quantised models, from their config.json; scales are included where their number is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from specviz.errors import SettingsError

SCALE_BYTES = 2
"""Of one scale, or one zero point that is not packed: 16 bits."""
MXFP4_BYTES = 4.25 / 8
"""4 bits and an 8-bit scale per 32 weights."""


@dataclass(frozen=True)
class Stored:
    """Bytes per weight of a model's parts; None: as its unquantised weights."""

    layers: float | None = None
    experts: float | None = None
    head: float | None = None


def stored(config: dict, plain: float) -> Stored | None:
    """How the weights of a config.json are stored; None if it is not quantised. plain: bytes of a weight that is not.

    Raises SettingsError with the method's name where the bits per weight do not follow from the config.
    """
    found = next(
        (config[key] for key in ("quantization_config", "compression_config", "quantization") if config.get(key)), None
    )
    if found is None:
        return None
    if not isinstance(found, dict):
        raise _unknown("of an unreadable kind")
    method = str(found.get("quant_method", "mlx" if "bits" in found and "quantization" in config else None))
    if method == "mxfp4":
        return Stored(experts=MXFP4_BYTES)
    read = _METHODS.get(method)
    width = read(found) if read else None
    if width is None:
        raise _unknown(method)
    return Stored(width, None, width if method == "mlx" or found.get("lm_head") is True else plain)


def _unknown(method: str) -> SettingsError:
    return SettingsError(
        f"How many bytes a weight takes is not known: the config's quantisation ({method[:40]}) does "
        "not say it in a form known here. Give the config of the unquantised model."
    )


def _bitsandbytes(found: dict) -> float | None:
    """4 bits with a 32-bit scale per 64 weights, or, doubly quantised, an 8-bit one and 32 bits per 256 of those."""
    if found.get("load_in_4bit") or found.get("_load_in_4bit"):
        return 0.5 + ((1 + 4 / 256) / 64 if found.get("bnb_4bit_use_double_quant") else 4 / 64)
    return 1.0 if found.get("load_in_8bit") or found.get("_load_in_8bit") else None


def _grouped(
    found: dict, bits_key: str = "bits", group_key: str = "group_size", zero: float | None = None
) -> float | None:
    """Packed bits, a 16-bit scale per group, and a zero point of `zero` bytes (None: as wide as a weight); a group
    size of -1 means one scale per output, which is left out as too few to count."""
    bits, group = found.get(bits_key), found.get(group_key)
    if not _whole(bits) or not 1 <= bits <= 16 or not isinstance(group, int) or isinstance(group, bool) or group == 0:
        return None
    return bits / 8 + ((SCALE_BYTES + (bits / 8 if zero is None else zero)) / group if group > 0 else 0)


def _awq(found: dict) -> float | None:
    names = ("bits", "group_size") if "bits" in found else ("w_bit", "q_group_size")
    return _grouped(found, *names, zero=None if found.get("zero_point", True) else 0)


def _fp8(found: dict) -> float | None:
    """One byte, and a 32-bit scale per block where there are blocks."""
    block = found.get("weight_block_size")
    return 1.0 if not block else 1.0 + 4 / (block[0] * block[1]) if _block(block) else None


def _compressed(found: dict) -> float | None:
    """compressed-tensors: all groups of modules must store weights alike, else one figure would be wrong."""
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not groups or found.get("format") == "dense":
        return None
    widths = {_compressed_group(group, found.get("format")) for group in groups.values()}
    return widths.pop() if len(widths) == 1 else None


def _compressed_group(group: object, form: object) -> float | None:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or not _whole(bits := weights.get("num_bits")):
        return None
    strategy, size = weights.get("strategy"), weights.get("group_size")
    zero = 0 if weights.get("symmetric", True) else bits / 8
    if strategy in ("channel", "tensor"):
        return bits / 8
    if strategy in ("group", "tensor_group") and _whole(size):
        fp4 = "nvfp4" in str(form)  # an 8-bit scale per group
        return bits / 8 + ((1 if fp4 else SCALE_BYTES) + zero) / size
    block = weights.get("block_structure")
    return bits / 8 + SCALE_BYTES / (block[0] * block[1]) if strategy == "block" and _block(block) else None


def _hqq(found: dict) -> float | None:
    inner = found.get("quant_config")
    inner = inner.get("weight_quant_params") if isinstance(inner, dict) else None
    return _grouped(inner, "nbits", zero=SCALE_BYTES) if isinstance(inner, dict) else None


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _block(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_whole, value))


_METHODS: dict[str, Callable[[dict], float | None]] = {
    "bitsandbytes": _bitsandbytes,
    "gptq": lambda found: _grouped({"group_size": 128} | found),
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: 1.0,
    "compressed-tensors": _compressed,
    "hqq": _hqq,
    "mlx": lambda found: (
        _grouped(found, zero=SCALE_BYTES) if all(not isinstance(v, dict) for v in found.values()) else None
    ),
}
