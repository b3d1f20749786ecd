"""The command groups `train` (corpus, drafter) and `drafters` (eval, test, export)."""

from __future__ import annotations

from specviz.cli import drafter_evaluation, drafter_export, drafter_test, train_corpus, train_drafter
from specviz.cli.options import Subparsers


def add_parsers(subparsers: Subparsers) -> None:
    """Add both groups; each of their parsers sets `handler`, a function from the arguments to an exit code."""
    train = subparsers.add_parser("train", help="make a corpus and train drafters on it")
    trains = train.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (train_corpus, train_drafter):
        module.add_parser(trains)
    drafters = subparsers.add_parser("drafters", help="evaluate, test and export drafters")
    commands = drafters.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (drafter_evaluation, drafter_test, drafter_export):
        command.add_parser(commands)
