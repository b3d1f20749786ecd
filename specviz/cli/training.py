"""The commands `train` and `drafters` of `python -m specviz`: corpus, training, evaluation and export of drafters."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specviz.cli import drafter_evaluation, drafter_test
from specviz.cli.drafter_evaluation import reports
from specviz.drafters.names import trained
from specviz.errors import SettingsError
from specviz.loader.pairs import EMBEDDED


def add_parsers(subparsers) -> None:
    """Add both commands; each parser sets `handler`, a function from the parsed arguments to an exit code."""
    train = subparsers.add_parser("train", help="make a corpus and train drafters on it")
    trains = train.add_subparsers(title="commands", metavar="COMMAND", required=True)
    corpus = trains.add_parser(
        "corpus",
        help="let the target write conversations",
        description=(
            "The target answers prompts as people write them. Shards go to FOLDER; a shard is a function of the seed "
            "and its number, and an interrupted call is continued by the next one. With --import an existing corpus is "
            "copied to FOLDER instead."
        ),
    )
    corpus.add_argument("folder", metavar="FOLDER")
    corpus.add_argument("--pair", default=EMBEDDED, metavar="P")
    corpus.add_argument(
        "--tokens", type=int, default=1_000_000, metavar="N", help="answer tokens (default: %(default)s)"
    )
    corpus.add_argument(
        "--rows", type=int, default=64, metavar="N", help="conversations at a time (default: %(default)s)"
    )
    corpus.add_argument("--seed", type=int, default=0, metavar="N")
    corpus.add_argument(
        "--share",
        default="1/1",
        metavar="I/N",
        help="write every N-th shard only, so that N processes can work on one folder (default: %(default)s)",
    )
    corpus.add_argument("--import", dest="source", metavar="FILE", help="a corpus file (.npz) to copy")
    corpus.set_defaults(handler=corpus_command)
    drafter = trains.add_parser("drafter", help="train a drafter on the shards of a folder")
    drafter.add_argument("kind", choices=("autoregressive", "hybrid"), help="hybrid also gives the parallel drafter")
    drafter.add_argument("folder", metavar="FOLDER", help="of the shards")
    drafter.add_argument("to", metavar="TO", help="where the drafters' folders are written")
    drafter.add_argument("--pair", default=EMBEDDED, metavar="P")
    drafter.add_argument("--minutes", type=float, default=30.0, metavar="M", help="(default: %(default)s)")
    drafter.add_argument("--learning-rate", type=float, default=2e-4, metavar="X", help="(default: %(default)s)")
    drafter.add_argument("--from", dest="start", metavar="FOLDER", help="a trained hybrid drafter to begin with")
    drafter.set_defaults(handler=drafter_command)

    drafters = subparsers.add_parser("drafters", help="evaluate, test and export drafters")
    commands = drafters.add_subparsers(title="commands", metavar="COMMAND", required=True)
    drafter_evaluation.add_parser(commands)
    drafter_test.add_parser(commands)
    export = commands.add_parser("export", help="write the autoregressive drafter as a standard Hugging Face folder")
    export.add_argument("name", metavar="NAME", help="autoregressive, or a folder of your own")
    export.add_argument("folder", metavar="FOLDER")
    export.add_argument("--pair", default=EMBEDDED, metavar="P")
    export.set_defaults(handler=export_command)


def corpus_command(arguments: argparse.Namespace) -> int:
    """Write shards of conversations, or import one."""
    if arguments.tokens < 1 or not 1 <= arguments.rows <= 512:
        raise SettingsError("--tokens must be at least 1 and --rows from 1 to 512.")
    share = _share(arguments.share)
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel
    from specviz.training import shards, synthesis
    from specviz.training.corpus import Corpus

    folder, show = Path(arguments.folder), reports()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.source:
        corpus = Corpus.load(Path(arguments.source))
        corpus.save(folder / f"{Path(arguments.source).stem}.npz")
        print(f"{corpus.answer_tokens} answer tokens in {folder}.")
        return 0
    loaded = load_target(arguments.pair, "cpu", "auto")
    made = synthesis.Synthesis(CausalModel(loaded.module), loaded.tokenizer, arguments.rows, arguments.seed)

    def progress(tokens: int, counts: synthesis.Counts) -> None:
        show(
            f"{tokens} answer tokens; {counts.answer_tokens / counts.seconds:.0f} a second; of {counts.kept} "
            f"conversations {counts.looped} cut before a loop; dropped: {counts.short} too short, {counts.bad_turn} "
            "with a bad user turn"
        )

    total = shards.write_shards(made, folder, arguments.tokens, share=share, progress=progress)
    print(f"{total} answer tokens in {folder}.")
    return 0


def _share(text: str) -> tuple[int, int]:
    """1/3 -> (0, 3). Raises SettingsError."""
    parts = text.split("/")
    if (
        len(parts) != 2
        or not all(p.isdecimal() and len(p) < 4 for p in parts)
        or not 1 <= int(parts[0]) <= int(parts[1])
    ):
        raise SettingsError(f"--share must be like 1/2, the first of two processes, not {text[:20]!r}.")
    return int(parts[0]) - 1, int(parts[1])


def drafter_command(arguments: argparse.Namespace) -> int:
    """Train one drafter (hybrid: two) and write its folder. Interrupted training goes on from its checkpoint."""
    if not 0 < arguments.minutes <= 10_000 or not 0 < arguments.learning_rate < 1:
        raise SettingsError("--minutes must be above 0 and --learning-rate between 0 and 1.")
    import torch

    from specviz.drafters import checkpoints
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel
    from specviz.training import confidence, recipes
    from specviz.training.block import BlockRecipe
    from specviz.training.causal import CausalRecipe
    from specviz.training.features import TapStore

    tell, to = reports(), Path(arguments.to)
    block = arguments.kind == "hybrid"
    if arguments.start and not block:
        raise SettingsError("--from is for hybrid drafters.")
    begun = checkpoints.load_block_net(Path(arguments.start)).requires_grad_(True) if arguments.start else None
    store = TapStore(Path(arguments.folder), CausalModel(load_target(arguments.pair, "cpu", "auto").module))
    s = recipes.setting(
        load_target(arguments.pair, "cpu", "fp32").module, store, None if begun is None else begun.draft_ids
    )
    work = recipes.work_folder(to / "training", arguments.kind)
    net = begun or (recipes.block_net(s) if block else recipes.causal_net(s))
    begin = work / "start.pt"
    if begin.exists():
        net.load_state_dict(torch.load(begin, weights_only=True))
    elif begun is None:
        print(json.dumps((recipes.start_block if block else recipes.start_causal)(net, s)), file=sys.stderr)
        torch.save(net.state_dict(), begin)
    options = {
        "share_done": lambda at: at.seconds / 60 / arguments.minutes,
        "checkpoint": work / "checkpoint.pt",
        "report": lambda at: tell(f"step {at.step}, {at.seconds:.0f} s, loss {at.losses[-1]}, alpha {at.alphas}"),
    }
    if block:
        done = recipes.train_block(net, s, BlockRecipe(learning_rate=arguments.learning_rate), **options)
        confidence.fit(net, s)
        about = {
            "confidence_temperatures": confidence.calibrate(net, s),
            "alpha_by_position": recipes.alpha_block(net, s),
        }
    else:
        done = recipes.train_causal(net, s, CausalRecipe(learning_rate=arguments.learning_rate), **options)
        about = {"alpha_by_position": {"autoregressive": [recipes.alpha_causal(net, s)]}}
    about |= {"steps": done.step, "seconds": round(done.seconds), "answer_tokens": s.store.answer_tokens(s.train)}
    for kind in ("parallel", "hybrid") if block else ("autoregressive",):
        checkpoints.save(to / kind, kind, net, about)
    print(json.dumps(about))
    return 0


def export_command(arguments: argparse.Namespace) -> int:
    """Write the standard folder."""
    from specviz.drafters import trained_autoregressive
    from specviz.loader.config_and_tokenizer import load_tokenizer
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel

    source = trained().get(arguments.name, Path(arguments.name))
    loaded = load_target(arguments.pair, "cpu", "fp32")
    to = Path(arguments.folder)
    trained_autoregressive.export(source, CausalModel(loaded.module), load_tokenizer(loaded.folder, stock=True), to)
    print(
        f"Wrote {to}: a standard model with the full vocabulary. Its q, and so its acceptance, differ from the "
        "shipped form's, whose head is cut to a draft vocabulary."
    )
    return 0
