"""Checkpoints of trained drafters: a folder with config.json and model.safetensors.

Weight matrices are stored as int8 with one scale per output row (a quarter of float32; less than a hundredth of
each row's own size is lost), everything else as float16. What is the target's own, embedding and head, is not
in the file: only the list of its token ids that the drafter can propose.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specviz.drafters.block_net import BlockConfig, BlockNet
from specviz.errors import FetchError
from specviz.loader.finite_weights import check_weights
from specviz.paths import ASSETS, write_atomically


class TrainedNet(Protocol):
    """A net that `save` writes."""

    config: BlockConfig

    def state_dict(self) -> dict[str, torch.Tensor]: ...


FOLDER = ASSETS / "drafters"
"""Folder of the shipped drafters."""
FORMAT = "specviz-drafter-1"


def quantized(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is written to the file: matrices as NAME (int8) and NAME.scale (float32 per row)."""
    out: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if tensor.ndim == 2 and tensor.is_floating_point() and min(tensor.shape) > 64:
            scale = tensor.float().abs().amax(1).clamp(min=1e-12) / 127
            out[name] = (tensor.float() / scale[:, None]).round().to(torch.int8)
            out[name + ".scale"] = scale
        else:
            out[name] = tensor.half() if tensor.is_floating_point() else tensor.to(torch.int32)
    return {k: v.contiguous() for k, v in out.items()}


def restored(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `quantized`: float32 weights and int64 ids."""
    out = {}
    for name, tensor in stored.items():
        if name.endswith(".scale"):
            continue
        if tensor.dtype == torch.int8:
            out[name] = tensor.float() * stored[name + ".scale"][:, None]
        else:
            out[name] = tensor.float() if tensor.is_floating_point() else tensor.long()
    return out


def save(folder: Path, kind: str, net: TrainedNet, about: dict) -> Path:
    """Write a net's folder. kind: autoregressive, parallel or hybrid; about: JSON values for config.json."""
    weights = net.state_dict()
    if kind == "parallel":
        weights = {k: v for k, v in weights.items() if not k.startswith("serial.")}
    config = dataclasses.asdict(net.config)
    if kind == "parallel":
        config["serial"] = 0
    write_atomically(
        folder / "model.safetensors", lambda file: save_file(quantized(weights), file, metadata={"format": FORMAT})
    )
    text = json.dumps({"format": FORMAT, "kind": kind, "shape": config, **about}, indent=1) + "\n"
    write_atomically(folder / "config.json", lambda file: file.write_text(text, encoding="utf-8"))
    return folder


def read(folder: Path) -> tuple[str, BlockConfig, dict[str, torch.Tensor], dict]:
    """kind, shape, weights (restored) and the whole config.json. Raises FetchError for anything else."""
    folder = Path(folder)
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if about.get("format") != FORMAT:
            raise FetchError(f"{folder.name} is not a drafter that SpecViz trained: its config.json does not say so.")
        shape = dict(about["shape"])
        shape["taps"] = tuple(shape["taps"])
        config = BlockConfig(**shape)
        with safe_open(folder / "model.safetensors", "pt") as file:
            weights = restored({k: file.get_tensor(k) for k in file.keys()})  # noqa: SIM118 (no mapping)
        check_weights(weights.items(), f"the drafter in {folder}")
        return about["kind"], config, weights, about
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise FetchError(f"The drafter in {folder} cannot be read: {error}.") from None


def load_block_net(folder: Path) -> BlockNet:
    """The net of a parallel or hybrid drafter. Raises FetchError if the folder holds none."""
    kind, config, weights, _ = read(folder)
    if kind not in ("parallel", "hybrid"):
        raise FetchError(f"The drafter in {folder} is {kind}, not parallel or hybrid.")
    try:
        net = BlockNet(config, weights["draft_ids"])
        net.load_state_dict(weights)
    except (KeyError, RuntimeError) as error:
        raise FetchError(f"The drafter in {folder} lacks weights: {str(error).splitlines()[0]}.") from None
    return net.eval().requires_grad_(False)
