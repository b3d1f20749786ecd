"""The command `retune`: train the hybrid drafter further on the prompts of a file, and compare before and after."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from specviz.cli.options import Subparsers, add_json
from specviz.cli.progress import finish
from specviz.engine.prompts import lines_of

if TYPE_CHECKING:
    from specviz.training.retune import Judged


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; the parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "retune",
        help="retune the hybrid drafter on your own prompts",
        description=(
            "The target answers your prompts, the drafter is trained on three quarters of the answers and measured on "
            "the rest, before and after. The new drafter is a folder for `run --drafter FOLDER`."
        ),
    )
    parser.add_argument("prompts", metavar="FILE", help="a text file, one prompt a line")
    parser.add_argument(
        "--name", default="retuned", metavar="NAME", help="name of the new drafter (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, metavar="S", help="seconds of training (default: %(default)s)"
    )
    parser.add_argument(
        "--k", type=int, default=5, metavar="K", help="draft tokens per round in the comparison (default: %(default)s)"
    )
    parser.add_argument("--answer-tokens", type=int, default=96, metavar="N", help="(default: %(default)s)")
    add_json(parser)
    parser.set_defaults(handler=retune_command)


def retune_command(arguments: argparse.Namespace) -> int:
    """Retune and print the comparison on held-out prompts."""
    from specviz.training.retune import Retune, RetuneOrder

    job = Retune(
        RetuneOrder(
            tuple(lines_of(arguments.prompts)), arguments.name, arguments.seconds, arguments.k, arguments.answer_tokens
        )
    )
    finish(job)
    if job.result is None:  # stopped by Ctrl-C: nothing was kept
        raise KeyboardInterrupt
    found = job.result
    if arguments.json:
        print(
            json.dumps(
                {
                    **asdict(found),
                    "folder": str(found.folder),
                    "before": _judged(found.before),
                    "after": _judged(found.after),
                }
            )
        )
        return 0
    print(found.sentence)
    for words, side in (("before", found.before), ("after", found.after)):
        print(
            f"{words:7} overlap by slot, your held-out answers {_rates(side.overlap)}, older texts "
            f"{_rates(side.old_overlap)}; texts equal to plain decoding {side.live.identical_to_plain} of "
            f"{side.live.prompts}"
        )
    print(
        f"{found.steps} steps in {found.seconds:.0f} s on {found.answer_tokens} answer tokens. Kept in "
        f"{found.folder}: run it with --drafter {found.folder}."
    )
    return 0


def _judged(side: Judged) -> dict:
    return {"live": side.live.as_json(), "overlap": side.overlap, "old_overlap": side.old_overlap}


def _rates(values: list[float]) -> str:
    return " ".join(f"{x:.2f}" for x in values[:5])
