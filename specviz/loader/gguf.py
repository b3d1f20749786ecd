"""Converts a GGUF file to a Hugging Face folder: config, tokenizer, chat template and fp32 safetensors.

`fetch` runs it as `python -m specviz.loader.gguf FILE FOLDER`: the reader is pure Python and would block this process,
and a child process can be stopped at any time and frees all its memory.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specviz.errors import FetchError
from specviz.loader import gguf_facts, model_folder, pretokenizers
from specviz.loader.child_process import send

STAGES = ("Reading the GGUF file", "Dequantising the weights", "Writing safetensors")


def convert(file: Path, folder: Path, report: Callable[[str, int, int], None] | None = None) -> None:
    """Read a GGUF file, dequantise it to fp32 and write it into an existing empty folder.

    `report(stage, done, of)` is called as it goes. A tied head is not stored twice. Raises FetchError if the
    file is damaged or of a kind that transformers cannot read.
    """
    import torch
    from safetensors.torch import save_file

    classes = transformers()
    report = report or (lambda stage, done, of: None)
    check_magic(file)
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    report(STAGES[0], 0, 2)
    try:
        facts, tokens, factors, elements = read_facts(file)
        tokenizer = _tokenizer(facts, file.name, where)
        report(STAGES[0], 1, 2)
        config = classes.AutoConfig.from_pretrained(**where)
        gguf_facts.complete(config, facts, factors, gguf_facts.end_tokens(facts, tokens), file.name)
        module = classes.AutoModelForCausalLM.from_pretrained(**where, config=config, dtype=torch.float32)
        _check_weights(module, elements, file.name)
    except FetchError:
        raise
    except MemoryError:
        raise FetchError(f"There is not enough memory to convert {file.name}: close other programs.") from None
    except Exception as error:  # gguf and transformers raise many kinds on damaged or unknown files
        reason = " ".join(str(error).split())[:240].rstrip(".") or type(error).__name__
        raise FetchError(f"{file.name} cannot be converted ({reason}): download it again or choose another.") from None
    report(STAGES[2], 0, 1)
    settings = module.config.to_dict()
    # The loader marks the model as quantised although its weights now are not.
    settings.pop("quantization_config", None)
    type(module.config)(**settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model_folder.write_format(folder)
    state, seen = {}, set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            state[name] = tensor.contiguous()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    report(STAGES[2], 1, 1)


def read_facts(file: Path) -> tuple[dict[str, Any], list[str], list[float] | None, int]:
    """Metadata, vocabulary, RoPE frequency factors and number of weights of a GGUF file."""
    import gguf

    reader = gguf.GGUFReader(file)
    lists = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores")
    facts = {key: field.contents() for key, field in reader.fields.items() if key not in lists}
    tokens = reader.fields["tokenizer.ggml.tokens"].contents() if lists[0] in reader.fields else []
    by_name = {tensor.name: tensor for tensor in reader.tensors}
    factors = by_name.pop(gguf_facts.FACTORS, None)
    count = sum(int(tensor.n_elements) for tensor in by_name.values())
    return facts, tokens, None if factors is None else factors.data.tolist(), count


def _check_weights(module, elements: int, name: str) -> None:
    """Raises FetchError unless the module has as many weights as the file: else some were dropped or are random."""
    own = sum({p.data_ptr(): p.numel() for p in module.parameters()}.values())
    if own != elements:
        raise FetchError(
            f"{name} holds {elements:,} weights where a {module.config.model_type} of its sizes has "
            f"{own:,} (biases, perhaps): choose the same model as safetensors, or another one."
        )


def _tokenizer(facts: dict[str, Any], name: str, where: dict):
    """transformers' tokenizer of a GGUF file, with the splitting that the file names and its own spaces and bos."""
    kind, architecture = facts.get("tokenizer.ggml.model"), facts.get("general.architecture")
    rules = pretokenizers.rules_of(facts.get("tokenizer.ggml.pre"), name) if kind == "gpt2" else None
    tokenizer = transformers().PreTrainedTokenizerFast.from_pretrained(**where)
    backend = tokenizer.backend_tokenizer
    space = facts.get("tokenizer.ggml.add_space_prefix")
    if rules is not None:
        if space:
            raise FetchError(
                f"{name} sets tokenizer.ggml.add_space_prefix for a byte-level vocabulary, which "
                "SpecViz does not do, so its tokens would be wrong: choose the same model as safetensors."
            )
        pretokenizers.apply(rules, backend)
        if rules.add_bos and "tokenizer.ggml.add_bos_token" not in facts and tokenizer.bos_token is not None:
            tokenizer.add_bos_token = True
    elif kind == "llama" and space is False and not str(architecture).startswith("gemma"):
        pretokenizers.without_space_prefix(backend)
    return _as_written(tokenizer)


def _as_written(tokenizer):
    """The same tokenizer with all settings in tokenizer.json: bos and eos are added by its template, and no class of
    an architecture puts its own splitting in place of the file's."""
    tokenizer.update_post_processor()
    names = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template=tokenizer.chat_template, **names
    )


def transformers():
    """The transformers package; imported here because models.load imports this module."""
    from specviz.loader.config_and_tokenizer import transformers as package

    return package()


def check_magic(file: Path) -> None:
    """Raises FetchError unless the file starts as a GGUF file does."""
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise FetchError(f"{file} cannot be read ({error.strerror or error}).") from None
    if start != b"GGUF":
        raise FetchError(f"{file} is no GGUF file: download it again.")


def _lighten(report: Callable[[str, int, int], None]) -> None:
    """Halve the time and report progress: transformers parses the file three times over, builds its table of
    names once per module, and reports only to a bar on the terminal. Only ever done in a child process."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reader

    def bar(tensors: Iterable, **_):
        tensors = list(tensors)
        for number, tensor in enumerate(tensors):
            report(STAGES[1], number, len(tensors))
            yield tensor
        report(STAGES[1], len(tensors), len(tensors))

    for name in ("GGUFReader", "get_tensor_name_map"):
        setattr(gguf, name, functools.lru_cache(getattr(gguf, name)))
    if hasattr(reader, "tqdm"):
        reader.tqdm = bar


def _main(file: str, folder: str) -> None:
    def report(stage: str, done: int, of: int) -> None:
        send(stage=stage, done=done, of=of)

    try:
        report(STAGES[0], 0, 2)
        _lighten(report)
        convert(Path(file), Path(folder), report)
        send(result=folder)
    except FetchError as error:
        send(error=str(error))
    except OSError as error:
        reason = "the disk is full" if error.errno == 28 else error.strerror or str(error)
        send(error=f"Converting {Path(file).name} failed: {reason}.")


if __name__ == "__main__":
    _main(*sys.argv[1:3])
