"""The command `train drafter`: gradient training of a drafter on the shards of a folder."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from specviz.cli.options import Subparsers, add_pair
from specviz.cli.progress import reporting
from specviz.errors import SettingsError
from specviz.paths import write_atomically
from specviz.worker import Job

if TYPE_CHECKING:
    import torch

    from specviz.training import recipes
    from specviz.training.features import TapStore
    from specviz.training.loop import Progress


class _Options(TypedDict):
    """Keywords of the training loop."""

    share_done: Callable[[Progress], float]
    checkpoint: Path
    report: Callable[[Progress], None]


def add_parser(trains: Subparsers) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
    drafter = trains.add_parser("drafter", help="train a drafter on the shards of a folder")
    drafter.add_argument("kind", choices=("autoregressive", "hybrid"), help="hybrid also gives the parallel drafter")
    drafter.add_argument("folder", metavar="FOLDER", help="of the shards")
    drafter.add_argument("to", metavar="TO", help="where the drafters' folders are written")
    add_pair(drafter)
    drafter.add_argument("--minutes", type=float, default=30.0, metavar="M", help="(default: %(default)s)")
    drafter.add_argument("--learning-rate", type=float, default=2e-4, metavar="X", help="(default: %(default)s)")
    drafter.add_argument("--from", dest="start", metavar="FOLDER", help="a trained hybrid drafter to begin with")
    drafter.set_defaults(handler=drafter_command)


def drafter_command(arguments: argparse.Namespace) -> int:
    """Train one drafter (hybrid: two) and write its folder. Interrupted training continues from its checkpoint."""
    if not 0 < arguments.minutes <= 10_000 or not 0 < arguments.learning_rate < 1:
        raise SettingsError("--minutes must be above 0 and --learning-rate between 0 and 1.")
    block = arguments.kind == "hybrid"
    if arguments.start and not block:
        raise SettingsError("--from is for hybrid drafters.")
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel
    from specviz.training.features import TapStore

    with reporting() as job:
        store = TapStore(Path(arguments.folder), CausalModel(load_target(arguments.pair, "cpu", "auto", job).module))
        about = (_train_hybrid if block else _train_autoregressive)(arguments, store, job)
    print(json.dumps(about))
    return 0


def _train_hybrid(arguments: argparse.Namespace, store: TapStore, job: Job) -> dict[str, Any]:
    """Train the parallel and the hybrid drafter, which share one net; returns the facts of their folders."""
    from specviz.drafters import checkpoints
    from specviz.loader.load_model import load_target
    from specviz.training import confidence, recipes
    from specviz.training.block import BlockRecipe

    start = checkpoints.load_block_net(Path(arguments.start)).requires_grad_(True) if arguments.start else None
    target = load_target(arguments.pair, "cpu", "fp32", job).module
    s = recipes.setting(target, store, None if start is None else start.draft_ids)
    work = recipes.work_folder(Path(arguments.to) / "training", arguments.kind)
    net = start or recipes.block_net(s)
    _load_or_start(net, work, None if start else lambda: recipes.start_block(net, s))
    recipe = BlockRecipe(learning_rate=arguments.learning_rate)
    done = recipes.train_block(net, s, recipe, **_options(arguments, work, job))
    confidence.fit(net, s)
    about = {
        "confidence_temperatures": confidence.calibrate(net, s),
        "alpha_by_position": recipes.alpha_block(net, s),
        **_amounts(done, s),
    }
    for kind in ("parallel", "hybrid"):
        checkpoints.save(Path(arguments.to) / kind, kind, net, about)
    return about


def _train_autoregressive(arguments: argparse.Namespace, store: TapStore, job: Job) -> dict[str, Any]:
    """Train the autoregressive drafter; returns the facts of its folder."""
    from specviz.drafters import checkpoints
    from specviz.loader.load_model import load_target
    from specviz.training import recipes
    from specviz.training.causal import CausalRecipe

    s = recipes.setting(load_target(arguments.pair, "cpu", "fp32", job).module, store)
    work = recipes.work_folder(Path(arguments.to) / "training", arguments.kind)
    net = recipes.causal_net(s)
    _load_or_start(net, work, lambda: recipes.start_causal(net, s))
    recipe = CausalRecipe(learning_rate=arguments.learning_rate)
    done = recipes.train_causal(net, s, recipe, **_options(arguments, work, job))
    about = {"alpha_by_position": {"autoregressive": [recipes.alpha_causal(net, s)]}, **_amounts(done, s)}
    checkpoints.save(Path(arguments.to) / "autoregressive", "autoregressive", net, about)
    return about


def _load_or_start(net: torch.nn.Module, work: Path, start: Callable[[], object] | None) -> None:
    """Load the start of an earlier call, or fit it in closed form (`start`) and keep it. None: the net is trained."""
    import torch

    begin = work / "start.pt"
    if begin.exists():
        net.load_state_dict(torch.load(begin, weights_only=True))
    elif start is not None:
        print(json.dumps(start()), file=sys.stderr)
        write_atomically(begin, lambda file: torch.save(net.state_dict(), file))


def _options(arguments: argparse.Namespace, work: Path, job: Job) -> _Options:
    def share_done(at: Progress) -> float:
        return at.seconds / 60 / arguments.minutes

    def report(at: Progress) -> None:
        job.report(f"Training: step {at.step}, loss {at.losses[-1]}, alpha {at.alphas}", share_done(at))

    return {"share_done": share_done, "checkpoint": work / "checkpoint.pt", "report": report}


def _amounts(done: Progress, s: recipes.Setting) -> dict[str, int]:
    return {"steps": done.step, "seconds": round(done.seconds), "answer_tokens": s.store.answer_tokens(s.train)}
