"""From a model folder to a torch module and a tokenizer: device, precision, memory checked first.

Knows nothing of drafting; the attention implementation is left to the engine that wraps the module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz.errors import FetchError, MemoryBudgetError, PairError, SettingsError
from specviz.hardware.machine import has_bf16_units, resolve_device
from specviz.hardware.options import PRECISIONS
from specviz.kernels import binding
from specviz.loader import end_tokens, llama, model_folder, requirements, tokenizer
from specviz.loader.compatibility import VocabularyMatch, check_pair
from specviz.loader.fetch import Progress, fetch, fetch_small
from specviz.loader.pairs import Pair, Source, find_pair

_DTYPES = {"fp32": torch.float32, "int4": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """One model, ready: a module in evaluation mode without gradients, and its tokenizer."""

    module: torch.nn.Module
    tokenizer: object
    folder: Path
    device: str
    precision: str
    """fp32, bf16, fp16 or int4: what was chosen, never auto. The weights of int4 are read as fp32."""


def load_target(
    pair: Pair | str = "smollm2-135m",
    device: str = "auto",
    precision: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Loaded:
    """A pair's target, fetched if it is not here yet. Raises SpecVizError (FetchError, MemoryBudgetError, ...)."""
    pair = find_pair(pair) if isinstance(pair, str) else pair
    return load_source(pair.target, device, precision, progress, stop)


def load_draft(
    pair: Pair | str,
    device: str = "auto",
    precision: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Loaded:
    """A pair's autoregressive drafter, as `load_target`. Raises PairError if the pair brings none."""
    pair = find_pair(pair) if isinstance(pair, str) else pair
    if pair.draft is None:
        raise PairError(f"{pair.title} brings no drafter model: name one as TARGET+DRAFT, or draft with ngram.")
    return load_source(pair.draft, device, precision, progress, stop)


def check(
    pair: Pair | str, progress: Callable[[Progress], None] | None = None, stop: Callable[[], bool] | None = None
) -> VocabularyMatch | None:
    """Whether a pair's drafter fits its target, from tokenizers and configs alone; None if it brings no drafter.

    Of Hub models only these small files are downloaded. Raises PairError if the two do not fit.
    """
    pair = find_pair(pair) if isinstance(pair, str) else pair
    if pair.draft is None:
        return None
    return check_pair(fetch_small(pair.target, progress, stop), fetch_small(pair.draft, progress, stop))


def load_source(
    source: Source,
    device: str = "auto",
    precision: str = "auto",
    progress: Callable[[Progress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Loaded:
    """One model from wherever it comes."""
    device = resolve_device(device)
    precision = resolve_precision(precision, device, source)
    folder = fetch(source, progress, stop)
    module, its_tokenizer = load_module(folder, device, precision), load_tokenizer(folder)
    end_tokens.unite(module, its_tokenizer)
    return Loaded(module, its_tokenizer, folder, device, precision)


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


def load_module(
    folder: Path | str, device: str = "auto", precision: str = "auto", stock: bool = False
) -> torch.nn.Module:
    """The causal language model of a folder, in evaluation mode, without gradients, on its device.

    A plain Llama comes without transformers, as models.llama has it, unless `stock` asks for transformers' own module.
    Raises FetchError (missing, damaged or foreign weights), MemoryBudgetError, SettingsError.
    """
    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    found = model_folder.inspect(folder)
    requirements.check_memory(found.parameters, device, precision, found.path.name)
    try:
        module = None if stock else llama.read(found, device, _DTYPES[precision])
        if module is None:
            module = _stock(found.path, _DTYPES[precision]).to(device)
    except (MemoryError, torch.OutOfMemoryError):
        raise MemoryBudgetError(
            f"{found.path.name} did not fit the memory of {device} in {precision}: "
            "close other programs, or choose a smaller pair or a lower precision."
        ) from None
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError, AttributeError) as error:
        raise FetchError(f"The weights in {found.path} do not load as a causal LM: {_line(error)}.") from None
    return module.eval().requires_grad_(False)


def _stock(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
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


def stock_like(config) -> torch.nn.Module:
    """transformers' module of a config (models.llama's or its own) with random weights, on the CPU."""
    classes = transformers()
    made = classes.AutoConfig.for_model(**config.to_dict())
    with LOADING:
        return classes.AutoModelForCausalLM.from_config(made, dtype=torch.float32)


def load_config(folder: Path | str, stock: bool = False):
    """The config of a folder: models.llama's for a plain Llama, otherwise, and if `stock` asks for it, transformers'.
    Raises FetchError; never runs code that a folder brings along."""
    folder = Path(folder)
    raw = model_folder.read_config(folder)
    if not stock and (plain := llama.config_of(folder, raw)) is not None:
        return plain
    classes = transformers()
    try:
        config = classes.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = " (it wants to run code of its own, which SpecViz does not do)" if raw.get("auto_map") else ""
        raise FetchError(
            f"The model type {raw['model_type'][:60]!r} is not known to transformers{hint}: {_line(error)}."
        ) from None
    if type(config) not in classes.AutoModelForCausalLM._model_mapping:
        raise FetchError(f"{folder.name} is a {raw['model_type'][:60]} model, which is no causal language model.")
    return config


def load_tokenizer(folder: Path | str, stock: bool = False):
    """The tokenizer of a folder: models.tokenizer's where that is enough, otherwise, and if `stock` asks for it,
    transformers'. Raises FetchError."""
    folder = Path(folder)
    model_folder.check_tokenizer(folder)
    try:
        if not stock and (plain := tokenizer.read(folder)) is not None:
            return plain
        return transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception on a damaged tokenizer.json
        raise FetchError(f"The tokenizer in {folder} does not load: {_line(error)}.") from None


_importing = threading.Lock()
LOADING = threading.Lock()
"""transformers sets torch's default dtype while it builds a module, for all threads alike."""


def transformers():
    """The transformers package, imported only where it is needed (it takes seconds) and told to be silent."""
    with _importing:
        import transformers as package

        package.logging.set_verbosity_error()
        package.logging.disable_progress_bar()
    return package


def _line(error: BaseException) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    return (text if len(text) <= 240 else text[:237] + "...").rstrip(".")
