"""How a run gets one of the trained drafters in assets/drafters. Knows no loop and no page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specviz.drafters import checkpoints
from specviz.drafters.base import Drafter
from specviz.drafters.hybrid import HybridDrafter
from specviz.drafters.parallel import ParallelDrafter
from specviz.drafters.trained_autoregressive import TrainedAutoregressiveDrafter, load_module
from specviz.errors import FetchError
from specviz.models.causal import CausalModel
from specviz.orders import trained
from specviz.trace import Settings


def opener(kind: str, target: CausalModel, folder: Path | None = None) -> Callable[[Settings], Drafter]:
    """Load a trained drafter's weights once; each run then makes its own drafter of them with its settings.

    folder: of one's own weights in the same format; default: the shipped ones. Raises FetchError if there are none
    and PairError if they were trained for another target.
    """
    folder = folder or trained().get(kind)
    if folder is None:
        raise FetchError(f"There is no trained {kind} drafter here. Known are: {', '.join(trained()) or 'none'}.")
    if kind == "autoregressive":
        module, draft_ids = load_module(folder, target)
        model = CausalModel(module)
        return lambda settings: TrainedAutoregressiveDrafter(model, draft_ids, target, settings)
    net = checkpoints.load_block_net(folder).to(target.device)
    drafter = HybridDrafter if kind == "hybrid" else ParallelDrafter
    drafter(net, target, Settings())  # does it fit?
    return lambda settings: drafter(net, target, settings)
