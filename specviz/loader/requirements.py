"""What a pair will need (download, disk, memory) and whether it fits, told before anything is fetched.

Every figure is modelled from catalogue data or from what the Hub says of its files; free memory is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Needs:
    """What a pair asks of a machine, in bytes. All modelled, except the free figures, which are measured."""

    download: int | None
    """Still to be downloaded; 0 if all is here; None if not known without asking the Hub."""
    disk: int | None
    """Most room taken while it is fetched and converted."""
    memory: int | None
    """Weights, K and V, and working room, on the device."""
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
    download = disk = memory = 0
    places = {paths.home()}
    known = True
    refusals = []
    for source in (pair.target, pair.draft):
        if source is None:
            continue
        refusals += [words] if (words := _why_not(source, ask_hub)) else []
        here, size = fetched(source), size_of(source)
        if here is not None:
            size = _folder_size(here) or size
        elif size is None and source.kind == "hub" and ask_hub:
            size = hub_size(source)
        if size is None:
            known = False
            continue
        if here is None:
            download += size.download_bytes
            disk += disk_bytes(source, size)
            if source.kind == "hub":
                places.add(_hub_cache())
        memory += memory_bytes(size, precision, rows * tokens)
    free_disk = min(free_disk_bytes(place) for place in places)
    free_memory = free_memory_bytes(device)
    short_disk, short_memory = disk > free_disk, memory > free_memory
    where = "memory" if device == "cpu" else f"{device} memory"
    if not known:
        sentence = "What this pair needs is not known until the Hub has been asked."
    else:
        start = f"Download {gigabytes(download)}, disk {gigabytes(disk)}, " if download else "Nothing to fetch; "
        sentence = (
            f"{start}{where} about {gigabytes(memory)} in {precision} "
            f"(free now: disk {gigabytes(free_disk)}, {where} {gigabytes(free_memory)})."
        )
    if refusals:
        sentence = refusals[0]
    elif short_memory:
        sentence += " It does not fit the memory: close other programs, or choose a smaller pair"
        sentence += " or bf16." if precision == "fp32" else "."
    elif short_disk:
        sentence += " It does not fit the disk: make room, or set SPECVIZ_HOME and HF_HOME to another disk."
    elif known:
        sentence += " It fits."
    return Needs(
        download if known else None,
        disk if known else None,
        memory if known else None,
        free_disk,
        free_memory,
        not (short_disk or short_memory or refusals),
        sentence,
    )


def _why_not(source: Source, ask_hub: bool) -> str:
    """Why SpecViz cannot run a model, from its config.json alone, in a sentence; empty if nothing is known against."""
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
    """Numbers of K and V per token from a config.json: 2 x layers x KV heads x head size; 0 if not told."""
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
