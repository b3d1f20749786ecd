"""Opens drafters whose weights are in a folder: shipped, trained here, or published (DFlash, DSpark)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from specviz.drafters import checkpoints
from specviz.drafters.base import Drafter
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.names import trained
from specviz.drafters.parallel import ParallelDrafter
from specviz.drafters.trained_autoregressive import TrainedAutoregressiveDrafter, load_module
from specviz.errors import FetchError
from specviz.models.causal import CausalModel
from specviz.trace.records import Settings


def opener(name: str, target: CausalModel, folder: Path | None = None) -> Callable[[Settings], Drafter]:
    """Load a drafter's weights once, and return a function that builds a drafter for a run's settings.

    name: hybrid, parallel or autoregressive for the shipped weights, or the path of a folder (which `folder` may also
    give), whose config.json says what it is. Raises FetchError if there is no such drafter or its files are damaged,
    and PairError if it was made for another target.
    """
    folder = folder or trained().get(name)
    if folder is None:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            raise FetchError(
                f"There is no trained {name[:80]} drafter here, nor a folder of that name. Known are: "
                f"{', '.join(trained()) or 'none'}."
            )
    kind = _kind(folder)
    if kind is None:
        from specviz.drafters import published, published_net  # with transformers' modelling code: seconds

        published_weights = published_net.load_net(folder, target)
        return lambda settings: published.PublishedDrafter(published_weights, target, settings)
    if kind == "autoregressive":
        module, draft_ids = load_module(folder, target)
        model = CausalModel(module, quantize=True)
        return lambda settings: TrainedAutoregressiveDrafter(model, draft_ids, target, settings)
    net = checkpoints.load_block_net(folder).to(target.device)
    drafter = HybridDrafter if kind == "hybrid" else ParallelDrafter
    drafter(net, target, Settings())  # raises PairError if it does not fit
    return lambda settings: drafter(net, target, settings)


def stamp(name: str) -> int:
    """A number that changes when the weights in a folder are rewritten; 0 for the shipped drafters."""
    folder = Path(name).expanduser()
    if name in trained() or not folder.is_dir():
        return 0
    return max((file.stat().st_mtime_ns for file in folder.glob("*.*") if file.is_file()), default=0)


def _kind(folder: Path) -> str | None:
    """The drafter's kind in a config.json that SpecViz wrote; None for any other."""
    try:
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None  # published_config.read reports what is wrong
    ours = isinstance(about, dict) and about.get("format") == checkpoints.FORMAT
    return str(about.get("kind")) if ours else None
