"""A GGUF file becomes a Hugging Face folder, once: config, tokenizer, chat template and fp32 safetensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specviz.errors import FetchError


def convert(file: Path, folder: Path, step: Callable[[int, int], None] | None = None) -> None:
    """Read a GGUF file, dequantise it to fp32 and write it into an existing empty folder.

    `step(done, of)` is called between the parts of the work; it may raise to stop. A tied head is not
    stored twice. Raises FetchError if the file is damaged or of a kind that transformers cannot read.
    """
    import torch
    from safetensors.torch import save_file

    from specviz.models.load import transformers

    classes = transformers()
    step = step or (lambda done, of: None)
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    check_magic(file)
    try:
        step(0, 4)
        tokenizer = classes.AutoTokenizer.from_pretrained(**where)
        step(1, 4)
        module = classes.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except MemoryError:
        raise FetchError(f"There is not enough memory to convert {file.name}: close other programs.") from None
    except FetchError:
        raise
    except Exception as error:  # gguf and transformers raise many kinds on damaged or unknown files
        reason = " ".join(str(error).split())[:240] or type(error).__name__
        raise FetchError(f"{file.name} cannot be converted: {reason.rstrip('.')}.") from None
    step(2, 4)
    settings = module.config.to_dict()
    # The loader marks the model as quantised although its weights now are not.
    settings.pop("quantization_config", None)
    type(module.config)(**settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    step(3, 4)
    state, seen = {}, set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            state[name] = tensor.contiguous()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    step(4, 4)


def check_magic(file: Path) -> None:
    """Raises FetchError unless the file starts as a GGUF file does."""
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise FetchError(f"{file} cannot be read ({error.strerror or error}).") from None
    if start != b"GGUF":
        raise FetchError(f"{file} is no GGUF file: download it again.")
