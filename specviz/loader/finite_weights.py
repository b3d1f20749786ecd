"""Check of weights at loading: tensors with NaN or infinite values are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from specviz.errors import NotFiniteError
from specviz.loader.model_folder import weight_files


def check_weights(
    tensors: Iterable[tuple[str, torch.Tensor]],
    whose: str,
    precision: str = "fp32",
    stored: Callable[[str], torch.Tensor | None] = lambda name: None,
) -> None:
    """Raise NotFiniteError if a weight is NaN or infinite. Synchronizes with the device once.

    stored: returns a tensor as stored in its file, to distinguish a damaged file from weights beyond the range of
    `precision`.
    """
    named = [(name, t) for name, t in tensors if t.is_floating_point() and t.numel() and t.device.type != "meta"]
    if not named:
        return
    # minimum and maximum are finite only if all values are: one pass over the weights, no temporary copy
    ends = torch.stack([end.float() for _, t in named for end in torch.aminmax(t)])
    for (name, _), finite in zip(named, ends.view(-1, 2).isfinite().all(1).tolist()):
        if not finite:
            before = stored(name)
            if before is not None and bool(before.isfinite().all()):
                raise NotFiniteError(
                    f"The weights of {whose} do not fit {precision}: {name} has values beyond its range. "
                    "Choose bf16 or fp32."
                )
            raise NotFiniteError(
                f"The weights of {whose} are damaged: {name} has numbers that are NaN or infinite. "
                "Download or copy them again."
            )


def stored_tensor(folder: Path, name: str) -> torch.Tensor | None:
    """A tensor of a model folder as stored in its file; None if there is none of that name."""
    for file in weight_files(folder):
        try:
            with safe_open(file, "pt") as tensors:
                if name in tensors.keys():  # noqa: SIM118 (no mapping)
                    return tensors.get_tensor(name)
        except (OSError, SafetensorError):
            return None
    return None
