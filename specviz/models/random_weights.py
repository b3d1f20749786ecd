"""Models with random weights of any config, to time their passes without a download.

The cost of a pass does not depend on the values of the weights, so its time is that of the real model in this library.
The text that such a model generates is noise; it must never be shown as output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from specviz.errors import MemoryBudgetError, PairError, SettingsError, SpecVizError
from specviz.format import gigabytes
from specviz.hardware.config_shapes import model_shape
from specviz.hardware.costs import ModelShape
from specviz.hardware.memory import free_memory_bytes
from specviz.loader.causal_module import CausalModule
from specviz.loader.config_and_tokenizer import LOADING, transformers
from specviz.loader.space import WEIGHT_BYTES
from specviz.models.causal import CausalModel
from specviz.worker import Job

_BLOCK = 2**20
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NOT_HERE = {"gpt_oss": "its attention has sinks", "deepseek_v3": "its attention is latent"}
"""Architectures whose cost is counted but that the engine cannot forward, and why."""


def check(config: dict, device: str, precision: str, name: str) -> ModelShape:
    """The shape with the bytes per weight of this precision. Raises MemoryBudgetError if it does not fit,
    PairError if the engine cannot run it, SettingsError for a precision without random weights, SpecVizError if it
    cannot be counted; each before anything is allocated."""
    if precision not in _DTYPES:
        raise SettingsError(f"Random weights cannot be stored in {precision}: choose one of {', '.join(_DTYPES)}.")
    width = WEIGHT_BYTES[precision]
    shape = model_shape(config, weight_bytes=width, cache_bytes=width, name=name)
    wanted, free = int(1.15 * shape.stored_bytes) + 200_000_000, free_memory_bytes(device)
    if wanted > free:
        raise MemoryBudgetError(
            f"{name} with random weights needs about {gigabytes(wanted)} in {precision}, and {gigabytes(free)} are "
            f"free on {device}: it can only be modelled here. To time it, choose a smaller shape or fewer bits."
        )
    kind = (config.get("text_config") or config).get("model_type")
    if kind in _NOT_HERE:
        raise PairError(f"{name} cannot be timed here, as {_NOT_HERE[kind]}: it is modelled only.")
    return shape


def build(
    config: dict,
    device: str,
    precision: str,
    name: str,
    job: Job | None = None,
) -> CausalModel:
    """A CausalModel of that config with random weights. Raises as `check` does, and Stopped."""
    made = module(config, device, precision, name, job)
    with _in_words(name, device):
        return CausalModel(made)


def module(
    config: dict,
    device: str,
    precision: str,
    name: str,
    job: Job | None = None,
) -> CausalModule:
    """transformers' module of that config with random weights. Raises as `build` does."""
    shape = check(config, device, precision, name)
    job = job or Job()
    job.report(f"Making {name} with random weights", 0.0)
    package = transformers()
    from transformers.initialization import no_init_weights

    plain = dict(config.get("text_config") or config)
    for key in ("quantization_config", "auto_map", "torch_dtype", "dtype", "architectures", "transformers_version"):
        plain.pop(key, None)
    dtype = _DTYPES[precision]
    with _in_words(name, device):
        known = package.AutoConfig.for_model(plain.pop("model_type"), **plain)
        with LOADING, torch.device(device), no_init_weights():
            made = package.AutoModelForCausalLM.from_config(known, dtype=dtype)
        _fill(made, dtype, device, job.part(0.0, 1.0, f"Filling {gigabytes(shape.stored_bytes)} with noise"))
        return made


@contextlib.contextmanager
def _in_words(name: str, device: str) -> Iterator[None]:
    """Turn errors of building a model into sentences."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise MemoryBudgetError(f"{name} did not fit the memory of {device}: it can only be modelled here.") from None
    except SpecVizError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200]
        raise SettingsError(f"This config does not make a model ({text or type(error).__name__}).") from None


@torch.no_grad()
def _fill(module: torch.nn.Module, dtype: torch.dtype, device: str, job: Job) -> None:
    """Noise of a usual size into every matrix, ones into gains, zeros into biases. One block of noise is copied over
    and over: drawing billions of numbers would take minutes, and the time of a product does not depend on them."""
    generator = torch.Generator().manual_seed(0)
    noise = (0.02 * torch.randn(_BLOCK, generator=generator)).to(device, dtype)
    total = sum(p.numel() for p in module.parameters())
    done = 0
    for name, parameter in module.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        flat = parameter.view(-1)
        for start in range(0, flat.numel(), 64 * _BLOCK):
            job.check()
            for at in range(start, min(flat.numel(), start + 64 * _BLOCK), _BLOCK):
                part = flat[at : at + _BLOCK]
                part.copy_(noise[: part.numel()])
            job.report("", (done + start) / total)
        done += parameter.numel()
