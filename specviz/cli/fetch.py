"""The command `fetch`: download and convert the weights of a pair, so that a run starts at once."""

from __future__ import annotations

import argparse

from specviz.cli.options import Subparsers, say
from specviz.cli.progress import reporting
from specviz.loader.pairs import find_pair


def add_parsers(subparsers: Subparsers) -> None:
    """Add the command; its parser sets `handler`, a function from the parsed arguments to an exit code."""
    parser = subparsers.add_parser("fetch", help="fetch a pair's weights, so that a run starts at once")
    parser.add_argument("pair", metavar="P", help="as for run --pair")
    parser.set_defaults(handler=fetch_command)


def fetch_command(arguments: argparse.Namespace) -> int:
    """Fetch the pair's models and print their folders."""
    pair = find_pair(arguments.pair)

    from specviz.loader.fetch import fetch
    from specviz.loader.load_model import check
    from specviz.loader.requirements import needs

    say(needs(pair, ask_hub=True).sentence)
    with reporting() as job:
        check(pair, job)  # small files first: a pair that cannot work ends here
    for source in (pair.target, pair.draft):
        if source is not None:
            with reporting() as job:
                folder = fetch(source, job)
            print(folder)
    return 0
