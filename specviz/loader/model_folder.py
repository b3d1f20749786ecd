"""Inspects a model folder without loading it: completeness, number of weights, config."""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import FetchError
from specviz.loader.runnable import check_runs

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "tokenizer_config.json")
_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
)
_MAX_HEADER = 100_000_000
_FORMAT_FILE = "conversion.json"
FORMAT = 3
"""Version of what a conversion from GGUF writes. 1, without a file that says so, had the wrong pre-tokenizer; 2 left
out scaled rotary positions and tokens that end a turn."""


@dataclass(frozen=True)
class Folder:
    """A complete model folder."""

    path: Path
    config: dict
    parameters: int
    """Elements stored in the safetensors files."""
    file_bytes: int
    stored: str
    """The most common type of those elements, as safetensors names it, such as F32 or BF16."""


def inspect(path: Path | str) -> Folder:
    """Check that a folder holds a config, a tokenizer and whole safetensors files; reads headers only.

    Raises FetchError with a sentence that says what is missing or damaged.
    """
    path = Path(path)
    if not path.is_dir():
        raise FetchError(f"There is no folder {path}.")
    config = read_config(path)
    check_tokenizer(path)
    by_type: dict[str, int] = {}
    files = weight_files(path)
    for file in files:
        for entry in read_header(file).values():
            by_type[entry["dtype"]] = by_type.get(entry["dtype"], 0) + math.prod(entry["shape"])
    return Folder(
        path,
        config,
        sum(by_type.values()),
        sum(f.stat().st_size for f in files),
        max(by_type, key=lambda name: by_type[name], default=""),
    )


def write_format(path: Path) -> None:
    """Mark a folder as converted from a GGUF file by this version."""
    (path / _FORMAT_FILE).write_text(json.dumps({"format": FORMAT}), encoding="utf-8")


def is_current(path: Path) -> bool:
    """Whether a folder that was converted from a GGUF file is of this version; False if it does not say."""
    try:
        return json.loads((path / _FORMAT_FILE).read_bytes())["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def choose_files(listed: list[str]) -> list[str]:
    """Of a repository's file names, those that a model needs here; no safetensors among them means none exist."""
    top = [name for name in listed if "/" not in name]
    weights = [n for n in top if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", n)]
    weights = weights or [n for n in top if n.endswith((".safetensors", ".safetensors.index.json"))]
    rest = [n for n in top if n in _SMALL_FILES or n.startswith(("tokenizer", "chat_template"))]
    return sorted(weights + rest)


def read_config(path: Path) -> dict:
    """config.json of a model folder as a dict. Raises FetchError if it is missing, damaged or not usable here."""
    try:
        config = json.loads((path / "config.json").read_bytes())
    except FileNotFoundError:
        raise FetchError(f"{path} holds no config.json: it is not a model folder in the Hugging Face layout.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FetchError(f"{path / 'config.json'} cannot be read ({_brief(error)}): download it again.") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise FetchError(f"{path / 'config.json'} does not name a model_type: it is not a transformers model.")
    if config.get("quantization_config"):
        method = config["quantization_config"]
        method = method.get("quant_method", "unknown") if isinstance(method, dict) else "unknown"
        raise FetchError(
            f"The weights in {path} are quantised ({method}); SpecViz runs fp32, bf16 and fp16 weights, "
            "and GGUF files, which it converts: choose the unquantised model."
        )
    check_runs(config, path.name)
    return config


def check_tokenizer(path: Path) -> None:
    """Raises FetchError if a folder holds no tokenizer."""
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise FetchError(f"{path} holds no tokenizer (tokenizer.json): copy it beside config.json.")


def weight_files(path: Path) -> list[Path]:
    """The safetensors files of a folder: those of its index, or all of them. Raises FetchError if one is missing."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            listed = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
            files = [path / name for name in listed]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FetchError(f"{index} cannot be read ({_brief(error)}): copy or download it again.") from None
        if any(Path(name).name != name for name in listed):
            raise FetchError(f"{index} names files outside its folder: it was not read.")
        if missing := [file.name for file in files if not file.is_file()]:
            raise FetchError(f"{path} lacks {missing[0]} ({len(missing)} of {len(files)} weight files missing).")
        return files
    if (single := path / "model.safetensors").is_file():
        return [single]
    if files := sorted(path.glob("*.safetensors")):
        return files
    if list(path.glob("*.bin")) or list(path.glob("*.pt*")):
        raise FetchError(
            f"{path} holds its weights as pickle files only, which can run code when opened: "
            "convert them to safetensors, or choose a model that has them."
        )
    raise FetchError(f"{path} holds no safetensors file: there are no weights to load.")


def read_header(file: Path) -> dict[str, dict]:
    """name -> {dtype, shape, data_offsets} of a safetensors file. Raises FetchError if the file is cut short,
    too long, or of another kind."""
    again = "copy or download it again"
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise FetchError(f"{file} is cut short or is no safetensors file: {again}.")
            entries = json.loads(stream.read(length))
        entries.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        for entry in entries.values():
            math.prod(entry["shape"])
            entry["dtype"].upper()
    except OSError as error:
        raise FetchError(f"{file} cannot be read ({_brief(error)}).") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise FetchError(f"{file} is no safetensors file, or its header is damaged: {again}.") from None
    if size != 8 + length + end:
        raise FetchError(f"{file} has {size:,} bytes where its header promises {8 + length + end:,}: {again}.")
    return entries


def _brief(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0][:120]
