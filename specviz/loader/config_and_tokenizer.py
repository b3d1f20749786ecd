"""Loads config and tokenizer of a model folder; transformers is imported only for models that need it."""

from __future__ import annotations

import threading
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader import llama, model_folder, tokenizer


def load_config(folder: Path | str, stock: bool = False):
    """The config of a folder: loader.llama's for a plain Llama, otherwise, and if `stock`, transformers'.
    Raises FetchError; never runs code from the folder."""
    folder = Path(folder)
    raw = model_folder.read_config(folder)
    if not stock and (plain := llama.config_of(folder, raw)) is not None:
        return plain
    classes = transformers()
    try:
        config = classes.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = " (it needs to run code from its folder, which SpecViz does not do)" if raw.get("auto_map") else ""
        raise FetchError(
            f"The model type {raw['model_type'][:60]!r} is not known to transformers{hint}: {_line(error)}."
        ) from None
    if type(config) not in classes.AutoModelForCausalLM._model_mapping:
        raise FetchError(f"{folder.name} is a {raw['model_type'][:60]} model, which is no causal language model.")
    return config


def load_tokenizer(folder: Path | str, stock: bool = False):
    """The tokenizer of a folder: loader.tokenizer's where that is sufficient, otherwise, and if `stock`,
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
    """The transformers package, imported when first needed (it takes seconds), with its messages switched off."""
    with _importing:
        import transformers as package

        package.logging.set_verbosity_error()
        package.logging.disable_progress_bar()
    return package


def _line(error: BaseException) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    return (text if len(text) <= 240 else text[:237] + "...").rstrip(".")
