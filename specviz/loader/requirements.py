"""Requirements of a pair (download, disk, memory), computed before anything is fetched, and whether they fit.

Every figure is modelled from catalogue data or from the Hub's file sizes; free memory is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specviz import paths
from specviz.errors import SpecVizError
from specviz.format import gigabytes
from specviz.hardware.memory import free_memory_bytes
from specviz.loader import model_folder
from specviz.loader.hub_config import hub_config
from specviz.loader.pairs import Pair, Size, Source, size_of
from specviz.loader.runnable import check_before_download
from specviz.loader.space import disk_bytes, free_disk_bytes, memory_bytes


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a pair in bytes. All are modelled, except the free figures, which are measured."""

    download: int | None
    """Still to be downloaded; 0 if all is here; None if not known without asking the Hub."""
    disk: int | None
    """Peak disk use while it is fetched and converted."""
    memory: int | None
    """Weights, K and V, and working memory on the device."""
    free_disk: int
    free_memory: int
    fits: bool
    """False if disk or memory is known to be short, or a model cannot run; True also when the sizes are not known."""
    sentence: str


def needs(
    pair: Pair, device: str = "auto", precision: str = "auto", rows: int = 1, tokens: int = 2048, ask_hub: bool = False
) -> Needs:
    """What `pair` needs on a device in a precision, with K and V for `rows` rows of `tokens` tokens.

    Catalogue figures are used where there are any; with `ask_hub` a Hub id without them is looked up over
    the network (a few kilobytes). Raises SpecVizError only for a device or precision that cannot be had.
    """
    from specviz.hardware.machine import resolve_device
    from specviz.loader.local_copy import fetched
    from specviz.loader.precision import resolve_precision

    device = resolve_device(device)
    precision = resolve_precision(precision, device, pair.target)
    total = _Total()
    for source in (pair.target, pair.draft):
        if source is not None:
            total.refusals += [words] if (words := _refusal(source, ask_hub)) else []
            _add(total, source, fetched(source), precision, rows * tokens, ask_hub)
    free_disk = min(free_disk_bytes(folder) for folder in total.folders)
    free_memory = free_memory_bytes(device)
    short_disk, short_memory = total.disk > free_disk, total.memory > free_memory
    return Needs(
        download=total.download if total.known else None,
        disk=total.disk if total.known else None,
        memory=total.memory if total.known else None,
        free_disk=free_disk,
        free_memory=free_memory,
        fits=not (short_disk or short_memory or total.refusals),
        sentence=_sentence(total, device, precision, free_disk, free_memory),
    )


@dataclass
class _Total:
    """Sums over a pair's models, in bytes."""

    download: int = 0
    disk: int = 0
    memory: int = 0
    known: bool = True
    """Whether the sizes of all models are known."""
    folders: set[Path] = field(default_factory=lambda: {paths.home()})
    """Where the files are written."""
    refusals: list[str] = field(default_factory=list)
    """Why a model cannot run, one sentence each."""


def _add(total: _Total, source: Source, here: Path | None, precision: str, tokens: int, ask_hub: bool) -> None:
    """Add one model to the sums. here: its folder, if it was fetched before."""
    size = size_of(source)
    if here is not None:
        size = _folder_size(here) or size
    elif size is None and source.kind == "hub" and ask_hub:
        size = hub_size(source)
    if size is None:
        total.known = False
        return
    if here is None:
        total.download += size.download_bytes
        total.disk += disk_bytes(source, size)
        if source.kind == "hub":
            total.folders.add(_hub_cache())
    total.memory += memory_bytes(size, precision, tokens)


def _sentence(total: _Total, device: str, precision: str, free_disk: int, free_memory: int) -> str:
    """The needs in words, and whether they fit."""
    if total.refusals:
        return total.refusals[0]
    where = "memory" if device == "cpu" else f"{device} memory"
    if not total.known:
        sentence = "What this pair needs is not known until the Hub has been asked."
    else:
        fetch = f"Download {gigabytes(total.download)}, disk {gigabytes(total.disk)}, "
        start = fetch if total.download else "Nothing to fetch; "
        sentence = (
            f"{start}{where} about {gigabytes(total.memory)} in {precision} "
            f"(free now: disk {gigabytes(free_disk)}, {where} {gigabytes(free_memory)})."
        )
    if total.memory > free_memory:
        advice = " It does not fit the memory: close other programs, or choose a smaller pair"
        return sentence + advice + (" or bf16." if precision == "fp32" else ".")
    if total.disk > free_disk:
        return sentence + " It does not fit the disk: make room, or set SPECVIZ_HOME and HF_HOME to another disk."
    return sentence + " It fits." if total.known else sentence


def _refusal(source: Source, ask_hub: bool) -> str:
    """Why SpecViz cannot run a model, from its config.json alone, in a sentence; empty if it can or is not known."""
    from specviz.loader import hub

    try:
        if source.kind == "folder" and (Path(source.path) / "config.json").is_file():
            model_folder.read_config(Path(source.path))
        elif source.kind == "hub" and (here := hub.cached(source)) is not None:
            model_folder.read_config(here)
        elif source.kind == "hub" and ask_hub:
            check_before_download(hub_config(source.repo, source.revision), source.repo)
    except SpecVizError as error:
        return str(error)
    except Exception:  # many kinds (network, gated, not found); the fetch itself reports which
        return ""
    return ""


def hub_size(source: Source) -> Size | None:
    """The size of a Hub model as the Hub tells it (network), or None if it cannot be had."""
    try:
        import huggingface_hub

        api = huggingface_hub.HfApi()
        info = api.model_info(source.repo, revision=source.revision, files_metadata=True, timeout=10)
        listed = [f.rfilename for f in info.siblings or ()]
        chosen = set(model_folder.choose_files(listed))
        download = sum(f.size or 0 for f in info.siblings or () if f.rfilename in chosen)
        parameters = info.safetensors.total if info.safetensors else download // 2
    except Exception:  # many kinds (network, gated, not found); the fetch itself reports which
        return None
    return Size(parameters, download, 0, 0) if parameters else None


def _folder_size(path: Path) -> Size | None:
    try:
        found = model_folder.inspect(path)
    except SpecVizError:
        return None
    return Size(found.parameters, 0, cache_values(found.config), int(found.config.get("vocab_size") or 0))


def cache_values(config: dict) -> int:
    """Numbers of K and V per token from a config.json: 2 x layers x KV heads x head size; 0 if not given."""
    text: dict = config["text_config"] if isinstance(config.get("text_config"), dict) else config

    def pick(*names: str) -> int:
        return next((int(text[name]) for name in names if isinstance(text.get(name), int)), 0)

    heads = pick("num_attention_heads", "n_head")
    width = pick("hidden_size", "n_embd")
    head = pick("head_dim") or (width // heads if heads else 0)
    return 2 * pick("num_hidden_layers", "n_layer") * (pick("num_key_value_heads") or heads) * head


def _hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)
