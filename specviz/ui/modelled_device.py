"""A catalogue device and a built-in shape in the best precision of both, for pages that model another machine."""

from __future__ import annotations

from dataclasses import replace

from specviz.hardware import catalogue, shapes
from specviz.hardware.costs import ModelShape

_WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of a number."""


def modelled(device: str, model: str) -> tuple[catalogue.Device, str, ModelShape]:
    """The device, its precision (bf16 where it has units for it), and the shape stored in that precision."""
    entry = catalogue.device(device)
    precision = "bf16" if "bf16" in entry.peaks else next(iter(entry.peaks))
    width = _WIDTH[precision]
    shape = replace(
        shapes.shape(model), weight_bytes=width, cache_bytes=max(2.0, width), activation_bytes=max(2.0, width)
    )
    return entry, precision, shape
