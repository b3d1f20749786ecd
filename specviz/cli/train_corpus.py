"""The command `train corpus`: conversations that the target writes, as shards to train drafters on."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.cli.options import Subparsers, add_pair
from specviz.cli.progress import reporting
from specviz.errors import SettingsError


def add_parser(trains: Subparsers) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
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
    add_pair(corpus)
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


def corpus_command(arguments: argparse.Namespace) -> int:
    """Write shards of conversations, or import one."""
    if arguments.tokens < 1 or not 1 <= arguments.rows <= 512:
        raise SettingsError("--tokens must be at least 1 and --rows from 1 to 512.")
    share = _share(arguments.share)
    from specviz.loader.load_model import load_target
    from specviz.models.causal import CausalModel
    from specviz.training import shards, synthesis
    from specviz.training.corpus import Corpus

    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.source:
        corpus = Corpus.load(Path(arguments.source))
        corpus.save(folder / f"{Path(arguments.source).stem}.npz")
        print(f"{corpus.answer_tokens} answer tokens in {folder}.")
        return 0
    with reporting() as job:
        loaded = load_target(arguments.pair, "cpu", "auto", job)
    made = synthesis.Synthesis(CausalModel(loaded.module), loaded.tokenizer, arguments.rows, arguments.seed)
    with reporting() as job:
        total = shards.write_shards(made, folder, arguments.tokens, share=share, job=job)
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
