"""A GGUF file becomes a Hugging Face folder, once: config, tokenizer, chat template and fp32 safetensors.

`python -m specviz.loader.gguf FILE FOLDER` is how `fetch` runs it: the reader is pure Python and would hold
up everything else in this process, and a child can be stopped at any moment and gives all its memory back.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader.child_process import send

STAGES = ("Reading the GGUF file", "Dequantising the weights", "Writing safetensors")


def convert(file: Path, folder: Path, tell: Callable[[str, int, int], None] | None = None) -> None:
    """Read a GGUF file, dequantise it to fp32 and write it into an existing empty folder.

    `tell(stage, done, of)` is called as it goes. A tied head is not stored twice. Raises FetchError if the
    file is damaged or of a kind that transformers cannot read.
    """
    import torch
    from safetensors.torch import save_file

    from specviz.loader.load_model import transformers

    classes = transformers()
    tell = tell or (lambda stage, done, of: None)
    check_magic(file)
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    tell(STAGES[0], 0, 2)
    try:
        tokenizer = classes.AutoTokenizer.from_pretrained(**where)
        tell(STAGES[0], 1, 2)
        module = classes.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except MemoryError:
        raise FetchError(f"There is not enough memory to convert {file.name}: close other programs.") from None
    except Exception as error:  # gguf and transformers raise many kinds on damaged or unknown files
        reason = " ".join(str(error).split())[:240].rstrip(".") or type(error).__name__
        raise FetchError(f"{file.name} cannot be converted ({reason}): download it again or choose another.") from None
    tell(STAGES[2], 0, 1)
    settings = module.config.to_dict()
    # The loader marks the model as quantised although its weights now are not.
    settings.pop("quantization_config", None)
    type(module.config)(**settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    state, seen = {}, set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            state[name] = tensor.contiguous()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    tell(STAGES[2], 1, 1)


def check_magic(file: Path) -> None:
    """Raises FetchError unless the file starts as a GGUF file does."""
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise FetchError(f"{file} cannot be read ({error.strerror or error}).") from None
    if start != b"GGUF":
        raise FetchError(f"{file} is no GGUF file: download it again.")


def _lighten(tell: Callable[[str, int, int], None]) -> None:
    """Halve the time and tell the progress: transformers parses the file three times over, builds its table of
    names once per module, and reports only to a bar on the terminal. Only ever done in a child process."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    def bar(tensors: Iterable, **_):
        tensors = list(tensors)
        for number, tensor in enumerate(tensors):
            tell(STAGES[1], number, len(tensors))
            yield tensor
        tell(STAGES[1], len(tensors), len(tensors))

    gguf.GGUFReader = functools.lru_cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.lru_cache(gguf.get_tensor_name_map)
    if hasattr(reader, "tqdm"):
        reader.tqdm = bar


def _main(file: str, folder: str) -> None:
    def tell(stage: str, done: int, of: int) -> None:
        send(stage=stage, done=done, of=of)

    try:
        tell(STAGES[0], 0, 2)
        _lighten(tell)
        convert(Path(file), Path(folder), tell)
        send(result=folder)
    except FetchError as error:
        send(error=str(error))
    except OSError as error:
        reason = "the disk is full" if error.errno == 28 else error.strerror or str(error)
        send(error=f"Converting {Path(file).name} failed: {reason}.")


if __name__ == "__main__":
    _main(*sys.argv[1:3])
