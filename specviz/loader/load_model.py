"""Loads a model folder as a torch module and a tokenizer; device, precision and memory are checked first.

Attention is replaced later, by models.causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specviz.errors import FetchError, MemoryBudgetError, PairError
from specviz.hardware.machine import resolve_device
from specviz.loader import end_tokens, llama, model_folder
from specviz.loader.causal_module import CausalModule
from specviz.loader.compatibility import VocabularyMatch, check_pair
from specviz.loader.config_and_tokenizer import LOADING, _line, load_config, load_tokenizer, transformers
from specviz.loader.fetch import fetch, fetch_small
from specviz.loader.finite_weights import check_weights, stored_tensor
from specviz.loader.pairs import Pair, Source, find_pair
from specviz.loader.precision import _DTYPES, resolve_precision
from specviz.loader.space import check_memory
from specviz.worker import Job


@dataclass(frozen=True)
class Loaded:
    """A loaded model: a module in evaluation mode without gradients, and its tokenizer."""

    module: CausalModule
    tokenizer: object
    folder: Path
    device: str
    precision: str
    """fp32, bf16, fp16 or int4, never auto. For int4 the weights are loaded as fp32."""


def load_target(
    pair: Pair | str = "smollm2-135m",
    device: str = "auto",
    precision: str = "auto",
    job: Job | None = None,
) -> Loaded:
    """A pair's target, fetched if it is not here yet. Raises SpecVizError (FetchError, MemoryBudgetError, ...)."""
    pair = find_pair(pair) if isinstance(pair, str) else pair
    return load_source(pair.target, device, precision, job)


def load_draft(
    pair: Pair | str,
    device: str = "auto",
    precision: str = "auto",
    job: Job | None = None,
) -> Loaded:
    """A pair's autoregressive drafter, as `load_target`. Raises PairError if the pair has none."""
    pair = find_pair(pair) if isinstance(pair, str) else pair
    if pair.draft is None:
        raise PairError(f"{pair.title} has no drafter model: name one as TARGET+DRAFT, or draft with ngram.")
    return load_source(pair.draft, device, precision, job)


def check(pair: Pair | str, job: Job | None = None) -> VocabularyMatch | None:
    """Whether a pair's drafter fits its target, from tokenizers and configs alone; None if the pair has no drafter.

    Of Hub models only these small files are downloaded. Raises PairError if the two do not fit.
    """
    pair = find_pair(pair) if isinstance(pair, str) else pair
    if pair.draft is None:
        return None
    return check_pair(fetch_small(pair.target, job), fetch_small(pair.draft, job))


def load_source(
    source: Source,
    device: str = "auto",
    precision: str = "auto",
    job: Job | None = None,
) -> Loaded:
    """A model from any Source, fetched if needed."""
    device = resolve_device(device)
    precision = resolve_precision(precision, device, source)
    folder = fetch(source, job)
    module, its_tokenizer = load_module(folder, device, precision), load_tokenizer(folder)
    end_tokens.set_end_tokens(module, its_tokenizer)
    return Loaded(module, its_tokenizer, folder, device, precision)


def load_module(folder: Path | str, device: str = "auto", precision: str = "auto", stock: bool = False) -> CausalModule:
    """The causal language model of a folder, in evaluation mode, without gradients, on its device.

    A plain Llama is loaded by loader.llama, without transformers, unless `stock`: transformers' module.
    Raises FetchError (missing, damaged or foreign weights), NotFiniteError, MemoryBudgetError, SettingsError.
    """
    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    found = model_folder.inspect(folder)
    check_memory(found.parameters, device, precision, found.path.name)
    try:
        module: CausalModule | None = None if stock else llama.read(found, device, _DTYPES[precision])
        if module is None:
            module = _stock(found.path, _DTYPES[precision]).to(device)
    except (MemoryError, torch.OutOfMemoryError):
        raise MemoryBudgetError(
            f"{found.path.name} did not fit the memory of {device} in {precision}: "
            "close other programs, or choose a smaller pair or a lower precision."
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError, AttributeError) as error:
        raise FetchError(f"The weights in {found.path} do not load as a causal LM: {_line(error)}.") from None
    check_weights(module.named_parameters(), found.path.name, precision, lambda name: stored_tensor(found.path, name))
    return module.eval().requires_grad_(False)


def _stock(folder: Path, dtype: torch.dtype) -> CausalModule:
    """transformers' module of a folder, on the CPU."""
    classes = transformers()
    config = load_config(folder, stock=True)
    with LOADING:
        module, report = classes.AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    # transformers fills weights that are missing with random numbers and only warns: that would be no model.
    if missing := sorted(report.get("missing_keys", ())):
        raise FetchError(
            f"The weights in {folder} are incomplete: {missing[0]} and {len(missing) - 1} more are "
            "missing. Copy or download the folder again."
        )
    return module


def stock_like(config: Any) -> CausalModule:
    """transformers' module of a config (loader.llama's or its own) with random weights, on the CPU."""
    classes = transformers()
    made = classes.AutoConfig.for_model(**config.to_dict())
    with LOADING:
        return classes.AutoModelForCausalLM.from_config(made, dtype=torch.float32)
